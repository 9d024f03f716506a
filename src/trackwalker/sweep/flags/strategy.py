"""The flag sweep: XLA, NCCL/RCCL and runtime flags for one model, one mesh and one node list.

The baseline runs in between all the time, because nodes drift by more than most flags give. flags_course.py chooses the
runs; the recipe that comes out (flags_report.py) is worth something in this cell only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trackwalker.errors import TrackwalkerError, UsageError
from trackwalker.job.resolve import resolve
from trackwalker.perf.analysis.diff import diff
from trackwalker.perf.analysis.diff_result import DiffReport
from trackwalker.perf.analysis.report import analyse
from trackwalker.sweep.flags.catalogue import Variant, join, read_variants
from trackwalker.sweep.flags.course import BASELINE, JOIN, PROFILED, Course, Rules, Slot, at_most, follow
from trackwalker.sweep.flags.report import report
from trackwalker.sweep.model import Conclusion, Done, Template, Trial

_BASELINES_LOST = 2
# A profiled run is short, and its speed does not count.
_TRACED = {"profiler": "xplane", "skip_first_n_steps_for_profiler": "5", "profiler_steps": "2", "steps": "10"}
_WHY = {
    "screen": "screening: which are worth a second run",
    "again": "a second run: which are worth confirming",
    "confirm": "confirmation, in turn with the baseline",
    "combine": "whether the gains add up",
    PROFILED: "a trace: what the winner changes in the step",
}

Explain = Callable[[str, str], list[str]]  # job ids of baseline and winner -> what changed in the trace


# Why a winner wins: what its trace has less of than the baseline's.
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


def build(request: Mapping[str, Any]) -> FlagSweep:
    """The strategy of a request."""
    try:
        variants = read_variants(request["variants"])
        base, profile = Template.read(request), bool(request.get("profile", False))
        workspace, condition = request.get("workspace"), str(request.get("condition", ""))
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise UsageError(f"this is no request of a flag sweep: {type(e).__name__}: {e}") from e
    if not variants:
        raise UsageError("no flag of the catalogue fits this model and mesh; name your own with --try")
    explain = between(str(workspace)) if workspace else None
    return FlagSweep(base, variants, profile, condition, explain)


class FlagSweep:
    """See the top of this file; pure, but for reading two finished traces when it concludes."""

    kind = "flags"

    def __init__(
        self,
        base: Template,
        variants: Sequence[Variant],
        profile: bool = False,
        condition: str = "",
        explain: Explain | None = None,
        rules: Rules = Rules(),  # noqa: B008
    ) -> None:
        self._base, self._variants = base, {v.name: v for v in variants}
        self._parts = {v.name: v.sets for v in variants}
        self._profile, self._condition, self._explain, self._rules = profile, condition, explain, rules

    def next_trials(self, done: Done) -> list[Trial]:
        """The runs that the present stage still lacks, in the order they are to be run."""
        course = self._course(done)
        return [self._trial(slot, course.stage) for slot in course.wanted]

    def stop(self, done: Done) -> str:
        """Without a baseline there is nothing to compare with."""
        lost = [r for key, r in done.items() if key.endswith(f":{BASELINE}") and r.status not in ("ok", "cancelled")]
        lost = [r for r in lost if not r.key.startswith(PROFILED)]
        if len(lost) >= _BASELINES_LOST:
            return f"the baseline itself failed {len(lost)} times ({lost[-1].why or lost[-1].status})"
        return ""

    def at_most(self) -> int:
        """Every stage at its longest."""
        return at_most(len(self._variants), self._rules, self._profile)

    def conclude(self, done: Done) -> Conclusion:
        """Leaderboard, what is confirmed with which interval, and the recipe."""
        course = self._course(done)
        told = self._mechanism(course, done)
        return report(course, self._variants, done, self._rules, self._condition, self.stop(done), told)

    def _course(self, done: Done) -> Course:
        return follow(self._parts, done, self._rules, self._profile)

    def _mechanism(self, course: Course, done: Done) -> list[str]:
        runs = [done.get(f"{PROFILED}:{arm}") for arm in (BASELINE, JOIN.join(course.winner))]
        jobs = [r.job for r in runs if r is not None and r.job]
        return self._explain(jobs[0], jobs[1]) if self._explain and len(jobs) == 2 else []

    def _trial(self, slot: Slot, stage: str) -> Trial:
        parts = [] if slot.arm == BASELINE else [self._variants[name] for name in self._names(slot.arm)]
        change = join(parts)
        config = {**self._base.config, **change.config, **(_TRACED if stage == PROFILED else {})}
        what = "the baseline" if slot.arm == BASELINE else slot.arm
        env = change.environment(self._base.env)
        return self._base.trial(slot.key, f"{what}: {_WHY[stage]}", config=config, env=env)

    def _names(self, arm: str) -> list[str]:
        return [arm] if arm in self._variants else arm.split(JOIN)
