"""`trackwalker jobs`: what a workspace holds, newest first, as squeue and sacct would list it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from trackwalker.agent.ask.standing_now import by_small_log
from trackwalker.cli.common.job_row import Row, row_of
from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.cli.common.say import Screen
from trackwalker.cli.common.waiting import clock, since
from trackwalker.cli.common.workspace import jobs_of, newest_of
from trackwalker.errors import UsageError
from trackwalker.job.causes import cause_name
from trackwalker.job.shorthand import started
from trackwalker.job.trust import shared_badly
from trackwalker.launch.job_state import Standing, standings
from trackwalker.report.text import visible

COLUMNS = ("id", "name", "started", "elapsed", "model", "nodes", "step", "speed", "state", "verdict", "recorded", "log")
_USUAL = ("id", "started", "elapsed", "model", "nodes", "step", "speed", "state", "verdict")
_SPARED = ("nodes", "model", "elapsed")
_NUMBERS = ("elapsed", "nodes", "step", "speed")
_EVERY_S = 2.0


def jobs(
    state: Annotated[str | None, typer.Option("--state", help="Only these, as running,failed.")] = None,
    newer: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Started since: 12h, 7d, 2026-11-16.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="The newest so many; 0: all.")] = 50,
    columns: Annotated[
        str | None, typer.Option("-o", "--columns", metavar="A,B", help=f"Of {', '.join(COLUMNS)}.")
    ] = None,
    again: Annotated[bool, typer.Option("--watch", help="Print it again every two seconds, until Ctrl-C.")] = False,
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> None:
    """List the jobs of a workspace."""
    wanted = tuple((columns or ",".join(_USUAL)).replace(" ", "").split(","))
    if unknown := [name for name in wanted if name not in COLUMNS]:
        raise UsageError(f"no column '{unknown[0]}'; there are {', '.join(COLUMNS)}")
    states = frozenset(state.lower().split(",")) if state else None
    moment = since(newer) if newer else None
    if warning := shared_badly(workspace):
        print(f"warning: {warning}", file=sys.stderr)
    while True:
        rows, more = _rows(workspace, states, moment, limit)
        if as_json:
            _print_json(workspace, rows)
        else:
            console = Screen(highlight=False)
            if again:
                console.clear()
            console.print(
                _table(rows, wanted, console.width) if rows else _nothing(workspace, states, newer), markup=False
            )
            if more:
                console.print(f"{more} older ones: --limit 0 lists all", markup=False)
        if not again:
            return
        time.sleep(_EVERY_S)


def _rows(workspace: Path, states: frozenset[str] | None, moment: float | None, limit: int) -> tuple[list[Row], int]:
    few = limit and states is None and moment is None
    found, more = newest_of(workspace, limit) if few else (jobs_of(workspace), 0)
    if moment is not None:
        found = [job for job in found if (started(job) or 0.0) >= moment]
    chosen = found[:limit] if limit and states is None else found
    rows = []
    for job, told in zip(chosen, standings(chosen), strict=True):
        seen = by_small_log(job, told)
        if states is None or seen.state in states:
            rows.append((job, seen))
    shown = rows[:limit] if limit else rows
    return [row_of(job, seen) for job, seen in shown], more + len(found) - len(chosen) + len(rows) - len(shown)


def _nothing(workspace: Path, states: frozenset[str] | None, newer: str | None) -> str:
    which = f" that are {' or '.join(sorted(states))}" if states else ""
    return f"no jobs{which}{f' since {newer}' if newer else ''} in {workspace}"


def _table(rows: list[Row], wanted: tuple[str, ...], width: int) -> Table:
    cells = [_cells(row) for row in rows]
    needs = {name: max(len(name), *(len(each[name]) for each in cells)) + 1 for name in wanted}
    for name in _SPARED:  # on a narrow terminal whole columns go, not the ends of all of them
        if sum(needs.values()) > width + 1 and wanted == _USUAL:
            needs.pop(name)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in needs:
        table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=True, overflow="ellipsis")
    for each in cells:
        table.add_row(*(Text(visible(each[name])) for name in needs))
    return table


def _cells(row: Row) -> dict[str, str]:
    when = time.strftime("%m-%d %H:%M", time.localtime(row.started)) if _is_time(row.started) else ""
    step = "" if row.step is None else f"{row.step}/{row.steps}" if row.steps else str(row.step)
    return {
        "id": row.job.id,
        "name": row.job.name,
        "started": when,
        "elapsed": clock(row.elapsed),
        "model": row.model,
        "nodes": "" if row.nodes is None else str(row.nodes),
        "step": step,
        "speed": "" if row.step_s is None else f"{row.step_s:.3g} s",
        "state": row.seen.state,
        "verdict": ", ".join(cause_name(each) for each in row.verdict.split(", ")) if row.verdict else "",
        "recorded": "yes" if row.job.database is not None else "no",
        "log": str(row.job.log) if row.job.log else "",
    }


def _is_time(value: float | None) -> bool:
    return value is not None and 0 <= value < 4e9


def _print_json(workspace: Path, rows: list[Row]) -> None:
    found = [_plain(row, row.seen) for row in rows]
    print(json.dumps({"schema": "trackwalker.jobs/1", "workspace": str(workspace), "jobs": found}, indent=1))


def _plain(row: Row, seen: Standing) -> dict[str, object]:
    return {
        "id": row.job.id,
        "name": row.job.name,
        "state": seen.state,
        "running": seen.state == "running",
        "recorded": row.job.database is not None,
        "log": str(row.job.log) if row.job.log else None,
        "started": row.started,
        "elapsed_s": row.elapsed,
        "model": row.model,
        "nodes": row.nodes,
        "step": row.step,
        "steps": row.steps,
        "step_s": row.step_s,
        "verdict": row.verdict or None,
    }
