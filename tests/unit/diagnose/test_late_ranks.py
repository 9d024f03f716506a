"""A rank that ends its steps late: told where nothing else tells, and not by clocks or chance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trackwalker.diagnose.deviations.levels import Late, late_rank
from trackwalker.diagnose.episodes.symptoms import Symptoms
from trackwalker.record.phases import Phase

FULL, SLOW, CHANGE, STEPS = 5.0, 6.0, 150, 300


class Recording:
    """Ranks whose two gauges are looked at every ten seconds, each at moments of its own."""

    def __init__(self, late: dict[int, float], noise: float = 0.02) -> None:
        rng = np.random.default_rng(3)
        took = np.where(np.arange(STEPS) < CHANGE, FULL, SLOW)
        ends = 1000.0 + np.cumsum(took)
        self.rows: dict[str, list[tuple[dict[str, str], Any, Any]]] = {}
        for rank in range(4):
            clock = 0.5 * rank  # clocks of hosts differ
            mine = ends + clock + noise * rng.standard_normal(STEPS)
            mine[CHANGE:] += late.get(rank, 0.0)
            looks = np.arange(1010.0 + 2.3 * rank, ends[-1], 10.0)
            last = np.searchsorted(mine - clock, looks) - 1
            looks, last = looks[last >= 0], last[last >= 0]
            labels = {"host": f"n{rank}", "rank": str(rank)}
            self.rows.setdefault("train_step", []).append((labels, looks, last.astype(float)))
            self.rows.setdefault("train_last_step_timestamp_seconds", []).append((labels, looks, mine[last]))

    def metrics(self) -> set[str]:
        return set(self.rows)

    def range(self) -> tuple[float, float]:
        return 1000.0, 4000.0

    def raw(self, metric: str, begin: float, end: float) -> list[tuple[dict[str, str], Any, Any]]:
        return self.rows[metric]


def found(late: dict[int, float], noise: float = 0.02) -> Late | None:
    case: Any = SimpleNamespace(telemetry=Recording(late, noise), trusted=["n0", "n1", "n2", "n3"], hosts=["n0"])
    phases = (
        Phase(5, CHANGE - 1, 1000.0, 1750.0, FULL, slow=False),
        Phase(CHANGE, STEPS - 1, 1750.0, 2650.0, SLOW, slow=True),
    )
    return late_rank(case, Symptoms(frozenset({"slow"}), None, phases))


def test_the_rank_that_all_others_wait_for_ends_late() -> None:
    late = found({2: 0.9})
    assert late is not None
    assert (late.host, late.rank) == ("n2", "2")
    assert late.during_s - late.before_s == pytest.approx(0.9, abs=0.1)


@pytest.mark.parametrize(
    ("late", "noise"),
    [
        ({}, 0.02),  # clocks alone
        ({2: 0.2}, 0.02),  # far less than the steps became longer
        ({1: 0.9, 2: 0.9}, 0.02),  # two: neither is the one
        ({2: 0.9}, 5.0),  # within chance
    ],
)
def test_who_may_not_be_the_one_is_not_named(late: dict[int, float], noise: float) -> None:
    assert found(late, noise) is None
