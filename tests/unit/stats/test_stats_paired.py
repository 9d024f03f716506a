"""Paired differences: intervals that cover, and a detectable difference that is detected."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from trackwalker.stats.paired import Difference, mean_error, paired, unpaired

Floats = NDArray[np.float64]


def speeds(rng: np.random.Generator, n: int, level: float, spread: float, memory: float) -> Floats:
    noise, now = np.zeros(n), 0.0
    for i, shock in enumerate(rng.normal(0, spread * np.sqrt(1 - memory**2), n)):
        now = memory * now + shock
        noise[i] = now
    return level * np.exp(noise)


def pair(rng: np.random.Generator, n: int, change: float, memory: float = 0.5, spread: float = 0.01) -> Difference:
    found = paired(speeds(rng, n, 3295.0, spread, memory), speeds(rng, n, 3295.0 * (1 + change), spread, memory))
    assert found is not None
    return found


@pytest.mark.parametrize(("n", "memory"), [(20, 0.0), (40, 0.5), (150, 0.0), (150, 0.8)])
def test_the_interval_covers_the_truth(n: int, memory: float) -> None:
    rng = np.random.default_rng([n, round(10 * memory)])
    inside = 0
    for _ in range(100):
        low, high = pair(rng, n, -0.01, memory).interval()
        inside += low <= -0.01 <= high
    assert inside >= 88  # 95 % nominal; three standard errors of 100 trials allowed


def test_a_detectable_difference_is_detected_and_none_is_not() -> None:
    rng = np.random.default_rng(3)
    seen = false = 0
    for _ in range(100):
        none = pair(rng, 100, 0.0)
        false += none.differs()
        seen += pair(rng, 100, -none.detectable).differs()
    assert seen >= 80
    assert false <= 10


def test_one_per_cent_in_noise_of_one_per_cent_needs_a_few_hundred_steps() -> None:
    rng = np.random.default_rng(4)
    assert pair(rng, 40, 0.0).detectable > 0.008
    assert pair(rng, 600, 0.0).detectable < 0.005


def test_what_both_runs_share_step_by_step_cancels() -> None:
    rng = np.random.default_rng(5)
    common = np.exp(rng.normal(0, 0.05, 80))  # the data make some steps longer in both
    a, b = 3000.0 * common, 2970.0 * common * np.exp(rng.normal(0, 0.001, 80))
    by_step, by_level = paired(a, b), unpaired(a, rng.permutation(b))
    assert by_step is not None
    assert by_level is not None
    assert by_step.differs(0.99)
    assert by_step.change == pytest.approx(-0.01, abs=0.001)
    assert by_level.detectable > 10 * by_step.detectable


def test_a_phase_is_part_of_the_difference_not_of_its_noise() -> None:
    rng = np.random.default_rng(6)
    a, b = speeds(rng, 120, 3000.0, 0.004, 0.3), speeds(rng, 120, 3000.0, 0.004, 0.3)
    b[50:80] *= 0.8
    found = paired(a, b)
    assert found is not None
    assert [p.start for p in found.phases] == pytest.approx([0, 50, 80], abs=1)
    assert found.differs(0.99)
    assert found.change == pytest.approx(0.8**0.25 - 1, abs=0.004)


def test_equivalence_needs_an_interval_inside_the_margin() -> None:
    rng = np.random.default_rng(7)
    assert pair(rng, 400, 0.0, memory=0.2, spread=0.003).within(0.005)
    assert not pair(rng, 20, 0.0, memory=0.2, spread=0.02).within(0.005)


def test_too_few_or_unknown_steps_give_no_answer() -> None:
    short = np.full(8, 3000.0)
    assert paired(short, short) is None
    assert paired(np.full(40, np.nan), np.full(40, 3000.0)) is None
    assert unpaired(short, np.full(40, 3000.0)) is None


def test_exact_twins_have_no_error() -> None:
    same = np.linspace(3000, 3010, 50)
    found = paired(same, same)
    assert found is not None
    assert found.change == 0.0
    assert found.interval() == (0.0, 0.0)
    assert not found.differs()
    assert mean_error(np.zeros(20)) == (0.0, 19.0)
