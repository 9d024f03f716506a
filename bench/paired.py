"""On against off, in alternating blocks: which block is which, and the ratio with its interval."""

from __future__ import annotations

import numpy as np

_TRIM = 0.1  # of the pairs at either end: those in which the machine did something else
_RESAMPLES = 10_000


def is_on(block: int) -> bool:
    """On, off, off, on, and again: a drift of the machine falls on both sides alike."""
    return block % 4 in (0, 3)


def ratio_interval(on: list[float], off: list[float]) -> tuple[float, float, float]:
    """The typical on/off ratio of pairs and its 95 % interval (bootstrap of the trimmed mean of the logarithms)."""
    if len(on) != len(off) or len(on) < 2:
        raise ValueError("two pairs at least, each with both sides")
    logs = np.log(np.array(on) / np.array(off))
    rng = np.random.default_rng(1)
    drawn = trimmed_mean(logs[rng.integers(0, len(logs), (_RESAMPLES, len(logs)))])
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.exp(trimmed_mean(logs))), float(np.exp(low)), float(np.exp(high))


def trimmed_mean(values: np.ndarray) -> np.ndarray:
    """The mean along the last axis without the largest and smallest tenth."""
    cut = int(values.shape[-1] * _TRIM)
    return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)
