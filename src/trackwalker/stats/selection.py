"""Choosing among many settings without being fooled by luck: drift, noise between runs, effects, shrinkage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from trackwalker.stats.paired import student
from trackwalker.stats.segments import Floats

USUAL = 0.007  # spread of runs with the same settings on the same nodes, until runs tell better
_USUAL_FREEDOM = 3.0  # so many runs this prior is worth
_LEAST = 0.001
_MAD = 1.4826
_STRAY = 2.5  # standard deviations: what lies further out counts as if it lay there
_CLIPPED = 1.03  # what that, and a level made from the same runs, take from the spread of normal noise
_CLIPPED_WORTH = 0.85  # of a standard deviation's degrees of freedom
_CLIP = 2.0  # Huber's: residuals beyond so many standard deviations pull no harder
_UNLIKE = 1.4  # so much wider than the noise known before: another noise
_ROUNDS = 50


@dataclass(frozen=True)
class Noise:
    """How far runs with the same settings lie apart, as a share, and how many degrees of freedom say so."""

    sd: float
    freedom: float


@dataclass(frozen=True)
class Contrast:
    """One setting against another: the mean difference of the logarithms, its error, and the runs behind it."""

    logs: float
    error: float
    freedom: float
    runs: int

    @property
    def change(self) -> float:
        """Relative: 0.03 is three per cent faster."""
        return float(np.expm1(self.logs))

    def bounds(self, alpha: float) -> tuple[float, float]:
        """Below the first, or above the second, the true change lies with a probability of alpha each."""
        half = self.error * student(1.0 - alpha, self.freedom)
        return float(np.expm1(self.logs - half)), float(np.expm1(self.logs + half))


def local_level(values: Floats, half: int = 7) -> Floats:
    """What a typical run made around each position: the median of its neighbours, so that slow drift is no effect."""
    x = np.asarray(values, float)
    out = np.full(len(x), np.nan)
    for at in range(len(x)):
        near = x[max(0, at - half) : at + half + 1]
        near = near[np.isfinite(near)]
        out[at] = np.median(near) if len(near) else np.nan
    return out


def run_noise(deviations: Floats) -> Noise:
    """The spread of runs from their deviations, most of which are nothing but noise; a few large ones count little."""
    x = np.asarray(deviations, float)
    x = x[np.isfinite(x)] - np.median(x[np.isfinite(x)]) if np.isfinite(x).any() else np.zeros(0)
    if len(x) < 3:
        return Noise(USUAL, _USUAL_FREEDOM)
    limit = _STRAY * _MAD * float(np.median(np.abs(x)))
    clipped = np.clip(x, -limit, limit)
    measured = _CLIPPED * float(np.sqrt((clipped @ clipped) / (len(x) - 1)))
    return pooled(Noise(USUAL, _USUAL_FREEDOM), Noise(measured, _CLIPPED_WORTH * (len(x) - 1)))


def repeat_noise(groups: Sequence[Floats]) -> Noise:
    """The spread of runs from repetitions of the same setting."""
    squares = sum(float(((g - g.mean()) ** 2).sum()) for g in groups if len(g) > 1)
    freedom = float(sum(len(g) - 1 for g in groups if len(g) > 1))
    measured = Noise(float(np.sqrt(squares / freedom)) if freedom else 0.0, freedom)
    return pooled(Noise(USUAL, _USUAL_FREEDOM), measured)


def pooled(*each: Noise) -> Noise:
    """Several estimates of the same spread as one."""
    freedom = sum(n.freedom for n in each)
    squares = sum(n.freedom * n.sd**2 for n in each)
    return Noise(max(float(np.sqrt(squares / freedom)) if freedom else USUAL, _LEAST), freedom)


def contrasts(
    blocks: Sequence[int], arms: Sequence[str], logs: Sequence[float], against: str, noise: Noise
) -> dict[str, Contrast]:
    """Every arm against one of them: blocks of runs close in time have a level of their own, strays are held back.

    A model with an effect for each block and each arm, fitted as Huber does: one run that a neighbour's job slowed down
    may not decide. The error pools these runs' own spread with the noise known before.
    """
    y = np.asarray(logs, float)
    others = sorted(set(arms) - {against})
    known = sorted(set(blocks))
    if against not in arms or not others:
        return {}
    x = np.zeros((len(y), len(known) + len(others)))
    for row, (block, arm) in enumerate(zip(blocks, arms, strict=True)):
        x[row, known.index(block)] = 1.0
        if arm != against:
            x[row, len(known) + others.index(arm)] = 1.0
    _, rest = _huber(x, y, _CLIP * noise.sd)
    scale = max(noise.sd, _own_scale(rest, x.shape[1]))  # what was known before may be far too small here
    beta, rest = _huber(x, y, _CLIP * scale)
    variance, freedom = _variance(rest, x.shape[1], _CLIP * scale, noise)
    spread = np.linalg.pinv(x.T @ x)
    found = {}
    for at, arm in enumerate(others, len(known)):
        error = float(np.sqrt(variance * spread[at, at]))
        found[arm] = Contrast(float(beta[at]), error, freedom, sum(a == arm for a in arms))
    return found


def _huber(x: Floats, y: Floats, limit: float) -> tuple[Floats, Floats]:
    weights = np.ones(len(y))
    beta: Floats = np.zeros(x.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        new = np.asarray(np.linalg.lstsq(x * root[:, None], y * root, rcond=None)[0], float)
        done = np.abs(new - beta).max() < 1e-9
        beta = new
        rest = np.abs(y - x @ beta)
        weights = np.where(rest > limit, limit / np.maximum(rest, 1e-300), 1.0)
        if done:
            break
    return beta, y - x @ beta


def _own_scale(rest: Floats, parameters: int) -> float:
    """The spread of the residuals by their middle half, for as many parameters as the fit used up."""
    return _MAD * float(np.median(np.abs(rest))) * float(np.sqrt(len(rest) / max(len(rest) - parameters, 1)))


def _variance(rest: Floats, parameters: int, limit: float, noise: Noise) -> tuple[float, float]:
    """Variance of one run as the robust fit sees it, pooled with what was known before, and its freedom."""
    freedom = max(len(rest) - parameters, 0)
    inside = max(float((np.abs(rest) <= limit).mean()), 0.25)
    clipped = np.clip(rest, -limit, limit)
    own = float(np.sqrt((clipped @ clipped) / freedom)) / inside if freedom else 0.0
    if own > _UNLIKE * noise.sd:
        return own**2, float(freedom)  # what was known before does not hold here
    together = pooled(noise, Noise(own, float(freedom)))
    return together.sd**2, together.freedom


def shrunk(deviation: float, runs: int, spread: float, noise: Noise) -> float:
    """What to expect of a setting that was seen so much faster: luck is taken out of it.

    `spread` is how far the means of all settings lie apart; what noise alone would spread them by is no effect.
    """
    luck = noise.sd**2 / max(runs, 1)
    real = max(spread**2 - luck, 0.0)
    return deviation * real / (real + luck) if real + luck else 0.0


def best_by_luck(settings: int, sd: float) -> float:
    """How much faster the best of so many equal settings looks, on average, by noise alone."""
    return sd * NormalDist().inv_cdf((settings - 0.375) / (settings + 0.25)) if settings > 1 else 0.0
