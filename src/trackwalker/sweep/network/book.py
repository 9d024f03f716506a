"""What a network sweep knows of its groups so far, and what it still has to measure.

The search is written as if every measurement were there at once. A measurement that is missing ends it by `Need`; when
it has arrived the search runs again from its beginning and comes one step further. Nothing is remembered between two
such replays, so a killed sweep goes on as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from trackwalker.stats.groups import between_runs, fast_ones, odds

Group = tuple[int, ...]  # places of nodes in the node list, ascending
T = TypeVar("T")

SEARCH = 3.5  # log odds (33 : 1) at which a step of the search goes on
ACCUSE = 5.5  # log odds (245 : 1) for each of the runs that an accusation rests on
MOST_RUNS = 4  # of one group
APART = 4.0  # standard deviations between two runs of one group
_FAILED = 0.7  # a run that failed or hung counts as one that took twice as long


class Seen(NamedTuple):
    """One run of a group; without a time when it failed."""

    log_s: float | None
    within: float  # standard error of the log time within the run


class Run(NamedTuple):
    """A run that is wanted."""

    group: Group
    number: int
    why: str


class Need(Exception):
    """The search cannot go on before these runs are done."""

    def __init__(self, runs: Iterable[Run]) -> None:
        super().__init__()
        self.runs = list(runs)
        self.so_far: object = None  # what the search had named by then


class NothingRuns(Exception):
    """Not one of the groups could be measured."""


class _Yardstick(NamedTuple):
    level: float
    variance: float
    runs: int
    weakest: Group  # of its groups the one with the fewest runs


@dataclass
class Book:
    """Runs asked for so far in this replay, and what was made of them."""

    look: Callable[[Group], Sequence[Seen]]  # the runs of a group that are done
    asked: dict[Group, int] = field(default_factory=dict)  # runs of each group
    verdicts: dict[Group, tuple[bool, int, float]] = field(default_factory=dict)  # slow, by so many runs, so sure
    clean: dict[int, list[Group]] = field(default_factory=dict)  # by size: the yardsticks

    def ask(self, runs: Iterable[Run]) -> None:
        """Take these runs into account; what has not run yet is needed."""
        missing: list[Run] = []
        for run in runs:
            done = len(self.look(run.group))
            missing += [run._replace(number=number) for number in range(done + 1, run.number + 1)]
            self.asked[run.group] = max(self.asked.get(run.group, 0), run.number)
        if missing:
            raise Need(missing)

    def times(self, group: Group) -> list[float | None]:
        """Log times of the runs of a group; None for one that failed."""
        return [seen.log_s for seen in self.look(group)[: self.asked.get(group, 0)]]

    def screen(self, groups: Sequence[Group], why: str, sure: float = SEARCH) -> list[Group]:
        """Those of the groups of one size that are slow; where the size has no yardstick, the fast ones become it."""
        self.ask(Run(group, 1, why) for group in groups)
        size = len(groups[0])
        if not self.clean.get(size):
            first = [(group, self.times(group)[0]) for group in groups]
            levels = {at: time for at, (_, time) in enumerate(first) if time is not None}
            if not levels:
                raise NothingRuns
            self.clean[size] = [groups[at] for at in fast_ones(levels)]
        tasks = [partial(Book.is_slow, group=group, why=why, sure=sure) for group in groups]
        slow = gather(self, tasks)
        if self._settle(size):
            slow = gather(self, tasks)
        return [group for group, s in zip(groups, slow, strict=True) if s]

    def is_slow(self, group: Group, why: str, runs: int = 1, sure: float = SEARCH) -> bool:
        """Whether a fault is in the group: run again until that is likely enough either way."""
        slow, known_runs, known_sure = self.verdicts.get(group, (False, 0, 0.0))
        if known_runs >= runs and known_sure >= sure:
            return slow
        runs = max(runs, self.asked.get(group, 1))
        self.ask([Run(group, runs, why)])
        while True:
            sigma = self.sigma()
            yard = self._yardstick(len(group), group, sigma)
            if yard is None:  # nothing else of this size is clean: the fastest is the yardstick itself
                slow = self.times(group)[0] is None
                break
            level, variance = self._level(group, yard.level, sigma)
            weight = odds(level - yard.level, variance + yard.variance)
            slow = weight > 0 if sure < ACCUSE else weight >= sure  # in doubt nobody is accused
            if (abs(weight) >= sure and not self._disagree(group, yard.level, sigma)) or runs >= MOST_RUNS:
                break
            runs += 1
            more = [Run(group, runs, f"{why}; too close to call, once more")]
            if yard.runs < runs:
                more.append(Run(yard.weakest, self.asked[yard.weakest] + 1, "its yardstick, once more"))
            self.ask(more)
        self.verdicts[group] = (slow, runs, sure)
        others = [g for g in self.clean.get(len(group), []) if g != group]
        self.clean[len(group)] = others if slow else [*others, group]
        if not slow and yard is not None and odds(yard.level - level, variance + yard.variance) >= sure:
            self._settle(len(group))  # clearly faster than its yardstick
        return slow

    def good(self) -> set[int]:
        """Nodes that were in a clean group: none of them is at fault by itself."""
        return {node for groups in self.clean.values() for group in groups for node in group}

    def fork(self) -> Book:
        """A copy for a search beside others, so that none depends on how far the others are."""
        clean = {size: list(groups) for size, groups in self.clean.items()}
        return Book(self.look, dict(self.asked), dict(self.verdicts), clean)

    def join(self, forks: Sequence[Book]) -> None:
        """Take over what the searches beside each other found out."""
        before = {group for groups in self.clean.values() for group in groups}
        judged = set(self.verdicts)
        for fork in forks:
            for group, runs in fork.asked.items():
                self.asked[group] = max(self.asked.get(group, 0), runs)
            for size, groups in fork.clean.items():
                mine = self.clean.setdefault(size, [])
                mine += [group for group in groups if group not in mine]
            self.verdicts |= fork.verdicts
        for fork in forks:  # what one of them no longer trusts is not trusted
            for group in judged - set(fork.verdicts):
                self.verdicts.pop(group, None)
            for group in before - {g for groups in fork.clean.values() for g in groups}:
                self.clean[len(group)] = [g for g in self.clean[len(group)] if g != group]

    def sigma(self) -> float:
        """Noise between runs as they show it: repeats of one group, and clean groups of one size.

        A slow group's repeats do not count: a link that loses packets is as fast as luck will have it.
        """
        slow = {group for group, (is_slow, _, _) in self.verdicts.items() if is_slow}
        again = [group for group, runs in self.asked.items() if runs > 1 and group not in slow]
        repeats = [[t for t in self.times(group) if t is not None] for group in again]
        firsts = [[self.times(group)[0] for group in groups if group in self.asked] for groups in self.clean.values()]
        return between_runs([*repeats, *([t for t in times if t is not None] for times in firsts)])

    def _level(self, group: Group, yard: float, sigma: float) -> tuple[float, float]:
        """Log time of a group and its variance; from three runs on one disturbed run does not count."""
        times = [yard + _FAILED if t is None else t for t in self.times(group)]
        return _middle(times), (sigma**2 + self._within(group) ** 2) / len(times)

    def _disagree(self, group: Group, yard: float, sigma: float) -> bool:
        """Two runs so far apart that one of them was disturbed: a third one decides."""
        times = [yard + _FAILED if t is None else t for t in self.times(group)]
        return len(times) == 2 and abs(times[0] - times[1]) > APART * sigma

    def _within(self, group: Group) -> float:
        return self.look(group)[0].within

    def _yardstick(self, size: int, but: Group, sigma: float) -> _Yardstick | None:
        known = [g for g in self.clean.get(size, []) if g != but and any(t is not None for t in self.times(g))]
        if not known:
            return None
        levels = [(self._mean(group), self.asked[group]) for group in known]
        runs = sum(count for _, count in levels)
        level = sum(value * count for value, count in levels) / runs
        variance = (sigma**2 + self._within(known[0]) ** 2) / runs
        return _Yardstick(level, variance, runs, min(known, key=lambda g: (self.asked[g], g)))

    def _settle(self, size: int) -> bool:
        """Whether some clean groups are slower than the fast ones of them: those had a fault, and are judged anew."""
        groups = self.clean.get(size, [])
        levels = dict(enumerate(self._mean(group) for group in groups))
        fast = fast_ones(levels)
        level = sum(levels[at] for at in fast) / max(len(fast), 1)
        variance = self.sigma() ** 2
        doubted = [
            group
            for at, group in enumerate(groups)
            if at not in fast and odds(levels[at] - level, variance * (1.0 / self.asked[group] + 1.0 / len(fast))) > 0
        ]
        for group in doubted:
            self.verdicts.pop(group, None)
        self.clean[size] = [group for group in groups if group not in doubted]
        return bool(doubted)

    def _mean(self, group: Group) -> float:
        times = [t for t in self.times(group) if t is not None]
        return _middle(times)


def _middle(times: Sequence[float]) -> float:
    """The mean of two; of more the (lower) median, since what disturbs a run slows it down."""
    return sorted(times)[(len(times) - 1) // 2] if len(times) > 2 else sum(times) / max(len(times), 1)


def gather(book: Book, searches: Sequence[Callable[[Book], T]]) -> list[T]:
    """Run searches beside each other: the runs they all wait for are wanted at once."""
    found, forks, needs = [], [], []
    for search in searches:
        fork = book.fork()
        try:
            found.append(search(fork))
            forks.append(fork)
        except Need as need:
            needs += need.runs
    if needs:
        raise Need(needs)
    book.join(forks)
    return found
