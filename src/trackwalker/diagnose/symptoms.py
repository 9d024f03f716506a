"""What is visibly wrong, before anyone asks why: a stall, slow phases, a death, a heartbeat claim, a cancel."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.course import (
    growing_saves,
    long_saves,
    loss_trouble,
    profiled_steps,
    save_steps,
    spikes,
)
from trackwalker.diagnose.pattern import pattern_of
from trackwalker.diagnose.story import Phase
from trackwalker.record.masks import UNEVEN_SHARE, WARM_UP_STEPS
from trackwalker.record.projection import final_step
from trackwalker.record.stall import STALL_STEPS, START_BUDGET_S, Stall
from trackwalker.record.status import CANCELS, names_failure
from trackwalker.record.timeline import Floats, Timeline
from trackwalker.stats.segments import Segment, level_of, robust_sigma, segments

if TYPE_CHECKING:
    from trackwalker.diagnose.accounts import Account

_SLIDE = 0.02  # of a step: what a phase on the way down is slower than full speed
_CALM_S = 240.0  # between two saves, long enough for rates
_LEAST_SLIDE = 0.05  # of throughput, lost little by little
_SETTLING = 20  # steps
_SETTLING_SHARE = 0.08  # of the run
_RESTLESS = 4  # slow phases side by side
_RESTLESS_STEPS = 40  # of each
_AS_MANY_TOKENS = 0.985  # a second
_LARGER = 1.04  # batch
_LAST_MINUTES_S = 900.0
_COSTLY_SHARE = 0.08  # then it is no jitter
LEAST_LOST_S = 5.0  # a slow phase that cost less than this, or less than one step, is a dip, not an incident


@dataclass(frozen=True)
class Eye:
    """How small a lasting change of speed still counts, as a fraction, and how sure it has to be."""

    shift: float  # between neighbouring stretches
    slow: float  # against full speed
    sure: float  # standard errors
    share: float = 1.0  # of the run's time, whose loss counts though it is only seconds of a short run
    wander: float = 4.0  # times the wandering of full speed itself


PLAIN = Eye(0.02, 0.03, 3.0)
# A percent is much money on a large run, and may be the weather on any: believed only where a measured cause fits.
KEEN = Eye(0.008, 0.01, 5.0, UNEVEN_SHARE)


@dataclass(frozen=True)
class Span:
    """A stretch of time."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


@dataclass(frozen=True)
class Symptoms:
    """The findings that call playbooks, and the time windows their tests look at."""

    names: frozenset[str]
    stall: Stall | None = None
    phases: tuple[Phase, ...] = ()
    windows: dict[str, list[Span]] = field(default_factory=dict)
    accounts: tuple[Account, ...] = ()  # where the time lost in its episodes went

    @property
    def slow(self) -> list[Phase]:
        """The phases below the job's own full speed."""
        return [p for p in self.phases if p.slow]


def find_symptoms(case: Case, eye: Eye = PLAIN) -> Symptoms:
    """Look at the job's own course; no metric is asked yet."""
    timeline, log = case.timeline, case.log
    names: set[str] = set()
    stall = case.stall
    phases = find_phases(case, eye) if timeline is not None else ()
    if stall:
        names.add("stall")
    if any(p.slow for p in phases):
        names.add("slow")
    if log.heartbeat is not None and log.heartbeat.claim is not None:
        names.add("heartbeat")
    code = log.summary.exit if log.summary else None
    if case.event("first-failure") or log.first_failure or (code not in (None, 0, *CANCELS)):
        names.add("failed")
    if code in CANCELS or log.cancel is not None:
        names.add("cancelled")
    if names_failure(case.triage.record.roles.primary, log):
        names.add("failed")
    if _ended_short(case):
        names.add("short")
    names |= _course(case)
    return Symptoms(frozenset(names), stall, phases, _windows(case, stall, phases))


def _ended_short(case: Case) -> bool:
    """Whether the run reports success with steps left to do."""
    summary, timeline = case.log.summary, case.timeline
    if summary is None or summary.exit != 0 or timeline is None or not len(timeline):
        return False
    return final_step(case.triage.index) is not None and not case.all_done


SOFT = frozenset({"blip", "uneven", "saves"})  # they look like trouble and may be normal


def _course(case: Case) -> set[str]:
    """What single steps, saves and the loss show; most of it is harmless."""
    names: set[str] = set()
    timeline = case.timeline
    if timeline is None or not len(timeline):
        if not (case.log.params_ranks or case.log.barrier_ranks or case.log.config):
            return set()
        began, until = case.start, case.end_of_work
        overdue = began is None or until is None or until - began > START_BUDGET_S
        return {"unfinished-start", "overdue"} if overdue else {"unfinished-start"}
    single = spikes(case)
    lost = sum(s.seconds - s.level for s in single)
    if single and (len(single) <= 2 or all(s.step in profiled_steps(case) for s in single)):
        names.add("blip")
    elif lost > UNEVEN_SHARE * float(timeline.seconds.sum()):
        names |= {"uneven"} if lost < _COSTLY_SHARE * float(timeline.seconds.sum()) else {"uneven", "costly"}
    if long_saves(case) or growing_saves(case):
        names.add("saves")
    if loss_trouble(case):
        names.add("loss")
    return names


def find_phases(case: Case, eye: Eye = PLAIN) -> tuple[Phase, ...]:
    """Stretches of constant speed; saves and the first steps are masked."""
    timeline = case.timeline
    if timeline is None or len(timeline) < 4 * WARM_UP_STEPS:
        return ()
    index = np.flatnonzero(~case.masks.any)
    values = timeline.seconds[index]
    if len(values) < 2 * WARM_UP_STEPS:
        return ()
    cuts = segments(values, smallest=eye.shift, sure=eye.sure)
    # Full speed is the fastest stretch that lasted: a short lucky one does not make the rest slow.
    least = min(0.15 * len(values), 50)
    lasting = [[c] for c in cuts if c.size >= least]
    lasting = lasting + _fragments(cuts, least) if lasting else [[c] for c in cuts]
    baseline, folded = min(((level_of(values[g[0].start : g[-1].end]), g) for g in lasting), key=lambda level: level[0])
    wander = _wander(values, cuts, baseline, eye)
    below = [c for c in cuts if c not in folded and c.level > baseline * (1.0 + max(eye.slow, eye.wander * wander))]
    # One short dip is a dip; many of them together are what somebody is paged for.
    cost = sum(c.size * (c.level - baseline) for c in below)
    least_lost = min(LEAST_LOST_S, eye.share * float(values.sum()))
    many = cost >= max(UNEVEN_SHARE * float(values.sum()), least_lost)
    phases = []
    for cut in cuts:
        first, last = int(index[cut.start]), int(index[cut.end - 1])
        start, end = float(timeline.ends[first] - timeline.seconds[first]), float(timeline.ends[last])
        lasted = end - start if np.isfinite(end - start) else float(values[cut.start : cut.end].sum())
        lost = lasted * (1.0 - baseline / cut.level)
        slow = cut in below and (many or lost >= max(least_lost, baseline))
        phases.append(Phase(int(timeline.steps[first]), int(timeline.steps[last]), start, end, cut.level, slow))
    phases = _without_warm_up(_restless_as_one(phases, timeline.steps[index], values))
    phases = _with_larger_batches(phases, timeline)
    if not any(p.slow for p in phases):
        phases = _slide(timeline, index) or phases
    return tuple(_with_slow_tail(phases, timeline)) if case.live else tuple(phases)


def _fragments(cuts: list[Segment], least: float) -> list[list[Segment]]:
    """Short stretches side by side that together last: hasty steps are cut to pieces, and still are one speed."""
    runs = [list(g) for short, g in groupby(cuts, key=lambda c: c.size < least) if short]
    return [run for run in runs if len(run) > 1 and sum(c.size for c in run) >= least]


def _restless_as_one(phases: list[Phase], steps: NDArray[np.int64], values: Floats) -> list[Phase]:
    """Short slow phases side by side, up and down in turn, are one restless stretch: a test of each finds chance."""
    out: list[Phase] = []
    for slow, group in groupby(phases, key=lambda p: p.slow):
        run = list(group)
        turns = np.sign(np.diff([p.seconds for p in run]))
        short = all(p.last_step - p.first_step < _RESTLESS_STEPS for p in run)
        if slow and len(run) >= _RESTLESS and short and float(np.mean(turns[1:] != turns[:-1])) >= 0.6:
            mine = (steps >= run[0].first_step) & (steps <= run[-1].last_step)
            run = [replace(run[0], last_step=run[-1].last_step, end=run[-1].end, seconds=level_of(values[mine]))]
        out += run
    return out


def _without_warm_up(phases: list[Phase]) -> list[Phase]:
    """The first steps may settle for longer than most runs need: a short slow beginning of a long run is no trouble."""
    first, steps = phases[0], phases[-1].last_step - phases[0].first_step + 1
    length = first.last_step - first.first_step + 1
    alone = first.slow and not any(p.slow for p in phases[1:])
    if alone and length <= min(_SETTLING, _SETTLING_SHARE * steps):
        return [replace(first, slow=False), *phases[1:]]
    return phases


def _with_larger_batches(phases: list[Phase], timeline: Timeline) -> list[Phase]:
    """Longer steps that do as many tokens a second as the short ones are larger batches, and not slow."""
    inside = [timeline.between(p.first_step, p.last_step) for p in phases]
    rates = [float(np.median(timeline.tgs[i])) for i in inside]
    batches = [float(np.median(timeline.tgs[i] * timeline.seconds[i])) for i in inside]
    rate, batch = max(
        ((r, b) for r, b, p in zip(rates, batches, phases, strict=True) if not p.slow), default=(0.0, 0.0)
    )
    return [
        replace(p, slow=False) if p.slow and b > _LARGER * batch and r >= _AS_MANY_TOKENS * rate else p
        for p, r, b in zip(phases, rates, batches, strict=True)
    ]


def _slide(timeline: Timeline, index: NDArray[np.intp]) -> list[Phase] | None:
    """A run that becomes slower little by little has no step in its speed: its beginning is fast, its end slow."""
    shape = pattern_of(timeline.steps[index], timeline.seconds[index])
    if shape.name != "gradual" or shape.change is None or shape.change > -_LEAST_SLIDE:
        return None
    parts = np.array_split(index, 4)
    out = []
    for part, slow in ((parts[0], False), (np.concatenate(parts[1:3]), True), (parts[3], True)):
        first, last = int(part[0]), int(part[-1])
        start, end = float(timeline.ends[first] - timeline.seconds[first]), float(timeline.ends[last])
        level = float(np.median(timeline.seconds[part]))
        out.append(Phase(int(timeline.steps[first]), int(timeline.steps[last]), start, end, level, slow))
    return out


def _with_slow_tail(phases: list[Phase], timeline: Timeline) -> list[Phase]:
    """A run that has just become very slow has too few slow steps for statistics; two in a row are enough to say so."""
    usual = 2.0 * float(np.quantile(timeline.seconds[WARM_UP_STEPS:-4], 0.99))
    tail = 0
    while tail < 4 and timeline.seconds[-1 - tail] > usual:
        tail += 1
    first = len(timeline) - tail
    start = float(timeline.ends[first - 1]) if tail else 0.0
    if tail < 2 or phases[-1].slow or float(timeline.ends[-1]) - start < 2.0 * LEAST_LOST_S:
        return phases
    level, last = float(np.median(timeline.seconds[first:])), int(timeline.steps[-1])
    before = replace(phases[-1], last_step=int(timeline.steps[first - 1]), end=start)
    return [*phases[:-1], before, Phase(int(timeline.steps[first]), last, start, float(timeline.ends[-1]), level, True)]


def _wander(values: Floats, cuts: list[Segment], baseline: float, eye: Eye) -> float:
    """How far the level of full speed strays by itself, as a fraction: the yardstick for calling a phase slow."""
    fast = np.concatenate([values[c.start : c.end] for c in cuts if c.level <= (1.0 + eye.slow) * baseline])
    blocks = len(fast) // 10
    if blocks < 3:
        return 0.0
    medians = np.median(fast[: blocks * 10].reshape(blocks, 10), axis=1)
    return robust_sigma(medians) / baseline


def _windows(case: Case, stall: Stall | None, phases: tuple[Phase, ...]) -> dict[str, list[Span]]:
    windows: dict[str, list[Span]] = {}
    timeline, until = case.timeline, case.end_of_work
    if case.start is not None and case.end is not None:
        windows["whole"] = [Span(case.start, case.end)]
    if stall is not None and stall.since is not None and stall.until is not None:
        margin = min(0.1 * (stall.until - stall.since), 60.0)
        windows["during"] = [Span(stall.since + margin, stall.until - min(margin, 2.0))]
        reach = max(20.0 * stall.limit_s / STALL_STEPS, 20.0)
        windows["before"] = [Span(max(case.start or 0.0, stall.since - min(reach, 900.0)), stall.since)]
    slow = [p for p in phases if p.slow and np.isfinite(p.start)]
    if slow:
        windows["slow"] = [_undisturbed(case, p) for p in slow]
        windows["fast"] = [_undisturbed(case, _nearest_fast(p, phases)) for p in slow]
    elif timeline is not None and timeline.last_end is not None and len(timeline) > 2 * WARM_UP_STEPS:
        begin, stop = float(timeline.ends[WARM_UP_STEPS]), min(timeline.last_end, until or np.inf)
        whole = Phase(int(timeline.steps[WARM_UP_STEPS]), int(timeline.steps[-1]), begin, stop, 0.0, False)
        calm = _undisturbed(case, whole)
        windows["steady"] = [calm if calm.seconds >= _CALM_S else Span(begin, stop)]
        if calm.seconds >= 60.0 and (calm.seconds < stop - begin or not save_steps(case)):
            windows["calm"] = [calm]
    if until is not None and case.start is not None:
        last = timeline.last_end if timeline is not None and timeline.last_end is not None else until
        windows["end"] = [Span(max(case.start, min(last, until) - _LAST_MINUTES_S), (case.end or until) + 30.0)]
        if timeline is None or not len(timeline):  # it never began: the later half is past any normal set-up
            windows["start"] = [Span(0.5 * (case.start + until), until)]
    crash = case.heartbeat_time
    if crash is not None:
        timeout = case.log.number("jax_distributed_heartbeat_timeout_seconds") or 100
        windows["kill"] = [Span(crash - timeout, crash - 5.0)]
        windows["missed"] = [Span(crash - timeout, crash - 0.5 * timeout)]  # the client beats twice per timeout
    return windows


def slide_start(case: Case, symptoms: Symptoms, number: int) -> float:
    """When a slow phase began to show: with the first of the phases before it that already are a little slower.

    One that nothing precedes began with the first step: the warm-up steps, which no phase holds, are the run's too.
    """
    phases, slow = symptoms.phases, symptoms.slow[number]
    full = min((p.seconds for p in phases if not p.slow), default=0.0)
    at = phases.index(slow)
    while at > 0 and not phases[at - 1].slow and phases[at - 1].seconds > (1 + _SLIDE) * full:
        at -= 1
    if at == 0 and case.timeline is not None:
        return float(case.timeline.ends[0] - case.timeline.seconds[0])
    return phases[at].start


def _undisturbed(case: Case, phase: Phase) -> Span:
    """The longest stretch of a phase without a save: a save idles every GPU and would be taken for the cause."""
    timeline, saved = case.timeline, save_steps(case)
    if timeline is None or not saved:
        return Span(phase.start, phase.end)
    inside = timeline.between(phase.first_step, phase.last_step)
    best, run = (phase.start, phase.start), None
    for step, end, seconds in zip(timeline.steps[inside], timeline.ends[inside], timeline.seconds[inside], strict=True):
        if {int(step), int(step) - 1} & saved:
            run = None
            continue
        run = (run[0] if run else float(end - seconds), float(end))
        best = max(best, run, key=lambda r: r[1] - r[0])
    return Span(*best) if best[1] > best[0] else Span(phase.start, phase.end)


def _nearest_fast(phase: Phase, phases: tuple[Phase, ...]) -> Phase:
    """The full-speed stretch to compare a slow phase with: the one before it, else the one after.

    A phase that is merely not slow enough to count may already hold the cause: it is no reference.
    """
    fastest = min(p.seconds for p in phases if not p.slow)
    fast = [p for p in phases if not p.slow and p.seconds <= 1.02 * fastest]
    before = [p for p in fast if p.end <= phase.start + 1.0]
    return before[-1] if before else fast[0]
