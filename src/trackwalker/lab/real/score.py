"""The suite `real`: real processes train on this machine, something real is broken, and the recording is diagnosed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from trackwalker import __version__
from trackwalker.errors import UsageError
from trackwalker.lab.real.cases import Runner, real_cases
from trackwalker.lab.real.undo import NotHereError
from trackwalker.lab.scenario import Truth
from trackwalker.lab.scoring.cases import Case
from trackwalker.lab.scoring.results import CaseResult, Results
from trackwalker.lab.scoring.score import Progress, graded
from trackwalker.lab.scoring.tools import check_tool
from trackwalker.observe.prometheus import ensure_prometheus


def score_real(
    tools: list[str],
    families: list[str],
    repeats: int,
    limit_s: float,
    say: Callable[[str], None],
    progress: Progress,
) -> Results:
    """Every real incident (or those of `families`), one after the other: each needs the machine for itself.

    What this machine cannot do to a run is said and left out; it counts neither as right nor as wrong.
    """
    for tool in tools:
        check_tool(tool)
    chosen = _chosen(families)
    ensure_prometheus(say)
    results: list[CaseResult] = []
    incidents = [(number, *each) for number in range(1, repeats + 1) for each in chosen]
    left_out: dict[str, str] = {}
    for number, name, run, truth in incidents:
        with tempfile.TemporaryDirectory(prefix="trackwalker-lab-") as place:
            say(f"real-{name}: training, and breaking it")
            try:
                job = run(Path(place) / "outputs")
            except NotHereError as e:
                left_out[name] = str(e)
                say(f"real-{name}: left out, {e}")
                continue
            for tool in tools:
                results.append(graded(Case(f"real-{name}", "tune", number), tool, job, truth, False, limit_s))
                progress(len(results), len(incidents) * len(tools), results[-1])
    if left_out:
        say(f"{len(left_out)} of {len(chosen)} families were left out: {', '.join(left_out)}")
    if not results:
        raise UsageError("nothing could be scored: this machine can make none of these faults (most need root)")
    return Results(version=__version__, suite=["real"], cases=results)


def _chosen(families: list[str]) -> list[tuple[str, Runner, Truth]]:
    cases = real_cases()
    wanted = {name.removeprefix("real-") for name in families}
    unknown = wanted - {name for name, _, _ in cases}
    if unknown:
        known = ", ".join(name for name, _, _ in cases)
        raise UsageError(f"no real fault '{min(unknown)}'; there are: {known}")
    return [case for case in cases if not wanted or case[0] in wanted]
