"""The suite `real`: real processes train on this machine, something real is broken, and the recording is diagnosed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from trackwalker import __version__
from trackwalker.lab.cases import Case
from trackwalker.lab.real import real_cases
from trackwalker.lab.results import CaseResult, Results
from trackwalker.lab.score import Progress, graded
from trackwalker.lab.tools import check_tool
from trackwalker.observe.prometheus import ensure_prometheus


def score_real(
    tools: list[str], repeats: int, limit_s: float, say: Callable[[str], None], progress: Progress
) -> Results:
    """Every real incident, one after the other: each needs the machine for itself."""
    for tool in tools:
        check_tool(tool)
    ensure_prometheus(say)
    results: list[CaseResult] = []
    incidents = [(number, *each) for number in range(1, repeats + 1) for each in real_cases()]
    for number, name, run, truth in incidents:
        with tempfile.TemporaryDirectory(prefix="trackwalker-lab-") as place:
            say(f"real-{name}: training, and breaking it")
            job = run(Path(place) / "outputs")
            for tool in tools:
                results.append(graded(Case(f"real-{name}", "tune", number), tool, job, truth, False, limit_s))
                progress(len(results), len(incidents) * len(tools), results[-1])
    return Results(version=__version__, suite=["real"], cases=results)
