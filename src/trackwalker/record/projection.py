"""How far the run came, what it would lose, how long it still needs (spec 2.6)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from trackwalker.job.dialects import by_name
from trackwalker.logs.attempts import Attempt
from trackwalker.logs.scanning.index import LogIndex
from trackwalker.record.checkpoints import OnDisk
from trackwalker.record.masks import Masks, row_seconds, save_period
from trackwalker.record.steps import StepTable
from trackwalker.record.timeline import Timeline
from trackwalker.stats.medians import known_median, median

_LAG = 3  # lines of ranks interleave: a step or two is no lag
# What the run was started with, by the names that trainers give to it.
_ASKED = re.compile(
    r"(?:^|\s)(?:(?:\+?trainer\.)?(?:max_)?steps=(\d{1,12})"
    r"|--(?:training[.-]steps|train-iters|max[_-]steps)[= ](\d{1,12}))(?=\s|$)"
)


@dataclass
class Progress:
    """Progress of this run; what is not known is None."""

    start: str | None = None  # fresh, or restored from which step
    first_step: int | None = None
    last_step: int | None = None
    total_steps: int | None = None
    steps_this_run: int | None = None
    done: float | None = None
    all_done: bool = False  # every step that was asked for was completed
    step_time_s: float | None = None  # the headline: the median of the undisturbed steps
    step_time_of: int = 0  # how many those are
    left_out: dict[str, int] = field(default_factory=dict)  # and how many others there are, by reason
    tgs: float | None = None
    training_s: float | None = None
    wall_s: float | None = None
    setup_s: float | None = None
    gap_s: float | None = None
    checkpoint_period: int | None = None
    last_checkpoint: int | None = None  # proven by a line that says so, or by the final name of its folder
    due_checkpoint: int | None = None  # by the period alone: it may not have been committed
    steps_lost: int | None = None  # of a run that was, or would be, cut off; None where every step is done
    steps_repeated: int = 0  # done again after a restart
    recompiled: int = 0  # steps after the first that waited for a compilation
    attempts: int = 1
    remaining_s: float | None = None
    expected_step: int | None = None  # where a live run should be by now
    source: str | None = None
    sources: dict[str, int] = field(default_factory=dict)
    disagreement: str = ""
    behind: dict[int, int] = field(default_factory=dict)  # ranks whose last step is not the run's


def project(
    index: LogIndex,
    record: StepTable,
    timeline: Timeline | None,
    slow: Masks,
    tries: list[Attempt],
    wall_s: float | None,
    now: float | None,
    disk: OnDisk,
) -> Progress:
    """Every formula of spec 2.6; `record` are the lead rank's steps, `slow` marks those of the timeline.

    `now` only for a live run.
    """
    facts, steps = index.facts, index.steps
    out = Progress(total_steps=total_steps(index), attempts=len(tries), wall_s=wall_s)
    out.checkpoint_period = save_period(facts)
    out.source, out.sources, out.disagreement = record.used, record.says, record.disagreement
    out.setup_s = float(sum(s.seconds or 0 for s in facts.stages if s.what == "END" and s.name != "Training")) or None
    last = out.last_step = record.last
    if last is None:
        return out
    if len(record):
        out.first_step = int(record.step[0])
        out.start = _start(index, out.first_step)
        in_order = bool((record.step[1:] >= record.step[:-1]).all())  # as those of a run without restarts are
        numbers = record.step if in_order else np.sort(record.step)
        out.steps_this_run = 1 + int(np.count_nonzero(np.diff(numbers)))
        out.steps_repeated = len(record) - out.steps_this_run
        out.recompiled = max(0, int(np.count_nonzero(slow.of("compile"))) - len(tries))
        if np.isfinite(record.seconds).any():
            out.training_s = round(float(np.nansum(row_seconds(record.step, record.seconds))), 1)
    if timeline is not None:
        headline(timeline, slow, out)
    out.all_done = all_done(index, last)
    if out.total_steps:
        out.done = 1.0 if out.all_done else round(min(1.0, (last + 1 - steps.first_number) / out.total_steps), 4)
        left = max(0, out.total_steps - 1 + steps.first_number - last)
        out.remaining_s = _remaining(timeline, slow, out, left) if timeline is not None else None
    if wall_s is not None and out.training_s is not None:
        out.gap_s = round(wall_s - out.training_s - (out.setup_s or 0.0), 1)
    _checkpoints(index, out, last, disk)
    if now is not None and record.last_end is not None and out.step_time_s:
        ahead = int(max(0.0, now - record.last_end) / out.step_time_s)
        out.expected_step = min(last + ahead, out.total_steps - 1 if out.total_steps else last + ahead)
    slowest = {r: s for r, s in steps.last_by_rank.items() if s < last - _LAG}
    out.behind = dict(sorted(slowest.items(), key=lambda item: item[1])[:16])
    return out


def headline(timeline: Timeline, slow: Masks, out: Progress) -> None:
    """The run's one step time: the median of the steps that nothing disturbed, and what was left out for it."""
    chosen = slow.undisturbed(timeline.seconds)
    if not chosen.any():
        return
    out.step_time_s, out.step_time_of = round(median(timeline.seconds[chosen]), 3), int(chosen.sum())
    out.left_out = slow.left_out if out.step_time_of < len(timeline) else {}
    rates = timeline.tgs[chosen] if np.isfinite(timeline.tgs[chosen]).any() else timeline.tgs
    if np.isfinite(rates).any():
        out.tgs = round(known_median(rates), 1)


def total_steps(index: LogIndex) -> int | None:
    """How many steps were asked for: the config dump, else what the step lines or the launcher's arguments state."""
    steps = index.steps
    if (asked := asked_steps(index)) is not None or steps.total is None:
        return asked
    return steps.total + (1 if steps.first_number == 0 else 0)


def asked_steps(index: LogIndex) -> int | None:
    """The same where it is sure: a progress bar may count the steps of an epoch."""
    if (configured := index.facts.number("steps")) is not None:
        return configured
    steps, asked = index.steps, _ASKED.search(index.facts.header.get("PASSTHROUGH_ARGS", ""))
    dialect = by_name(steps.dialect)
    if dialect is not None and dialect.total_of_run and steps.total is not None:
        return steps.total + (1 if steps.first_number == 0 else 0)
    most = index.facts.planned or (int(next(filter(None, asked.groups()))) if asked else None)
    if most is None:
        return None
    return most if not len(steps) or int(steps.step.max()) <= most else None  # who went on beyond was asked otherwise


def final_step(index: LogIndex) -> int | None:
    """The least number that the last step told of has when all are done: trainers may tell of every tenth only."""
    total, steps = asked_steps(index), index.steps
    if total is None:
        return None
    apart = int(median(np.diff(steps.step))) if len(steps) > 1 else 1
    return total - 1 + steps.first_number - (max(apart, 1) - 1)


def all_done(index: LogIndex, last: int | None) -> bool:
    """Whether every step that was asked for was completed; where no plan is told, the trainer says it."""
    final, finished = final_step(index), index.facts.finished
    if asked_steps(index) is None and finished is not None and len(index.steps):
        return int(index.steps.line.max()) < finished.line
    return final is not None and last is not None and last >= final


def _start(index: LogIndex, first: int) -> str | None:
    if index.facts.restored is not None:
        return f"restored from step {index.facts.restored}"
    if first == index.steps.first_number:
        return "fresh"
    return f"restored from step {first - 1}" if index.facts.header or index.facts.config else None


def _remaining(timeline: Timeline, slow: Masks, out: Progress, left: int) -> float | None:
    """The steps left, with what the saves among them will cost by what they cost so far."""
    if out.step_time_s is None:
        return None
    total = left * out.step_time_s
    save = slow.only("checkpoint")
    extra = timeline.seconds[save] - out.step_time_s
    if out.checkpoint_period and np.isfinite(extra).any():
        saves = max(1, int(np.count_nonzero(np.diff(np.flatnonzero(save), prepend=-9) > 1)))
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
    if out.all_done:
        return  # a run that came to its end has nothing to lose
    if out.last_checkpoint is not None:
        out.steps_lost = last - out.last_checkpoint
    elif (facts.setting("enable_checkpointing") or "").lower() in ("false", "0", "no"):
        out.steps_lost = out.steps_this_run  # nothing was kept
