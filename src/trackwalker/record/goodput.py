"""Where the time went: training that counts, and everything else, in seconds and GPU-hours."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from trackwalker.record.masks import REASONS, Masks, masks
from trackwalker.record.projection import Progress
from trackwalker.record.read import Record
from trackwalker.record.steps import StepTable
from trackwalker.record.topology import SCHEDULER, Held, gpus_held
from trackwalker.stats.medians import median, row_medians

_ORDER = (
    "train", "set-up", "init", "start-up", "start-up and teardown", "compile", "restore", "checkpoint", "profiler",
    "evaluation", "slowdown", "lost work", "stalled", "teardown",
)  # fmt: skip
# What a run pays once, however long it trains afterwards.
_START_UP = ("set-up", "init", "start-up", "start-up and teardown", "compile", "restore")
# What may have been told twice, the likeliest first: initialisation spans the set-up of the ranks and the compilation.
_SHORTENED = ("init", "compile", "restore", "set-up", "checkpoint", "teardown")
_AROUND = 31  # steps: the level a slow step is measured against is the one around it


@dataclass(frozen=True)
class Part:
    """One use of the time."""

    what: str
    seconds: float
    share: float | None  # of the wall time
    gpu_hours: float | None


@dataclass
class Goodput:
    """The budget of a run; `parts` add up to the wall time where that is known."""

    wall_s: float | None = None
    gpus: int | None = None
    gpus_from: str = ""
    goodput: float | None = None  # share of the wall time that is training that was kept
    parts: list[Part] = field(default_factory=list)
    lost_known: bool = True  # False: it ended badly, and nothing tells what was saved before

    def seconds(self, what: str) -> float:
        """Seconds of one part, zero where it did not occur."""
        return next((p.seconds for p in self.parts if p.what == what), 0.0)

    @property
    def start_up(self) -> float | None:
        """Share of the wall time that went by before the training could; None where the wall time is not known."""
        return min(1.0, sum(map(self.seconds, _START_UP)) / self.wall_s) if self.wall_s else None

    @property
    def hardly_trained(self) -> bool:
        """Whether it began more than it trained: what is kept of such a run tells of its length, not of its speed."""
        return self.start_up is not None and self.start_up > 0.5

    def with_recorded(self, gpus: int | None) -> Goodput:
        """The same budget, with what a recording knows of the GPUs."""
        allocated = self.gpus if self.gpus_from == SCHEDULER else None
        held = gpus_held(allocated, self.gpus, gpus)
        if held.gpus == self.gpus:
            return self
        out = replace(self, gpus=held.gpus, gpus_from=held.source)
        return replace(out, parts=[_part(part.what, part.seconds, out) for part in self.parts])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def budget(run: Record, ended_badly: bool, gpus: Held, full_speed_s: float | None = None) -> Goodput:
    """Split the wall time. Nothing is counted twice: saves and compilation inside a step's seconds leave that step.

    `full_speed_s` is the step time of a run that slowed down before it did: what its steps took longer is no training.
    """
    facts, record, progress, stalled = run.facts, run.steps, run.progress, run.stall is not None
    phases, ended = record.phases, run.clock.ended
    same = run.timeline is not None and np.array_equal(run.timeline.steps, record.step)  # no step was done again
    slow = run.masks if same else masks(record.step, record.seconds, facts, line=record.line)
    out = Goodput(progress.wall_s, *gpus)
    seconds: dict[str, float] = {"set-up": progress.setup_s or 0.0}
    excess = _excess(record, slow)
    own = np.where(np.isfinite(record.seconds), record.seconds, 0.0) - excess
    # A trainer that times its compilation does so inside its first step or before it: the larger counts, once.
    seconds["compile"] = max(_of(excess, slow, "compile", "restart", "warm-up"), phases.get("compile", 0.0))
    seconds["checkpoint"] = _of(excess, slow, "checkpoint")
    seconds["profiler"] = _of(excess, slow, "profiler")
    seconds["evaluation"] = _of(excess, slow, "eval")
    seconds["restore"] = phases.get("restore", 0.0)
    seconds["init"] = phases.get("init", 0.0)
    out.lost_known = not (ended_badly and progress.steps_lost is None and len(record))
    lost = _lost(record, progress, ended_badly)
    seconds["lost work"] = float(own[lost].sum())
    kept = own[~lost]
    seconds["slowdown"] = float(np.maximum(kept - full_speed_s, 0.0).sum()) if full_speed_s else 0.0
    seconds["train"] = float(kept.sum()) - seconds["slowdown"]
    seconds["teardown"] = float(facts.coredump_s)
    if ended is not None and record.last_end is not None:
        after = max(0.0, ended - record.last_end)
        seconds["teardown"] = min(after, seconds["teardown"]) if stalled else after
        seconds["stalled"] = after - seconds["teardown"]
    if out.wall_s is not None:
        _fit(seconds, out.wall_s)
        rest = max(0.0, out.wall_s - sum(seconds.values()))
        # Most logs carry no time between the stages: what no line accounts for is start-up and teardown, unless it
        # is far more than those take.
        unknown = "start-up" if "stalled" in seconds else "stalled" if stalled else "start-up and teardown"
        seconds[unknown] = rest
    for what in _ORDER:
        if seconds.get(what, 0.0) >= 0.05:
            out.parts.append(_part(what, seconds[what], out))
    if out.wall_s and len(record):
        out.goodput = round(min(1.0, seconds["train"] / out.wall_s), 4)
    return out


def _fit(seconds: dict[str, float], wall_s: float) -> None:
    """Two clocks may tell of the same seconds (a stage's and a rank's own): no run spent more time than it lasted."""
    over = sum(seconds.values()) - wall_s
    for what in _SHORTENED:
        if over <= 0:
            return
        cut = min(over, seconds.get(what, 0.0))
        seconds[what] = seconds.get(what, 0.0) - cut
        over -= cut


def _part(what: str, seconds: float, out: Goodput) -> Part:
    share = round(seconds / out.wall_s, 4) if out.wall_s else None
    hours = round(seconds * out.gpus / 3600.0, 2) if out.gpus else None
    return Part(what, round(seconds, 1), share, hours)


def _of(excess: np.ndarray[Any, np.dtype[np.float64]], slow: Masks, *reasons: str) -> float:
    return float(sum(excess[slow.only(reason)].sum() for reason in reasons))


def _excess(record: StepTable, slow: Masks) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Seconds by which interrupted steps exceed the steps around them."""
    chosen, interrupted = slow.undisturbed(record.seconds), slow.of(*REASONS)
    if not chosen.any():
        return np.zeros(len(record))
    usual = np.full(len(record), median(record.seconds[chosen]))
    clean = np.flatnonzero(np.isfinite(record.seconds) & ~interrupted)
    if len(clean) > _AROUND:
        at = clean[: len(clean) // _AROUND * _AROUND].reshape(-1, _AROUND)
        usual = np.interp(np.arange(len(record)), at[:, _AROUND // 2], row_medians(record.seconds[at]))
    over = np.where(np.isfinite(record.seconds), record.seconds - usual, 0.0)
    return np.where(interrupted, np.maximum(over, 0.0), 0.0)


def _lost(record: StepTable, progress: Progress, ended_badly: bool) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Steps whose result was thrown away: redone by a later attempt, or after the last save of a run that failed."""
    steps = record.step
    lost = np.zeros(len(steps), np.bool_)
    if len(steps):
        # A step that occurs again later was redone: the smallest number still to come tells.
        lowest_after = np.minimum.accumulate(steps[::-1])[::-1]
        lost[:-1] = steps[:-1] >= lowest_after[1:]
    if ended_badly and progress.steps_lost and progress.last_step is not None:
        lost |= steps > progress.last_step - progress.steps_lost
    return lost
