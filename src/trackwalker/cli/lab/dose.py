"""`trackwalker lab dose`: real faults at many strengths, from which effect on they are named."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.table import Table

from trackwalker.cli.common.say import Screen
from trackwalker.errors import UsageError
from trackwalker.lab.real.dose import FAULTS, DoseFault, DoseResults, judge, run_dose
from trackwalker.lab.real.dose_plot import plot
from trackwalker.lab.real.undo import NotHereError
from trackwalker.observe.prometheus import ensure_prometheus


def dose(
    out: Annotated[Path, typer.Option("--out", help="Results; runs that it holds already are not made again.")],
    fault: Annotated[
        list[str] | None, typer.Option("--fault", help=f"Only these; repeatable. There are: {', '.join(FAULTS)}.")
    ] = None,
    strengths: Annotated[int, typer.Option("--strengths", min=1, max=8, help="Of each fault, spread evenly.")] = 8,
    svg: Annotated[Path | None, typer.Option("--svg", help="Draw the results into this file.")] = None,
    keep: Annotated[Path | None, typer.Option("--keep", help="Keep the job directories in this folder.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Only ask again about the runs in --keep.")] = False,
) -> int:
    """Make the same real fault at several strengths and say from which loss of speed on it is named.

    Each run takes about a minute and is a real training run of two processes. Exit code 1 when a verdict was wrong.
    """
    chosen = [_known(name) for name in fault or FAULTS]
    results = _read(out)
    ensure_prometheus(_say)
    if again:
        _judge_again(results, keep)
        _write(out, results.model_dump_json(indent=1) + "\n")
        chosen = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us ends the fault and the run too
    plan = [(f, s) for f in chosen for s in spread(f.strengths, strengths) if not results.has(f.name, s)]
    for number, (kind, strength) in enumerate(plan, start=1):
        with tempfile.TemporaryDirectory(prefix="trackwalker-dose-") as folder:
            try:
                run = run_dose(kind, strength, keep or Path(folder), lambda text: None)
            except NotHereError as e:
                _say(f"{kind.name} cannot be made here: {e}")
                continue
        results.runs.append(run)
        _write(out, results.model_dump_json(indent=1) + "\n")
        lost = "?" if run.lost is None else f"{100 * run.lost:.0f} %"
        _say(
            f"{number}/{len(plan)} {kind.name} {strength:g} {kind.unit}: {lost} lost, {run.grade}, {run.seconds:.0f} s"
        )
    if svg is not None:
        _write(svg, plot(results))
    _show(results)
    return 1 if any(r.grade == "wrong" for r in results.runs) else 0


def _judge_again(results: DoseResults, keep: Path | None) -> None:
    """What the engine says today of the same recordings."""
    if keep is None:
        raise UsageError("--again needs --keep with the folder of the job directories")
    for i, run in enumerate(results.runs):
        if (keep / run.job).is_dir():
            told = FAULTS[run.fault], run.strength, keep / run.job, run.from_step, run.load, run.seconds
            results.runs[i] = judge(*told)


def spread(strengths: tuple[float, ...], count: int) -> list[float]:
    """So many of the strengths, the weakest and the strongest among them."""
    if count >= len(strengths):
        return list(strengths)
    if count == 1:
        return [strengths[-1]]
    return [strengths[round(i * (len(strengths) - 1) / (count - 1))] for i in range(count)]


def _known(name: str) -> DoseFault:
    if name not in FAULTS:
        raise UsageError(f"unknown fault '{name}'; there are: {', '.join(FAULTS)}")
    return FAULTS[name]


def _read(path: Path) -> DoseResults:
    if not path.exists():
        return DoseResults(command=f"trackwalker lab dose --out {path.name}", cpus=os.cpu_count() or 1)
    try:
        return DoseResults.model_validate_json(path.read_text())
    except (OSError, ValidationError) as e:
        raise UsageError(f"{path} does not hold results of 'lab dose'") from e


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as e:
        raise UsageError(f"cannot write {path}: {e.strerror}") from e


def _show(results: DoseResults) -> None:
    table = Table("fault", "strength", "speed lost", "said", "", box=None)
    for r in sorted(results.runs, key=lambda r: (r.fault, r.strength)):
        said = ", ".join(f"{c} ({', '.join(h)})" if h else c for c, h in r.roots.items()) or r.outcome
        table.add_row(
            r.fault, f"{r.strength:g} {r.unit}", "?" if r.lost is None else f"{100 * r.lost:.0f} %", said, r.grade
        )
    Screen(highlight=False).print(table)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
