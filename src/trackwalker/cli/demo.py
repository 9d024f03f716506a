"""`trackwalker demo`: see the whole line work on this machine."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

from trackwalker.cli.display import ProgressLine
from trackwalker.cli.options import DEFAULT_WORKSPACE, Workspace
from trackwalker.cli.save import save
from trackwalker.job.resolve import resolve
from trackwalker.lab.demo import run_demo
from trackwalker.lab.inject import FaultName
from trackwalker.observe.prometheus import ensure_prometheus
from trackwalker.report.terminal import render


class Fault(StrEnum):
    """What the demo breaks."""

    stop = "stop"
    kill = "kill"
    cpu = "cpu"
    none = "none"


def demo(
    fault: Annotated[Fault, typer.Option("--fault", envvar="FAULT", help="What to break.")] = Fault.stop,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Train four real processes, break one, notice it live, diagnose it, check the verdict.

    Exit code 0 when the verdict names the injected fault and its rank, 1 when it does not.
    """
    console, begin = Console(highlight=False), time.monotonic()
    name: FaultName = fault.value
    with ProgressLine(None) as line:

        def say(text: str) -> None:
            line.say(f"[{time.monotonic() - begin:5.1f} s] {text}")

        ensure_prometheus(say)
        result = run_demo(name, workspace, say, line.show)
    render(result.diagnosis.verdict, console)
    report = save(result.diagnosis, resolve(str(result.job_dir), workspace))
    console.print(f"\nreport: {report}", markup=False, soft_wrap=True)
    done = "nothing was broken" if name == "none" else f"'{name}' was done to {result.victim}"
    agrees = "the verdict agrees" if result.right else "THE VERDICT DOES NOT AGREE"
    console.print(f"{done}; {agrees}.", markup=False)
    return 0 if result.right else 1
