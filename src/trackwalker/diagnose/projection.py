"""How far the run came, what it would lose, how long it still needs (spec 2.6)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trackwalker.diagnose.checkpoints import OnDisk
from trackwalker.diagnose.interruptions import Interruptions, steady_level
from trackwalker.diagnose.other_trainers import asked_steps
from trackwalker.diagnose.sources import StepRecord
from trackwalker.logs.attempts import Attempt
from trackwalker.logs.index import LogIndex

_LAG = 3  # lines of ranks interleave: a step or two is no lag


@dataclass
class Progress:
    """Progress of this run; what is not known is None."""

    start: str | None = None  # fresh, or restored from which step
    first_step: int | None = None
    last_step: int | None = None
    total_steps: int | None = None
    steps_this_run: int | None = None
    done: float | None = None
    step_time_s: float | None = None
    tgs: float | None = None
    training_s: float | None = None
    wall_s: float | None = None
    setup_s: float | None = None
    gap_s: float | None = None
    checkpoint_period: int | None = None
    last_checkpoint: int | None = None  # proven by a line that says so, or by the final name of its folder
    due_checkpoint: int | None = None  # by the period alone: it may not have been committed
    steps_lost: int | None = None
    steps_repeated: int = 0  # done again after a restart
    recompiled: int = 0  # steps after the first that waited for a compilation
    attempts: int = 1
    remaining_s: float | None = None
    expected_step: int | None = None  # where a live run should be by now
    source: str | None = None
    sources: dict[str, int] = field(default_factory=dict)
    disagreement: str = ""
    behind: dict[int, int] = field(default_factory=dict)  # ranks whose last step is not the run's

    @property
    def all_done(self) -> bool:
        """Whether the last configured step was completed."""
        return self.done is not None and self.done >= 1.0


def project(
    index: LogIndex,
    record: StepRecord,
    slow: Interruptions,
    tries: list[Attempt],
    wall_s: float | None,
    now: float | None,
    disk: OnDisk,
) -> Progress:
    """Every formula of spec 2.6; `now` only for a live run."""
    facts, steps = index.facts, index.steps
    out = Progress(total_steps=total_steps(index), attempts=len(tries), wall_s=wall_s)
    out.checkpoint_period = save_period(index)
    out.source, out.sources, out.disagreement = record.used, record.says, record.disagreement
    out.setup_s = float(sum(s.seconds or 0 for s in facts.stages if s.what == "END" and s.name != "Training")) or None
    last = out.last_step = record.last
    if last is None:
        return out
    if len(record):
        out.first_step = int(record.step[0])
        out.start = _start(index, out.first_step)
        numbers = np.sort(record.step)
        out.steps_this_run = 1 + int(np.count_nonzero(np.diff(numbers)))
        out.steps_repeated = len(record) - out.steps_this_run
        out.recompiled = max(0, int(np.count_nonzero(slow.compile)) - len(tries))
        if (level := steady_level(record, slow)) is not None:
            out.step_time_s = round(float(np.median(level)), 3)
            out.training_s = round(float(np.nansum(record.seconds)), 1)
        rates = record.tgs[~slow.any] if (~slow.any & np.isfinite(record.tgs)).any() else record.tgs
        if np.isfinite(rates).any():
            out.tgs = round(float(np.nanmedian(rates)), 1)
    if out.total_steps:
        out.done = round(min(1.0, (last + 1 - steps.first_number) / out.total_steps), 4)
        left = max(0, out.total_steps - 1 + steps.first_number - last)
        out.remaining_s = _remaining(record, slow, out, left)
    if wall_s is not None and out.training_s is not None:
        out.gap_s = round(wall_s - out.training_s - (out.setup_s or 0.0), 1)
    _checkpoints(index, out, last, disk)
    if now is not None and record.last_end is not None and out.step_time_s:
        ahead = int(max(0.0, now - record.last_end) / out.step_time_s)
        out.expected_step = min(last + ahead, out.total_steps - 1 if out.total_steps else last + ahead)
    slowest = {r: s for r, s in steps.last_by_rank.items() if s < last - _LAG}
    out.behind = dict(sorted(slowest.items(), key=lambda item: item[1])[:16])
    return out


def total_steps(index: LogIndex) -> int | None:
    """How many steps were asked for: the config dump, else what the step lines or the launcher's arguments state."""
    configured = index.facts.number("steps")
    steps = index.steps
    if configured is not None:
        return configured
    if steps.total is None:
        return asked_steps(index)
    return steps.total + (1 if steps.first_number == 0 else 0)


def save_period(index: LogIndex) -> int | None:
    """Steps between saves, None where saving is off or its period is not stated (never a guessed default)."""
    enabled = (index.facts.setting("enable_checkpointing") or "").lower()
    if enabled not in ("true", "1", "yes", ""):
        return None
    period = index.facts.number("checkpoint_period")
    return period if period and period > 0 else None


def _start(index: LogIndex, first: int) -> str | None:
    if index.facts.restored is not None:
        return f"restored from step {index.facts.restored}"
    if first == index.steps.first_number:
        return "fresh"
    return f"restored from step {first - 1}" if index.facts.header or index.facts.config else None


def _remaining(record: StepRecord, slow: Interruptions, out: Progress, left: int) -> float | None:
    """The steps left, with what the saves among them will cost by what they cost so far."""
    if out.step_time_s is None:
        return None
    total = left * out.step_time_s
    extra = record.seconds[slow.save] - out.step_time_s
    if out.checkpoint_period and np.isfinite(extra).any():
        saves = max(1, int(np.count_nonzero(np.diff(np.flatnonzero(slow.save), prepend=-9) > 1)))
        each = float(np.nansum(np.maximum(extra, 0.0))) / saves
        if each > out.step_time_s * 0.1:  # less is the noise of the steps themselves
            total += each * (left // out.checkpoint_period)
    return round(total, 1)


def _checkpoints(index: LogIndex, out: Progress, last: int, disk: OnDisk) -> None:
    facts, period = index.facts, out.checkpoint_period
    known = {s for s in facts.saves if s <= last}
    if facts.restored is not None:
        known.add(facts.restored)
    out.last_checkpoint = disk.last(known, last)
    if period and last >= period and (facts.setting("enable_checkpointing") or "").lower() in ("true", "1", "yes"):
        out.due_checkpoint = period * (last // period)
    if out.last_checkpoint is not None:
        out.steps_lost = last - out.last_checkpoint
    elif (facts.setting("enable_checkpointing") or "").lower() in ("false", "0", "no"):
        out.steps_lost = out.steps_this_run  # nothing was kept
