"""Why a winner wins: what its trace has less of than the baseline's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trackwalker.errors import TrackwalkerError
from trackwalker.job.resolve import resolve
from trackwalker.perf.analysis import analyse
from trackwalker.perf.diff import diff
from trackwalker.perf.diff_result import DiffReport

_ROWS = 3
_TELLING = 0.002  # of the step


def between(workspace: str) -> Callable[[str, str], list[str]]:
    """A function that reads two profiled jobs of a workspace and says what changed between them."""

    def explain(baseline: str, winner: str) -> list[str]:
        try:
            reports = [analyse(resolve(job, Path(workspace))) for job in (baseline, winner)]
        except TrackwalkerError as e:
            return [f"the traces of {baseline} and {winner} could not be compared: {e}"]
        return sentences(diff(*reports))

    return explain


def sentences(found: DiffReport) -> list[str]:
    """The buckets of the step and the collectives that changed most, one sentence each."""
    if found.refused or not found.waterfall:
        return [f"the traces do not say why: {(found.summary or '; '.join(found.missing)).rstrip('.')}"]
    falls = sorted((f for f in found.waterfall if abs(f.share) >= _TELLING), key=lambda f: -abs(f.delta_s))
    told = [
        f"trace: {f.name.replace('_', ' ')} {1000 * f.delta_s:+.3g} ms a step ({100 * f.share:+.1f} % of it)"
        + ("" if f.certain else ", within the spread of the traced steps")
        for f in falls[:_ROWS]
    ]
    for c in [c for c in found.collectives if abs(c.share) >= _TELLING][:_ROWS]:
        told.append(
            f"trace: {c.phase or c.name} {c.a_count:g} → {c.b_count:g} times a step, {1000 * c.delta_s:+.3g} ms"
        )
    return told or ["trace: no part of the step changed by more than 0.2 %: the gain is spread thin"]
