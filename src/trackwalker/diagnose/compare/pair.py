"""Two jobs seen from the difference between them: the slower one, what was measured of both, what was not."""

from __future__ import annotations

from dataclasses import dataclass

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.causes.states import states
from trackwalker.diagnose.compare import deltas as measured
from trackwalker.diagnose.compare.aligned import Aligned, percent
from trackwalker.diagnose.compare.config_diff import Change, shared_hosts
from trackwalker.diagnose.compare.deltas import Delta
from trackwalker.diagnose.facts.restore_leak import restored_single_replica
from trackwalker.diagnose.verdict import Magnitude, RuledOut, Untestable, Verdict


@dataclass(frozen=True)
class Pair:
    """Both jobs with all that was found out about them."""

    a: Case
    b: Case
    own_a: Verdict
    own_b: Verdict
    aligned: Aligned
    changes: list[Change]
    deltas: list[Delta]
    book: EvidenceBook

    @property
    def slower_is_b(self) -> bool:
        """Whether B is the slower one."""
        return self.aligned.difference.change < 0

    @property
    def slow(self) -> Case:
        """The slower job."""
        return self.b if self.slower_is_b else self.a

    @property
    def fast(self) -> Case:
        """The faster job."""
        return self.a if self.slower_is_b else self.b

    @property
    def word(self) -> str:
        """What the slower job is called."""
        return "B" if self.slower_is_b else "A"

    @property
    def speed_words(self) -> str:
        """Both speeds and their difference, in words."""
        found, (low, high) = self.aligned, self.aligned.difference.interval()
        how = f"over {len(found.steps_b)} common steps" if found.in_common else "although no steps are common"
        return (
            f"B ({self.b.job.id}) runs at {found.level_b:g} {found.unit}, A ({self.a.job.id}) at {found.level_a:g} "
            f"{how} ({percent(found.difference.change)}, 95 % interval {percent(low)} to {percent(high)})"
        )

    @property
    def magnitude(self) -> Magnitude:
        """The difference as a verdict tells it."""
        found = self.aligned
        change = round(found.difference.change, 4)
        return Magnitude(of=found.of, **{"from": found.level_a, "to": found.level_b}, change=change)

    @property
    def confounded(self) -> str:
        """What to say when the two ran on other machines."""
        if not any(c.effect == "nodes" for c in self.changes):
            return ""
        shared = len(shared_hosts(self.a, self.b))
        return f"The two ran on different nodes ({shared} of {len(self.b.hosts)} in common)"


def clean(pair: Pair, found: set[str]) -> list[RuledOut]:
    """Causes whose families were measured in both jobs and are no worse in the slower one."""
    by_cause: dict[str, list[Delta]] = {}
    for d in pair.deltas:
        for cause in {d.family.cause, d.family.common_cause} - {None}:
            by_cause.setdefault(str(cause), []).append(d)
    out = []
    for cause, asked in sorted(by_cause.items()):
        worse = any(d.worse(pair.slower_is_b) or (d.worse_b if pair.slower_is_b else d.worse_a) for d in asked)
        if cause not in found and not worse:
            out.append(RuledOut(cause=cause, evidence=[e for d in asked for e in d.evidence]))
    tasks = next((d for d in pair.deltas if d.metric == "hw_procs_running"), None)
    leak = states().cause("threads-left")
    if tasks is not None and leak not in found and not (tasks.uniform and tasks.worse(pair.slower_is_b)):
        out.append(RuledOut(cause=leak, evidence=list(tasks.evidence)))
    return out


def not_collected(pair: Pair) -> list[Untestable]:
    """Causes that nothing recorded in both jobs speaks about."""
    measurable = {d.family.cause for d in pair.deltas} | {d.family.common_cause for d in pair.deltas}
    wanted: dict[str, list[str]] = {}
    for f in measured.missing(pair.a, pair.b):
        for cause in sorted({f.cause, f.common_cause} - {None} - measurable, key=str):
            wanted.setdefault(str(cause), []).append(f.metrics[0])
    if restored_single_replica(pair.slow) and not any(d.metric == "hw_procs_running" for d in pair.deltas):
        wanted[states().cause("threads-left")] = ["hw_procs_running"]
    return [Untestable(cause=c, missing=m) for c, m in sorted(wanted.items())]
