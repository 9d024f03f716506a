"""Two runs' speeds: which steps of both are compared, and which are left out and why. One rule for every comparison."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackwalker.record.masks import single_slow
from trackwalker.record.steps import Bools, Floats, Ints
from trackwalker.stats.paired import FEWEST, Difference, paired, unpaired

WARM_UP = 8  # steps after the later start: compilation, caches, the first saves
_FEWEST_WARM_UP = 3  # of a short run
_BLIPS = 2  # as many single slow steps are an accident, more are the difference itself
FIRST, SINGLE, ALONE = "first steps", "single slow", "not in both"
UNITS = {"tgs": "tokens/s/device", "steps-per-second": "steps/s"}


def figure(value: float) -> str:
    """A speed as every command prints it: `2,842`, and below a thousand four digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


@dataclass(frozen=True)
class Series:
    """One run's steps, each once and in order, with the reason why a step says nothing about its speed, or ""."""

    step: Ints
    seconds: Floats
    tgs: Floats
    reason: NDArray[np.str_]


@dataclass(frozen=True)
class Compared:
    """The steps compared and what they say; without common steps the two levels are compared."""

    of: str
    steps_a: Ints
    steps_b: Ints
    level_a: float  # geometric mean, as the difference is one of logarithms
    level_b: float
    difference: Difference
    in_common: bool
    left_out_a: dict[str, int]  # by reason
    left_out_b: dict[str, int]

    @property
    def unit(self) -> str:
        """What the levels are counted in."""
        return UNITS[self.of]

    def left_out(self, b: bool) -> str:
        """What was left out of one run, in words; empty where nothing was."""
        found = self.left_out_b if b else self.left_out_a
        return ", ".join(f"{n} {reason}" for reason, n in found.items())


def compare_speeds(a: Series, b: Series) -> Compared | None:
    """Compare two runs step by step where they have steps in common; None where one has too few usable steps."""
    if not len(a.step) or not len(b.step):
        return None
    of = "tgs" if np.isfinite(a.tgs).any() and np.isfinite(b.tgs).any() else "steps-per-second"
    reasons_a, reasons_b = _reasons(a), _reasons(b)
    shared = np.intersect1d(a.step, b.step)
    warm = WARM_UP if len(shared) >= 4 * WARM_UP else _FEWEST_WARM_UP
    later = max(int(a.step[0]), int(b.step[0]))
    kept = np.intersect1d(a.step[reasons_a == ""], b.step[reasons_b == ""])
    kept = kept[kept >= later + warm]
    in_common = len(kept) >= FEWEST
    if in_common:
        steps_a = steps_b = kept
    else:
        steps_a = a.step[(reasons_a == "") & (a.step >= a.step[0] + warm)]
        steps_b = b.step[(reasons_b == "") & (b.step >= b.step[0] + warm)]
    x, y = _speeds(a, steps_a, of), _speeds(b, steps_b, of)
    difference = paired(x, y) if in_common else unpaired(x, y)
    if difference is None:
        return None
    first_a, first_b = (later + warm, later + warm) if in_common else (int(a.step[0]) + warm, int(b.step[0]) + warm)
    return Compared(
        of, steps_a, steps_b, _rounded(x), _rounded(y), difference, in_common,
        _left_out(a, reasons_a, steps_a, first_a), _left_out(b, reasons_b, steps_b, first_b),
    )  # fmt: skip


def _reasons(run: Series) -> NDArray[np.str_]:
    """Why each step is not comparable; where nearly every step follows a save, they are the run."""
    reason = run.reason.astype("<U16")
    single = single_slow(run.seconds, reason == "")[0]
    if len(single) <= _BLIPS:
        reason[single] = SINGLE
    reason[~(np.isfinite(run.seconds) & (run.seconds > 0)) & (reason == "")] = "not timed"
    return reason if int(np.count_nonzero(reason == "")) >= FEWEST else np.full(len(reason), "", "<U16")


def _left_out(run: Series, reason: NDArray[np.str_], used: Ints, first: int) -> dict[str, int]:
    out: dict[str, int] = {}
    gone: Bools = ~np.isin(run.step, used)
    for why, step in zip(reason[gone], run.step[gone], strict=True):
        word = FIRST if step < first else str(why) or ALONE
        out[word] = out.get(word, 0) + 1
    return dict(sorted(out.items(), key=lambda each: (-each[1], each[0])))


def _speeds(run: Series, steps: Ints, of: str) -> Floats:
    at = np.searchsorted(run.step, steps)
    return run.tgs[at] if of == "tgs" else 1.0 / np.maximum(run.seconds[at], 1e-9)


def _rounded(values: Floats) -> float:
    good = values[np.isfinite(values) & (values > 0)]
    mean = float(np.exp(np.log(good).mean()))
    return round(mean, 1) if mean >= 10 else round(mean, 5)
