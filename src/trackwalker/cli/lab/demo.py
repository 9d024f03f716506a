"""`trackwalker demo`: see the whole line work on this machine."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, Workspace
from trackwalker.cli.common.saving import save
from trackwalker.cli.common.say import Screen
from trackwalker.cli.launching.run import ProgressLine
from trackwalker.errors import UsageError
from trackwalker.job.resolve import resolve
from trackwalker.lab.real.cases import CASES
from trackwalker.lab.real.demo import run_demo
from trackwalker.observe.prometheus import ensure_prometheus
from trackwalker.report.terminal import render


def demo(
    fault: Annotated[str, typer.Option("--fault", envvar="FAULT", help=f"What to break: {', '.join(CASES)}.")] = "stop",
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Train four real processes, break one, notice it live, diagnose it, check the verdict.

    Exit code 0 when the verdict names the injected fault and its rank, 1 when it does not.
    """
    if fault not in CASES:
        raise UsageError(f"unknown fault '{fault}'; there are: {', '.join(CASES)}")
    console, begin, case = Screen(highlight=False), time.monotonic(), CASES[fault]
    with ProgressLine(None) as line:

        def say(text: str) -> None:
            line.say(f"[{time.monotonic() - begin:5.1f} s] {text}")

        ensure_prometheus(say)
        result = run_demo(case, workspace, say, line.show)
    render(result.diagnosis.verdict, console)
    report = save(result.diagnosis, resolve(str(result.job_dir), workspace))
    console.print(f"\nreport: {report}", markup=False, soft_wrap=True)
    where = f" ({', '.join(case.culprits)})" if case.culprits else ""
    agrees = "the verdict agrees" if result.right else "THE VERDICT DOES NOT AGREE"
    console.print(f"What was done: {case.about}{where}; {agrees}.", markup=False)
    return 0 if result.right else 1
