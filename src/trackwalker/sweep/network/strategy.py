"""The network sweep: which node or which link slows collectives down, found by groups in as few jobs as possible."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.sweep.model import Conclusion, Done, Result, Template, Trial
from trackwalker.sweep.network.book import Book, Group, Need, NothingRuns, Run, Seen
from trackwalker.sweep.network.design import Faults, cover
from trackwalker.sweep.network.report import Findings, conclude
from trackwalker.sweep.network.search import solve
from trackwalker.sweep.nodes.strategy import read_nodes

Search = Callable[[Book, int, int], Faults]  # what is known, how many nodes, the most faults to follow up

_MOST_CANCELLED = 3
_INTERVAL = 3.92  # widths of the standard error in a 95 % interval


def build(request: Mapping[str, Any]) -> NetworkSweep:
    """The strategy of a request; two nodes at least."""
    asked = read_nodes(request)
    if len(asked.nodes) < 2:
        raise UsageError("a network sweep needs at least two nodes, better eight: one node has no link to anybody")
    expect = request.get("expect")
    if expect is not None and not (isinstance(expect, int | float) and expect > 0):
        raise UsageError(f"expect={expect}: the tokens/s/device of a good day, a number above 0")
    return NetworkSweep(asked, None if expect is None else float(expect))


class NetworkSweep:
    """Screens groups, walks to the culprits, confirms them in pairs; pure, as every strategy."""

    kind = "network"

    def __init__(self, asked: Template, expect: float | None = None, search: Search = solve) -> None:
        self._asked, self._expect, self._search = asked, expect, search
        nodes = len(asked.nodes)
        self._most_faults = 3 if nodes < 32 else 4 if nodes < 128 else 6
        self._names = asked.nodes
        self._digests: dict[Group, str] = {}  # reckoned once for each group

    def next_trials(self, done: Done) -> list[Trial]:
        """The runs that the search waits for; none beyond what was announced."""
        wanted = self._replay(done)[1]
        trials = {trial.key: trial for trial in (self._trial(run, done) for run in wanted)}
        return list(trials.values())[: max(self.at_most() - len(done), 0)]

    def stop(self, done: Done) -> str:
        """Out of memory and cancelled jobs say nothing about a network."""
        if sum(result.status == "cancelled" for result in done.values()) >= _MOST_CANCELLED:
            return f"{_MOST_CANCELLED} jobs of this sweep were cancelled: start it again when nobody does that"
        starved = [result for result in done.values() if result.status == "oom"]
        if len(starved) > 1 and not any(result.ok for result in done.values()):
            return "jobs run out of memory, so nothing can be compared: take a smaller batch or another model"
        if len(done) >= len(cover(len(self._names))) and not any(result.ok for result in done.values()):
            return "not one group of nodes runs: no node or link differs from the others"
        return ""

    def at_most(self) -> int:
        """The cover, and for each fault that is followed up two walks, the pairs and repeats against noise."""
        nodes = len(self._names)
        if nodes < 4:
            return 4 * nodes
        return 10 + self._most_faults * (2 * math.ceil(math.log2(nodes)) + 9)

    def conclude(self, done: Done) -> Conclusion:
        """Bad nodes, bad links, or what they share; half-way what is known so far."""
        book, wanted, faults = self._replay(done)
        spent = len(done) >= self.at_most()
        findings = Findings(
            names=self._names,
            faults=faults,
            final=not wanted or spent or bool(self.stop(done)),
            cut_short=bool(wanted) and spent,
            done=done,
            groups={group: [self._key(group, n) for n in range(1, runs + 1)] for group, runs in book.asked.items()},
            slow={group: verdict[0] for group, verdict in book.verdicts.items()},
            noise=book.sigma(),
            most_faults=self._most_faults,
            expect=self._expect,
            stopped=self.stop(done),
        )
        return conclude(findings)

    def faults(self, done: Done) -> Faults:
        """What is named so far."""
        return self._replay(done)[2]

    def _replay(self, done: Done) -> tuple[Book, list[Run], Faults]:
        book = self._book(done)
        try:
            return book, [], self._search(book, len(self._names), self._most_faults)
        except Need as need:
            return book, need.runs, need.so_far if isinstance(need.so_far, Faults) else Faults()
        except NothingRuns:
            return book, [], Faults()

    def _book(self, done: Done) -> Book:
        cache: dict[Group, list[Seen]] = {}

        def look(group: Group) -> list[Seen]:
            if group not in cache:
                cache[group] = [_seen(result) for result in self._results(group, done) if result.status != "cancelled"]
            return cache[group]

        return Book(look)

    def _results(self, group: Group, done: Done) -> list[Result]:
        found: list[Result] = []
        while (key := self._key(group, len(found) + 1)) in done:
            found.append(done[key])
        return found

    def _trial(self, run: Run, done: Done) -> Trial:
        results = self._results(run.group, done)
        number = run.number + sum(result.status == "cancelled" for result in results)
        return self._asked.trial(self._key(run.group, number), run.why, nodes=self._members(run.group))

    def _key(self, group: Group, number: int) -> str:
        if group not in self._digests:
            members = self._members(group)
            digest = hashlib.sha256(",".join(members).encode()).hexdigest()[:10]
            self._digests[group] = "+".join(members) if len(group) <= 2 else f"{len(group)}-nodes-{digest}"
        return f"{self._digests[group]}#{number}"

    def _members(self, group: Group) -> tuple[str, ...]:
        return tuple(self._names[node] for node in group)


def _seen(result: Result) -> Seen:
    """The steady step time of a run; one that failed or hung has none."""
    if result.status != "ok":
        return Seen(None, 0.0)
    seconds = result.step_s or (1.0 / result.score if result.score else None)
    if seconds is None or seconds <= 0:
        return Seen(None, 0.0)
    known = result.low is not None and result.high is not None and 0 < result.low <= result.high
    within = math.log(result.high / result.low) / _INTERVAL if known and result.high and result.low else 0.0
    return Seen(math.log(seconds), within)
