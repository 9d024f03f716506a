"""How the states that causes are follow from each other: one graph, kept as data, in place of lists in cause files."""

from __future__ import annotations

from dataclasses import dataclass
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
