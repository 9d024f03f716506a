"""How the states that causes are follow from each other: one graph, kept as data, in place of lists in cause files;
and the graph of the quantities that metrics measure.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from trackwalker.job.yaml_files import shipped

NAMED_ERROR, WAIT_TOLD = "named-error", "store-silent"  # what a line of the log makes of a class without a file


@dataclass(frozen=True)
class States:
    """The graph of states.yml."""

    told: dict[str, Any]

    def reaches(self, state: str) -> frozenset[str]:
        """Everything that can come of a state, and what it is called by others; not the state itself."""
        leads = self.told["leads"]
        seen, todo = {state}, [state]
        while todo:
            for effect in leads.get(todo.pop(), ()):
                if effect not in seen:
                    seen.add(effect)
                    todo.append(effect)
        return frozenset(seen).union(self.told["called"].get(state, ())) - {state}

    def unanswered(self, state: str) -> frozenset[str]:
        """What those who talk to a process that is gone, by this state, say of the path to it."""
        lost = self.told["unanswered"]
        return frozenset(s for gone in (state, *self.reaches(state)) for s in lost.get(gone, ()))

    def behind(self, state: str) -> frozenset[str]:
        """Everything that a state can have come of."""
        return frozenset(s for s in self.known if state in self.reaches(s))

    def leaves_open(self, state: str) -> frozenset[str]:
        """What is not sure while this state is only half proven."""
        named = self.told["leaves_open"].get(state)
        return self.reaches(state) if named is None else frozenset(named)

    def of(self, relation: str, state: str) -> frozenset[str]:
        """The right side of one of the other relations."""
        return frozenset(self.told[relation].get(state, ()))

    def within(self, group: str, state: str) -> bool:
        """Whether a state has one of the properties that are lists."""
        return state in self.told[group]

    def cause(self, state: str) -> str:
        """The cause of a state that is reckoned from the steps, and tested by no cause file."""
        return str(self.told["reckoned"][state])

    def of_log(self, *names: str) -> str:
        """The state of a failure that only logs tell of, by its signature or its class."""
        return str(next((s for n in names if (s := self.told["told_by_logs"].get(n))), NAMED_ERROR))

    @property
    def known(self) -> frozenset[str]:
        """Every state that is mentioned."""
        relations = ("leads", "called", "overshadowed", "overshadowed_where_nobody_is_named", "echoes", "leaves_open")
        return frozenset(s for r in relations for k, v in self.told[r].items() for s in (k, *v))


@cache
def states() -> States:
    """The shipped graph."""
    return States(shipped("diagnose", "states.yml"))


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
