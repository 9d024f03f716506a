"""How far a cause stands before the next best explanation: what deviates and follows from it, and what does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trackwalker.diagnose.causes.claims import Claim, explanation
from trackwalker.diagnose.causes.quantities import Graph
from trackwalker.diagnose.deviations.sweep import Deviation
from trackwalker.diagnose.deviations.unclassified import CAP, reasons


@dataclass(frozen=True)
class Margin:
    """Of all that could be the reason of the trouble: how clear is what the cause covers, and what it leaves over."""

    own: float  # the clearest deviation that follows from it on its hosts, of what makes nobody surer
    next_best: float  # the clearest that follows from no root
    covered: float  # share of these that follows from it

    @property
    def lead(self) -> float:
        """Own less next best."""
        return self.own - self.next_best


def margin_of(
    claim: Claim, others: Sequence[Claim], deviations: Sequence[Deviation], graph: Graph, machines: Mapping[str, str]
) -> Margin:
    """The margin of a cause beside other roots; of nothing that deviates nothing is left over or covered."""
    by_episode: dict[str, list[Deviation]] = {}
    for d in deviations:
        by_episode.setdefault(d.episode.name, []).append(d)
    mine, left = [0.0], [0.0]
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
