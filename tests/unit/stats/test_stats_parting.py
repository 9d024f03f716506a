"""Where two loss curves part."""

from __future__ import annotations

import numpy as np
import pytest

from trackwalker.diagnose.compare.loss_match import parting

STEPS = np.arange(140)
CURVE = 2.6 + 8.7 * np.exp(-STEPS / 60.0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("own_noise", [0.0, 0.001, 0.01])
def test_a_curve_that_leaves_its_twin(seed: int, own_noise: float) -> None:
    rng = np.random.default_rng(seed)
    data = rng.normal(0, 0.02, len(STEPS))  # the same batches in both
    a = np.round(CURVE + data + rng.normal(0, own_noise, len(STEPS)), 3)
    b = np.round(CURVE + data + rng.normal(0, own_noise, len(STEPS)), 3)
    assert parting(a, b) is None
    b[80:] += 0.25 * (1 - np.exp(-np.arange(60) / 12.0))
    found = parting(a, b)
    assert found is not None
    assert 80 <= found.at <= 80 + (3 if own_noise < 0.01 else 10)
    assert found.size == pytest.approx(0.25, abs=0.04)


def test_curves_of_two_seeds_were_never_one() -> None:
    rng = np.random.default_rng(1)
    a = CURVE + rng.normal(0, 0.05, len(STEPS))
    b = CURVE + rng.normal(0, 0.05, len(STEPS))
    assert parting(a, b) is None, "other batches, the same curve"
    found = parting(a, b + 0.6)
    assert found is not None
    assert found.at == 0


def test_drift_of_the_last_digits_is_no_parting() -> None:
    rng = np.random.default_rng(2)
    drift = np.cumsum(rng.normal(0, 0.0002, len(STEPS)))
    assert parting(np.round(CURVE, 3), np.round(CURVE + drift, 3)) is None


def test_an_excursion_that_returns_is_no_parting() -> None:
    b = CURVE.copy()
    b[60:75] += 0.4
    assert parting(CURVE, b) is None


def test_too_short_to_say() -> None:
    assert parting(CURVE[:12], CURVE[:12] + 1.0) is None
