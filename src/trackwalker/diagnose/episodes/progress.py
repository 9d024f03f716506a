"""How far and how fast: the progress part of a verdict, and the size of a slowdown."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.episodes.symptoms import Symptoms
from trackwalker.diagnose.verdict import Magnitude, Progress
from trackwalker.record import projection as course
from trackwalker.record.checkpoints import on_disk
from trackwalker.record.phases import Phase
from trackwalker.record.speeds import UNITS, figure
from trackwalker.record.timeline import Timeline
from trackwalker.stats.segments import is_coarse

_NEARLY = 0.01  # off full speed
_TOLD_PHASES = 3  # in one sentence
_LISTED_PHASES = 12


@dataclass(frozen=True)
class Throughput:
    """Full speed against the latest slow phase, in tokens/s/device where known, else in steps per second."""

    of: str = "tgs"
    before: float = 0.0
    after: float = 0.0
    change: float | None = None
    evidence: list[str] = field(default_factory=list)
    slow: list[tuple[str, float]] = field(default_factory=list)  # every slow phase: its steps, its level

    @property
    def words(self) -> str:
        """The slowdown in a phrase."""
        if self.change is None:
            return "speed unknown"
        full = f"{self.full} at full speed"
        if not 1 < len(self.slow) <= _TOLD_PHASES:
            return f"{full}, {figure(self.after)} when slow ({100 * self.change:+.1f} %)"
        phases = [f"{figure(v)} in {steps} ({100 * (v / self.before - 1):+.1f} %)" for steps, v in self.slow]
        return f"{full}, {', '.join(phases)}"

    @property
    def gain(self) -> float | None:
        """What full speed is worth against the latest slow phase, as a fraction."""
        return self.before / self.after - 1.0 if self.change is not None and self.after else None

    @property
    def magnitude(self) -> Magnitude | None:
        """The slowdown as the verdict states it."""
        if self.change is None:
            return None
        return Magnitude(of=self.of, **{"from": self.before, "to": self.after}, change=round(self.change, 3))

    @property
    def full(self) -> str:
        """Full speed in words."""
        return f"{figure(self.before)} {UNITS[self.of]}"


def throughput(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Throughput:
    """Compare full speed with the slow phase that matters: the last one."""
    slow = symptoms.slow
    timeline = case.timeline
    if not slow or timeline is None:
        return Throughput()
    fast = [p for p in symptoms.phases if not p.slow]
    if not fast:
        return Throughput()
    inside = [timeline.between(p.first_step, p.last_step) for p in symptoms.phases]
    with_tgs = all(np.isfinite(timeline.tgs[i]).any() for i in inside)  # else not all could be told
    of = "tgs" if with_tgs else "steps-per-second"
    reference = max(fast, key=lambda p: p.last_step - p.first_step)
    before, after = _level(case, reference, with_tgs), _level(case, slow[-1], with_tgs)
    ids = []
    many = len(symptoms.phases) > _LISTED_PHASES
    for phase in (reference, slow[-1]) if many else symptoms.phases:
        value, steps = _level(case, phase, with_tgs), _steps(phase)
        word = "slow" if phase.slow else "full speed" if value >= (1 - _NEARLY) * before else "a little slower"
        measure = "mean" if phase.by_mean else "median"
        says = f"{steps} ({word}): {measure} {figure(value)} {UNITS[of]}, {phase.seconds:.3f} s a step"
        source = f"{timeline.source}: {measure}s of {steps}, saves and first steps left out{_mean(timeline, phase)}"
        ids.append(book.add("progress", source, says, {measure: value, "step_s": phase.seconds}))
    told = [(_steps(p), _level(case, p, with_tgs)) for p in slow]
    return Throughput(of, before, after, after / before - 1.0 if before else None, ids, told)


def _steps(phase: Phase) -> str:
    return f"steps {phase.first_step}..{phase.last_step}"


def _mean(timeline: Timeline, phase: Phase) -> str:
    inside = timeline.between(phase.first_step, phase.last_step)
    return "; seconds are a mean, as the log rounds them" if is_coarse(timeline.seconds[inside]) else ""


def _level(case: Case, phase: Phase, with_tgs: bool) -> float:
    timeline = case.timeline
    if timeline is None:
        return 0.0
    inside = timeline.between(phase.first_step, phase.last_step)
    if phase.by_mean:  # what all its steps do in all their time
        tokens = float(np.nanmedian(timeline.tgs[inside] * timeline.seconds[inside])) if with_tgs else 1.0
        level = tokens / phase.seconds
    else:
        rates = timeline.tgs[inside] if with_tgs else 1.0 / np.maximum(timeline.seconds[inside], 1e-9)
        level = float(np.nanmedian(rates))
    return round(level, 1) if level >= 10 else round(level, 4)


def progress_of(case: Case, symptoms: Symptoms) -> Progress:
    """Steps done, speed, last checkpoint, what would be lost, what is left."""
    timeline, total = case.timeline, case.total_steps
    disk = on_disk(case.job, case.triage.index)
    if timeline is None or not len(timeline):
        return Progress(total_steps=total, last_checkpoint=disk.last(set(), None))
    speed = course.Progress()
    course.headline(timeline, case.masks, speed)
    # A rank may be a step or two ahead of the one whose steps were read in full.
    last = max(int(timeline.steps[-1]), case.triage.record.progress.last_step or 0)
    known = {s for s in case.log.saves if s <= last}
    if case.log.restored is not None:
        known.add(case.log.restored)
    saved = disk.last(known, last)
    eta = None
    if case.live and symptoms.stall is None and total is not None:
        eta = round((total - 1 - last) * (speed.step_time_s or 0.0), 1)
    return Progress(
        first_step=int(timeline.steps[0]),
        last_step=last,
        total_steps=total,
        step_time_s=speed.step_time_s,
        tgs=speed.tgs,
        last_checkpoint=saved,
        steps_lost=last - saved if saved is not None and not case.all_done else None,
        eta_s=eta,
    )
