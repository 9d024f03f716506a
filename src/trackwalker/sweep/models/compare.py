"""Two columns of a model sweep against each other: what became slower, what broke, and what is only noise.

The noise that counts is between runs: the same code on the same nodes, started again. One run says nothing about it,
so it begins as an assumption and is replaced by what repeated runs show. Upstream calls a change within 2 % none and
one beyond -5 % a regression, and leaves the rest open. Here what is open is run again until its interval leaves zero
out, or the runs are used up: then it is within the noise, and the report says how small a change would have been seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from trackwalker.stats.paired import Difference
from trackwalker.sweep.model import Result

SAME = 0.02  # a change that nobody acts upon
# Before anything is repeated: runs of one code on pinned nodes differ by 0.3 to 1 %, so four runs' worth of 1 %.
_ASSUMED, _ASSUMED_FREEDOM = 0.01, 4.0
_HALF_WIDTH = 1.96  # of a 95 % interval in standard errors

Word = Literal[
    "no change", "regression", "faster", "within noise", "undecided",
    "breakage", "pre-existing", "fixed", "new", "open",
]  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One run of a model: its score, or why it has none."""

    status: str
    job: str = ""
    score: float | None = None
    low: float | None = None
    high: float | None = None
    mfu: float | None = None
    why: str = ""

    @classmethod
    def of(cls, result: Result) -> Run:
        """What a sweep remembers of a result."""
        mine = (result.score, result.low, result.high) if result.ok else (None, None, None)
        return cls(result.status, result.job, *mine, result.mfu, result.why)

    @property
    def failed(self) -> bool:
        """Whether it says something against the code: a run that somebody cancelled does not."""
        return self.score is None and self.status != "cancelled"

    @property
    def within(self) -> float:
        """Standard error of its score, relative, by the steps of this run alone."""
        if self.score is None or self.low is None or self.high is None or not self.score:
            return 0.0
        return (self.high - self.low) / 2 / _HALF_WIDTH / self.score


@dataclass(frozen=True)
class Column:
    """One commit as one sweep measured it: the runs of every model and node count."""

    name: str
    sha: str = ""  # empty: the code was no commit
    subject: str = ""
    sweep: str = ""  # id of an earlier sweep; empty: this one
    cells: Mapping[str, tuple[Run, ...]] = field(default_factory=dict)  # by Size.name

    @property
    def label(self) -> str:
        """The name, with its sweep where that was an earlier one: a commit may be measured twice."""
        return f"{self.name} ({self.sweep})" if self.sweep else self.name

    def runs(self, size: str) -> tuple[Run, ...]:
        """All runs of a model at a node count."""
        return self.cells.get(size, ())

    def scores(self, size: str) -> list[float]:
        """Scores of the runs that came to one."""
        return [run.score for run in self.runs(size) if run.score is not None]

    def passed(self, size: str) -> bool | None:
        """Whether the model runs; None while nobody knows."""
        if self.scores(size):
            return True
        return False if any(run.failed for run in self.runs(size)) else None

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Column:
        """Back from a plan."""
        cells = {str(size): tuple(Run(**run) for run in runs) for size, runs in said["cells"].items()}
        return cls(said["name"], said["sha"], said["subject"], said["sweep"], cells)


@dataclass(frozen=True)
class Noise:
    """How much runs of the same code differ, relative, and how well that is known."""

    sigma: float
    freedom: float
    repeats: int  # runs beyond the first of their kind that it was learnt from

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "sigma": round(self.sigma, 6) if self.repeats else None,
            "freedom": self.freedom,
            "repeats": self.repeats,
        }


def noise_between_runs(columns: Iterable[Column]) -> Noise:
    """The spread of repeated runs, pooled over models; the assumption counts as much as four repetitions."""
    alike: dict[tuple[str, str], list[float]] = {}
    for place, column in enumerate(columns):
        for size in column.cells:
            # The same commit in an earlier sweep is a repetition, too.
            alike.setdefault((column.sha or f"column {place}", size), []).extend(column.scores(size))
    squares, repeats = 0.0, 0
    for scores in alike.values():
        if len(scores) > 1:
            logs = np.log(scores)
            squares += float(((logs - logs.mean()) ** 2).sum())
            repeats += len(scores) - 1
    freedom = _ASSUMED_FREEDOM + repeats
    return Noise(float(np.sqrt((_ASSUMED_FREEDOM * _ASSUMED**2 + squares) / freedom)), freedom, repeats)


def difference(before: Column, now: Column, size: str, noise: Noise) -> Difference | None:
    """How much faster or slower; None unless both came to a score."""
    sides = []
    for column in (before, now):
        good = [run for run in column.runs(size) if run.score is not None]
        if not good:
            return None
        each = float(np.mean([max(noise.sigma, run.within) ** 2 for run in good]))
        sides.append((float(np.log([run.score or 1.0 for run in good]).mean()), each / len(good), len(good)))
    (a, variance_a, runs_a), (b, variance_b, runs_b) = sides
    return Difference(b - a, float(np.sqrt(variance_a + variance_b)), noise.freedom, min(runs_a, runs_b))


@dataclass(frozen=True)
class Verdict:
    """What a column says about a model at a node count, against the last column that knows of it."""

    size: str
    column: str
    word: Word
    before: str = ""
    difference: Difference | None = None

    @property
    def model(self) -> str:
        """The model without the node count."""
        return self.size.rpartition("/")[0]

    def percent(self) -> str:
        """The change with its interval, as tables say it."""
        if self.difference is None:
            return ""
        low, high = self.difference.interval()
        return f"{self.difference.change:+.1%} ({low:+.1%} to {high:+.1%})"

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        change = None if self.difference is None else round(self.difference.change, 5)
        low, high = (None, None) if self.difference is None else self.difference.interval()
        seen = None if self.difference is None else round(self.difference.detectable, 5)
        return {
            "size": self.size, "commit": self.column, "before": self.before, "verdict": self.word, "change": change,
            "low": low, "high": high, "detectable": seen,
        }  # fmt: skip


def judge(columns: Sequence[Column], at: int, size: str, noise: Noise, *, last_word: bool) -> Verdict:
    """A column against the nearest earlier one that knows of the model; undecided only while more runs may come."""
    now = columns[at]
    passed = now.passed(size)
    if passed is None:
        return Verdict(size, now.name, "open")
    before = next((column for column in reversed(columns[:at]) if column.passed(size) is not None), None)
    if before is None:
        return Verdict(size, now.name, "new")
    if not passed:
        return Verdict(size, now.name, "breakage" if before.passed(size) else "pre-existing", before.label)
    apart = difference(before, now, size, noise)
    if apart is None:
        return Verdict(size, now.name, "fixed", before.label)
    word: Word = "within noise" if last_word else "undecided"
    if abs(apart.change) <= SAME:
        word = "no change"
    elif apart.differs():
        word = "regression" if apart.change < 0 else "faster"
    return Verdict(size, now.name, word, before.label, apart)
