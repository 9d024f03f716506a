"""Two runs that should compute the same: do their losses stay together?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.causes.states import states
from trackwalker.diagnose.compare.config_diff import Change
from trackwalker.diagnose.episodes.course import loss_trouble
from trackwalker.diagnose.facts.log_facts import step_line
from trackwalker.stats.segments import Floats, robust_sigma, running_median

DIVERGED = "loss-wrong"


@dataclass(frozen=True)
class Losses:
    """What the losses say: a cause with the step it shows from, or only a remark."""

    state: str | None = None
    step: int | None = None
    word: str = "B"  # the job whose loss went wrong
    says: str = ""
    evidence: tuple[str, ...] = ()
    untestable: str = ""  # why nothing can be said about corruption

    @property
    def cause(self) -> str | None:
        """The cause that they name."""
        return states().cause(self.state) if self.state is not None else None


def compare_losses(a: Case, b: Case, changes: list[Change], book: EvidenceBook) -> Losses:
    """Compare the losses of the common steps; a difference that settings, seed, data or code explain is none."""
    for word, case, other in (("B", b, a), ("A", a, b)):
        trouble = loss_trouble(case)
        if trouble is not None and loss_trouble(other) is None:
            return _diverged(word, case, other, trouble.step, trouble.says, book)
    x, y = _losses(a), _losses(b)
    steps = sorted(x.keys() & y.keys())
    found = parting(np.array([x[s] for s in steps]), np.array([y[s] for s in steps]))
    if len(steps) < 2:
        return Losses(untestable="losses of common steps")
    ids: tuple[str, ...] = (_cite(a, b, x, y, steps, book),)
    if found is None:
        return Losses(evidence=ids)
    told = [c for c in changes if c.effect in ("numbers", "speed", "perhaps")]
    if told:
        return Losses(
            says=f"the losses differ, as does {told[0].name}", evidence=ids, untestable="a run with equal settings"
        )
    if found.at == 0:
        why = "the losses differ from the first common step on: another seed, other data or another start"
        return Losses(says=why, evidence=ids, untestable="a run with the same seed and data")
    step = steps[found.at]
    last = steps[found.at - 1]
    says = f"the losses agree up to step {last} and part from step {step} on"
    more = []
    for case in (a, b):
        line = step_line(case, steps[-1])
        if line is not None:
            more.append(book.add("log", f"{case.log.path.name}:{line.line}", line.text))
    values = {"step": float(step), "apart": found.size, "noise_before": found.noise}
    source = f"{a.log.path.name} and {b.log.path.name}: loss of steps {steps[0]}..{steps[-1]}, B less A"
    ids = (book.add("progress", source, f"{says}, by {found.size:+.3f} at the end", values), *ids, *more)
    return Losses("losses-part", step, "B", says, ids)


def _diverged(word: str, case: Case, other: Case, step: int, says: str, book: EvidenceBook) -> Losses:
    line = step_line(case, step)
    ids = [book.add("log", f"{case.log.path.name}:{line.line}", line.text)] if line is not None else []
    ids.append(book.add("progress", f"{case.log.path.name}: loss of all steps", says))
    twin = step_line(other, step)
    if twin is not None:
        ids.append(book.add("log", f"{other.log.path.name}:{twin.line}", twin.text))
    return Losses(DIVERGED, step, word, f"in {word} {says}, in the other job not", tuple(ids))


def _losses(case: Case) -> dict[int, float]:
    return {step: loss for step, loss in case.log.steps.losses.items() if math.isfinite(loss)}


def _cite(a: Case, b: Case, x: dict[int, float], y: dict[int, float], steps: list[int], book: EvidenceBook) -> str:
    largest = max(steps, key=lambda s: (abs(x[s] - y[s]), -s))
    says = (
        f"the losses of {len(steps)} common steps differ by at most {abs(x[largest] - y[largest]):.3f} (step {largest})"
    )
    source = f"{a.log.path.name} and {b.log.path.name}: loss of steps {steps[0]}..{steps[-1]}"
    return book.add("progress", source, says, {"largest": abs(x[largest] - y[largest]), "steps": float(len(steps))})


_FEWEST_BEFORE = 10  # points of agreement
_FEWEST_AFTER = 8  # points apart, up to the end
_NARROWEST, _WIDEST = 5, 25  # points that are smoothed over: an eighth of the curve within these
_SIGMAS = 6.0
_LEAST = 0.008  # relative: rounding and the order of sums move a loss less
_RUNS_TOGETHER = 0.6  # of the points before the parting lie within the noise


@dataclass(frozen=True)
class Parting:
    """Where two curves part for good; `at` is 0 when they were never together."""

    at: int
    size: float  # b - a at the end, smoothed
    noise: float  # of a single difference before


def parting(a: Floats, b: Floats) -> Parting | None:
    """The first point from which b stays on one side of a, beyond noise, to the end; None when they stay together."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    n = len(a)
    if n < _FEWEST_BEFORE + _FEWEST_AFTER:
        return None
    d = b - a
    digits = float(np.min(np.abs(np.diff(a))[np.abs(np.diff(a)) > 0], initial=np.inf))
    rounding = digits if np.isfinite(digits) and digits < 0.02 * float(np.median(np.abs(a))) else 0.0
    noise = max(robust_sigma(np.diff(d)) / np.sqrt(2.0), 0.5 * min(rounding, 1e-3), 1e-9)
    width = min(max(n // 8, _NARROWEST), _WIDEST)
    smooth = running_median(d, width)
    limit = np.maximum(_SIGMAS * noise * 1.25 / np.sqrt(width), _LEAST * np.abs(a))
    far = np.abs(smooth) > limit
    same = far & (np.sign(smooth) == np.sign(smooth[-1]))
    if not same[-1]:
        return None
    together = np.flatnonzero(~same)
    since = int(together[-1]) + 1 if len(together) else 0
    if n - since < _FEWEST_AFTER:
        return None
    size = float(np.median(d[-_FEWEST_AFTER:]))
    if since < _FEWEST_BEFORE or np.mean(np.abs(smooth[:since]) <= limit[:since]) < _RUNS_TOGETHER:
        return Parting(0, size, noise)
    # A slow departure passes the limit late: go back to the last point that is still within the noise.
    back = np.abs(d) <= 3.0 * noise
    before = np.flatnonzero(back[:since])
    return Parting(int(before[-1]) + 1 if len(before) else since, size, noise)
