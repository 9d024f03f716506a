"""How far a cause stands before the next best explanation: what deviates and follows from it, and what does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trackwalker.diagnose.causes.claims import Claim, explanation
from trackwalker.diagnose.causes.examine import Examination
from trackwalker.diagnose.causes.quantities import Graph
from trackwalker.diagnose.deviations.sweep import Deviation
from trackwalker.diagnose.deviations.unclassified import CAP, reasons
from trackwalker.logs.failures.findings import Finding

_AFTERMATH = ("consequence", "mechanism", "note")


@dataclass(frozen=True)
class Margin:
    """Of all that could be the reason of the trouble: how clear is what the cause covers, and what it leaves over."""

    own: float  # the clearest deviation that follows from it on its hosts, of what makes nobody surer
    next_best: float  # the clearest that follows from no root
    covered: float  # share of these that follows from it

    @property
    def lead(self) -> float | None:
        """Own less next best; None where nothing deviates: then nothing is a better explanation, nor this one."""
        return round(self.own - self.next_best, 3) if self.own or self.next_best else None


def told_by_log(cause: Examination, findings: Sequence[Finding]) -> tuple[float, float]:
    """What the log says for a cause that only it names, and for the next best one that it names: 1 is its first word.

    A failure class that follows from the first is no rival; one of as high a tier is as good as it.
    """
    mine = min((f.tier for f in findings if f.cause == cause.playbook.id), default=None)
    if mine is None or not cause.log_only or cause.log_role:
        return 0.0, 0.0
    rivals = [f for f in findings if f.cause != cause.playbook.id and f.role not in _AFTERMATH and f.text]
    return 1.0, max((1.0 / (1.0 + max(0, f.tier - mine)) for f in rivals), default=0.0)


def margin_of(
    claim: Claim, others: Sequence[Claim], deviations: Sequence[Deviation], graph: Graph, machines: Mapping[str, str],
    logs: tuple[float, float] = (0.0, 0.0),
) -> Margin:  # fmt: skip
    """The margin of a cause beside other roots, by what deviates and by what `logs` say for it and for another."""
    by_episode: dict[str, list[Deviation]] = {}
    for d in deviations:
        by_episode.setdefault(d.episode.name, []).append(d)
    mine, left = [logs[0]], [logs[1]]
    for held in by_episode.values():
        for members, strength in reasons(held, graph):
            if all(claim.covers(d, graph, machines) for d in members):
                mine.append(strength / CAP)
            elif explanation(members[0], others, graph, machines) is None:
                left.append(strength / CAP)
        seen = [d for d in held if d.meaning.quantity in claim.quantities and d.meaning.worse(d.kind)]
        mine += [min(d.score, CAP) / CAP for d in seen if (d.host in claim.hosts if claim.hosts else d.fleet)]
    total = sum(mine) + sum(left)
    return Margin(max(mine), max(left), sum(mine) / total if total else 0.0)
