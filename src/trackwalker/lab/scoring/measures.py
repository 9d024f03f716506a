"""The numbers of a scoreboard: shares with intervals, each over the cases it can be asked of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from trackwalker.lab.scoring.results import CaseResult

_Z = 1.959963984540054  # 95 %
ONSET_STEPS = 5


@dataclass(frozen=True)
class Share:
    """So many out of so many."""

    right: int
    of: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval: honest for few cases, and at 0 and 1."""
        if self.of == 0:
            return (0.0, 1.0)
        p, n = self.right / self.of, self.of
        centre = (p + _Z * _Z / (2 * n)) / (1 + _Z * _Z / n)
        half = _Z / (1 + _Z * _Z / n) * math.sqrt(p * (1 - p) / n + _Z * _Z / (4 * n * n))
        return (max(0.0, centre - half), min(1.0, centre + half))

    def __str__(self) -> str:
        if self.of == 0:
            return "-"
        low, high = self.interval
        return f"{self.right}/{self.of} ({100 * low:.0f}-{100 * high:.0f} %)"


@dataclass(frozen=True)
class Measure:
    """One row of the totals."""

    name: str
    asked: Callable[[CaseResult], bool]
    holds: Callable[[CaseResult], bool]
    fewer_is_better: bool = False

    def of(self, cases: list[CaseResult]) -> Share:
        """The share among the cases that the question can be asked of."""
        asked = [c for c in cases if self.asked(c)]
        return Share(sum(map(self.holds, asked)), len(asked))


def _quiet(case: CaseResult) -> bool:
    return case.truth.outcome in ("healthy", "expected")


def _accuses(case: CaseResult) -> bool:
    true = {h for root in case.truth.roots for h in root.hosts}
    return case.grade.said_outcome == "incident" or bool(set(case.grade.accused) - true)


PASSED = Measure("right in everything", lambda c: True, lambda c: c.passed)
MEASURES = [
    PASSED,
    Measure("root cause", lambda c: bool(c.truth.roots), lambda c: c.grade.outcome and c.grade.roots),
    Measure("culprit hosts exact", lambda c: any(r.hosts for r in c.truth.roots), lambda c: c.grade.hosts),
    Measure(
        "GPUs and devices named", lambda c: any(r.gpus or r.devices for r in c.truth.roots), lambda c: c.grade.devices
    ),
    Measure("status", lambda c: bool(c.truth.status), lambda c: c.grade.status),
    Measure(
        f"onset within {ONSET_STEPS} steps",
        lambda c: c.truth.onset_step is not None,
        lambda c: c.grade.onset_error_steps is not None and c.grade.onset_error_steps <= ONSET_STEPS,
    ),
    Measure(
        "correct abstention",
        lambda c: c.truth.outcome == "insufficient-evidence",
        lambda c: c.grade.outcome and c.grade.roots,
    ),
    Measure("same verdict twice", lambda c: c.same_again is not None, lambda c: bool(c.same_again)),
    Measure("forbidden conclusions", lambda c: True, lambda c: bool(c.grade.forbidden), True),
    Measure("false accusations on healthy or expected", _quiet, _accuses, True),
    Measure(
        "abstained where it could be decided",
        lambda c: c.truth.outcome != "insufficient-evidence" and not c.truth.or_abstain,
        lambda c: c.grade.said_outcome == "insufficient-evidence",
        True,
    ),
    Measure("claims or actions without ground", lambda c: True, lambda c: bool(c.grade.ungrounded), True),
    Measure("no verdict", lambda c: True, lambda c: bool(c.error), True),
]


def seconds(cases: list[CaseResult]) -> tuple[float, float]:
    """Median and slowest."""
    times = sorted(c.seconds for c in cases)
    return (times[len(times) // 2], times[-1]) if times else (0.0, 0.0)


def families_right(cases: list[CaseResult]) -> Share:
    """Families of which every case passed: seeds of a family are no independent witnesses."""
    by: dict[str, bool] = {}
    for case in cases:
        by[case.family] = by.get(case.family, True) and case.passed
    return Share(sum(by.values()), len(by))
