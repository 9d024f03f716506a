"""Two jobs in, one verdict out: by how much they differ, how sure that is, and why."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from trackwalker.diagnose.case import Case, open_case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.causes.playbook import state_of
from trackwalker.diagnose.causes.states import states
from trackwalker.diagnose.compare import deltas as measured
from trackwalker.diagnose.compare.aligned import Aligned, align, spans
from trackwalker.diagnose.compare.config_diff import Change, config_changes
from trackwalker.diagnose.compare.deltas import Delta, where
from trackwalker.diagnose.compare.explain import Explanation, adopt, explain
from trackwalker.diagnose.compare.loss_match import DIVERGED, Losses, compare_losses
from trackwalker.diagnose.engine import diagnose_case
from trackwalker.diagnose.verdict import (
    Action,
    Cause,
    Cost,
    DataQuality,
    JobRef,
    Onset,
    Outcome,
    RuledOut,
    Untestable,
    Verdict,
)
from trackwalker.diagnose.views.asked import Diagnosis
from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.record.clock import utc
from trackwalker.telemetry.quality import Check
from trackwalker.telemetry.store import Telemetry


class ComparisonVerdict(Verdict):
    """The verdict about B, with the job it was compared with."""

    baseline: JobRef


@dataclass(frozen=True)
class Comparison:
    """The verdict and the tables behind it."""

    verdict: ComparisonVerdict
    aligned: Aligned | None = None
    changes: list[Change] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)


def compare(a: Job, b: Job) -> Comparison:
    """Compare job B with job A from what is on disk; neither is touched."""
    begin = time.perf_counter()
    if (a.dir or a.log) == (b.dir or b.log):
        raise UsageError(f"{a.label} was given twice: name two jobs to compare")
    with open_case(a) as one, open_case(b) as two:
        draft = _Draft(begin, diagnose_case(one), diagnose_case(two), one, two, EvidenceBook())
        for word, case, other in (("A", one, two), ("B", two, one)):
            if (foreign := foreign_database(case, other)) is not None:
                return draft.wrong_database(word, case, foreign)
        return draft.conclude()


@dataclass
class _Draft:
    """A comparison in the making: what both jobs are, and the evidence so far."""

    begin: float
    own_a: Diagnosis
    own_b: Diagnosis
    a: Case
    b: Case
    book: EvidenceBook

    def wrong_database(self, word: str, case: Case, foreign: Check) -> Comparison:
        """Stop: numbers of another job would decide."""
        known = self.book.add("metric", foreign.query, f"{word} ({case.job.id}): {foreign.says}")
        cause = Cause(cause=states().cause("database-foreign"), role="root", confidence=0.95, evidence=[known])
        why = "two recorders may have swapped ports or folders; put each database beside its own job and compare again"
        action = Action(do="find-the-right-database", why=why, risk="none", needs_approval=False)
        summary = f"Not compared: the database of {word} ({case.job.id}) belongs to another job: {foreign.says}."
        return self._comparison("incident", summary, [cause], actions=[action])

    def conclude(self) -> Comparison:
        """Speed, settings, losses, metrics; then what explains the difference."""
        a, b, book = self.a, self.b, self.book
        aligned = align(a, b, book)
        changes = config_changes(a, b)
        losses = compare_losses(a, b, changes, book)
        deltas: list[Delta] = []
        if aligned is not None:
            deltas = measured.measure(a, b, spans(a, aligned.steps_a), spans(b, aligned.steps_b), book)
        found = explain(a, b, self.own_a.verdict, self.own_b.verdict, aligned, changes, deltas, book)
        return self._verdict(aligned, changes, losses, deltas, found)

    def _verdict(
        self, aligned: Aligned | None, changes: list[Change], losses: Losses, deltas: list[Delta], found: Explanation
    ) -> Comparison:
        causes, actions = list(found.causes), list(found.actions)
        outcome: Outcome = found.outcome
        said = [found.summary]
        if losses.cause is not None and not any(c.cause == losses.cause for c in causes):
            hardware = self._hardware()
            own = self._loss_cause(losses).model_copy(update={"role": "consequence" if hardware else "root"})
            causes = [*hardware, *[c for c in causes if outcome == "incident" and c not in hardware], own]
            actions = [*(actions if outcome == "incident" else []), _replay(losses)]
            outcome = "incident"
            said.insert(0, _loss_words(losses))
        elif losses.says:
            said.append(f"{losses.says[0].upper()}{losses.says[1:]}.")
        untestable = list(found.untestable)
        if losses.untestable and losses.says:
            untestable.append(Untestable(cause=states().cause("losses-part"), missing=[losses.untestable]))
        return self._comparison(
            outcome,
            " ".join(s for s in said if s),
            causes,
            actions=actions,
            ruled_out=found.ruled_out,
            untestable=untestable,
            aligned=aligned,
            changes=changes,
            deltas=deltas,
        )

    def _hardware(self) -> list[Cause]:
        """Memory or compute faults that one of the two reports: then the corruption is not silent."""
        found = []
        for own, suffix in ((self.own_a, where(self.a)), (self.own_b, "")):
            roots = [c for c in own.verdict.roots if states().within("computes", state_of(c.cause))]
            found += [adopt(c, own.verdict, self.book, suffix) for c in roots]
        return found

    def _loss_cause(self, losses: Losses) -> Cause:
        sure = 0.9 if losses.state == DIVERGED else 0.7
        return Cause(
            cause=losses.cause or "",
            role="root",
            confidence=sure,
            onset=Onset(step=losses.step),
            evidence=list(losses.evidence),
        )

    def _comparison(
        self,
        outcome: Outcome,
        summary: str,
        causes: list[Cause],
        *,
        actions: list[Action],
        ruled_out: list[RuledOut] | None = None,
        untestable: list[Untestable] | None = None,
        aligned: Aligned | None = None,
        changes: list[Change] | None = None,
        deltas: list[Delta] | None = None,
    ) -> Comparison:
        job, base = self.own_b.verdict, self.own_a.verdict
        quality = [
            q.model_copy(update={"says": f"{word} ({v.job.id}): {q.says}" if q.says else ""})
            for word, v in (("A", base), ("B", job))
            for q in v.data_quality
        ]
        verdict = ComparisonVerdict(
            job=job.job,
            baseline=base.job,
            window=job.window,
            status=job.status,
            outcome=outcome,
            summary=summary,
            causes=causes,
            ruled_out=ruled_out or [],
            untestable=untestable or [],
            evidence=self.book.items,
            actions=actions,
            progress=job.progress,
            data_quality=[DataQuality(**q.model_dump()) for q in quality],
            cost=self._cost(),
        )
        damage = [f"{word}: {d}" for word, own in (("A", self.own_a), ("B", self.own_b)) for d in own.damage]
        return Comparison(verdict, aligned, changes or [], deltas or [], damage)

    def _cost(self) -> Cost:
        open_now = [c.telemetry for c in (self.a, self.b) if c.telemetry is not None]
        return Cost(
            seconds=round(time.perf_counter() - self.begin, 3),
            queries=sum(t.queries for t in open_now),
            bytes_read=sum(t.bytes_read for t in open_now) + self.a.bytes_read + self.b.bytes_read,
        )


def _loss_words(losses: Losses) -> str:
    if losses.state == DIVERGED:
        return f"{losses.says[0].upper()}{losses.says[1:]}."
    return (
        f"Same settings, seed and data, but {losses.says}: one of the two runs computed something else. "
        "Silent data corruption is suspected; which run is wrong only a replay tells."
    )


def _replay(losses: Losses) -> Action:
    if losses.state == DIVERGED:
        why = f"look at the gradient norm and the data around step {losses.step}; go on from a checkpoint before it"
        return Action(do="resume-before-divergence", why=why, risk="lost steps", needs_approval=True)
    why = (
        f"run the steps around {losses.step} again from the last checkpoint before it, on other nodes: the run whose "
        "losses come back is the right one, and the nodes of the other need a GPU memory and compute test"
    )
    return Action(do="replay-steps", why=why, risk="capacity for a few steps", needs_approval=True)


_SECONDS = "tb_perf_step_time_seconds"
_FEWEST = 10  # steps known to both
_ROUNDING = 0.0005  # relative: the log prints three digits after the point
_CLOCKS_S = 900.0  # the submitting machine's clock and the nodes'


def foreign_database(case: Case, other: Case) -> Check | None:
    """The finding that a job's database is not its own: by its identity check, its times, or its step seconds."""
    known = case.check("identity")
    if known is not None and not known.ok:
        return known
    own = case.telemetry
    if own is None:
        return None
    return _other_time(case, own) or _other_seconds(case, other, own)


def _other_time(case: Case, own: Telemetry) -> Check | None:
    """Samples from before the job was submitted or after it ended can only be another job's."""
    begin, end = own.range()
    if case.start is None or case.end is None or case.live:
        return None
    if end < case.start - _CLOCKS_S or begin > case.end + _CLOCKS_S:
        says = (
            f"the database holds samples from {utc(begin)} to {utc(end)}, "
            f"the job ran from {utc(case.start)} to {utc(case.end)}"
        )
        shown = "up" if "up" in own.metrics() else sorted(own.metrics())[0]
        return Check("identity", False, (), says, f"max(timestamp({shown} @ {end:.3f}))")
    return None


def _other_seconds(case: Case, other: Case, own: Telemetry) -> Check | None:
    agree = _agreement(case, own)
    if agree is None or agree >= 0.5 or other.telemetry is None:
        return None
    crossed = _agreement(case, other.telemetry)
    if crossed is None or crossed < 0.8:
        return None  # not the other's either: its step times may be taken at another place
    says = (
        f"{100 * agree:.0f} % of the step times in the database of {case.job.id} are those of its log, "
        f"but {100 * crossed:.0f} % of those in the database of {other.job.id} are"
    )
    return Check("identity", False, (), says, _SECONDS)


def _agreement(case: Case, telemetry: Telemetry) -> float | None:
    """The share of recorded step times that the log tells, too."""
    if not {"tb_step", _SECONDS} <= telemetry.metrics() or not len(case.log.steps):
        return None
    begin, end = telemetry.range()
    by_time: list[dict[float, float]] = []
    for metric in ("tb_step", _SECONDS):
        samples = telemetry.raw(metric, begin, end)
        by_time.append({round(float(t), 3): float(v) for _, ts, vs in samples for t, v in zip(ts, vs, strict=True)})
    steps, seconds = by_time
    recorded = {int(steps[t]): seconds[t] for t in sorted(steps.keys() & seconds.keys())}
    told: dict[int, float] = dict(zip(case.log.steps.step.tolist(), case.log.steps.seconds.tolist(), strict=True))
    both = sorted(recorded.keys() & told.keys())
    if len(both) < _FEWEST:
        return None
    return sum(abs(recorded[s] - told[s]) <= max(0.0015, _ROUNDING * told[s]) for s in both) / len(both)
