"""The causal graph over quantities: what can be a consequence of what, kept as data."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache

from trackwalker.job.yaml_files import shipped


@dataclass(frozen=True)
class Graph:
    """Arrows between quantities: on the same host, and to the hosts that work with it."""

    here: dict[str, frozenset[str]]
    there: dict[str, frozenset[str]]
    waiting: frozenset[str]  # what changes on all hosts that wait for a slow one
    for_others: frozenset[str]  # the wait for the slow one itself
    shared: frozenset[str]  # what belongs to no host when it shows on all ports of several
    idle: frozenset[str]  # what falls where devices have nothing to do
    late_batches: frozenset[str]  # what goes with late data
    alive: frozenset[str]  # that a process is there
    held: frozenset[str]  # what setting up takes and gives back
    saving: frozenset[str]  # what a save begins with
    alike: frozenset[str]  # whose level is the same on all hosts by construction
    wired: frozenset[str]  # whose links nobody leaves unplugged
    lost_time: frozenset[str]  # whose level is a loss by itself
    delays: frozenset[str]  # what each message or file takes
    never_the_reason: frozenset[str]

    def follows(self, *quantities: str, idling: bool = True) -> frozenset[str]:
        """Everything that a change of these can move on their own host, themselves included.

        Without `idling` not by way of devices that have nothing to do: those lower what they move, and raise nothing.
        """
        seen = set(quantities)
        todo = list(quantities)
        while todo:
            if (cause := todo.pop()) in self.idle and not idling:
                continue
            for effect in self.here.get(cause, ()):
                if effect not in seen:
                    seen.add(effect)
                    todo.append(effect)
        return frozenset(seen)

    def echoes(self, *quantities: str) -> frozenset[str]:
        """What they move on hosts that work with theirs, beyond waiting."""
        return self.follows(*(e for q in quantities for e in self.there.get(q, ())))

    def spreads(self, *quantities: str) -> frozenset[str]:
        """What they can move on other hosts."""
        return self.waiting.union(*(self.there.get(q, frozenset()) for q in quantities))


@cache
def graph() -> Graph:
    """The shipped graph."""
    told = shipped("diagnose", "quantities.yml")
    here, there = ({q: frozenset(effects) for q, effects in told[way].items()} for way in ("here", "there"))
    return Graph(here, there, *(frozenset(told[f.name]) for f in fields(Graph)[2:]))
