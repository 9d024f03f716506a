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

from trackwalker.agent.standing_now import by_small_log
from trackwalker.cli.common.job_row import Row, row_of
from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.cli.common.say import Screen
from trackwalker.cli.common.waiting import clock, since
from trackwalker.cli.common.workspace import jobs_of, newest_of, there
from trackwalker.errors import UsageError
from trackwalker.fleet.scan import Written
from trackwalker.job.causes import cause_name
from trackwalker.job.layout import Job
from trackwalker.job.shorthand import started
from trackwalker.job.trust import shared_badly
from trackwalker.launch.job_state import Standing, standings
from trackwalker.report.text import visible

COLUMNS = (
    "id",
    "name",
    "started",
    "elapsed",
    "model",
    "nodes",
    "step",
    "s/step",
    "state",
    "verdict",
    "recorded",
    "log",
)
_USUAL = ("id", "started", "elapsed", "model", "nodes", "step", "s/step", "state", "verdict")
_SPARED = ("nodes", "model", "elapsed")
_NUMBERS = ("elapsed", "nodes", "step", "s/step")
_ONCE_CALLED = {"speed": "s/step"}  # scripts may still ask for it by that name
_EVERY_S = 2.0
_HELPING = 8  # so many times as many jobs are looked into where too few fitted


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
    asked = (columns or ",".join(_USUAL)).replace(" ", "").split(",")
    wanted = tuple(_ONCE_CALLED.get(name, name) for name in asked)
    if unknown := [name for name in wanted if name not in COLUMNS]:
        raise UsageError(f"no column '{unknown[0]}'; there are {', '.join(COLUMNS)}")
    states = frozenset(state.lower().split(",")) if state else None
    moment = since(newer) if newer else None
    if warning := shared_badly(workspace):
        print(f"warning: {warning}", file=sys.stderr)
    while True:
        rows, more, unlooked = _rows(workspace, states, moment, limit)
        if as_json:
            _print_json(workspace, rows)
        else:
            console = Screen(highlight=False)
            if again:
                console.clear()
            console.print(
                _table(rows, wanted, console.width) if rows else _nothing(workspace, states, newer), markup=False
            )
            if unlooked:
                console.print(f"{unlooked} older jobs were not looked at: --limit 0 lists all", markup=False)
            elif more:
                console.print(f"{more} older ones: --limit 0 lists all", markup=False)
        if not again:
            return
        time.sleep(_EVERY_S)


def _rows(
    workspace: Path, states: frozenset[str] | None, moment: float | None, limit: int
) -> tuple[list[Row], int, int]:
    """The rows to show, how many more fit, and how many jobs nobody looked into: the newest come first, in helpings.

    Of a hundred thousand jobs only as many are looked into as it takes to find enough of them.
    """
    if not limit:
        fit = _fitting(jobs_of(workspace), states, moment)
        return [row_of(*each) for each in fit], 0, 0
    look, seen = limit, Written(there(workspace))
    while True:
        found, more = newest_of(workspace, look, moment or 0.0, seen)
        fit = _fitting(found, states, moment)
        if not more or len(fit) >= limit:
            rows = [row_of(*each) for each in fit[:limit]]
            plain = states is None and moment is None
            return rows, len(fit) - len(rows) + (more if plain else 0), 0 if plain else more
        look *= _HELPING


def _fitting(jobs: list[Job], states: frozenset[str] | None, moment: float | None) -> list[tuple[Job, Standing]]:
    """Those that began late enough and stand as asked."""
    chosen = jobs if moment is None else [job for job in jobs if (started(job) or 0.0) >= moment]
    told = [(job, by_small_log(job, each)) for job, each in zip(chosen, standings(chosen), strict=True)]
    return [(job, seen) for job, seen in told if states is None or seen.state in states]


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
        "s/step": "" if row.step_s is None else f"{row.step_s:.3g}",
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
