"""What is visibly wrong, before anyone asks why: a stall, slow phases, a death, a heartbeat claim, a cancel."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.episodes.course import (
    growing_saves,
    long_saves,
    loss_trouble,
    profiled_steps,
    save_steps,
    spikes,
)
from trackwalker.record.masks import UNEVEN_SHARE, WARM_UP_STEPS
from trackwalker.record.phases import PLAIN, Eye, Phase, find_phases
from trackwalker.record.projection import final_step
from trackwalker.record.stall import STALL_STEPS, START_BUDGET_S, Stall
from trackwalker.record.status import CANCELS, names_failure

if TYPE_CHECKING:
    from trackwalker.diagnose.accounts.accounts import Account

_SLIDE = 0.02  # of a step: what a phase on the way down is slower than full speed
_LONG_S = 120.0  # several looks of a slow exporter
_CALM_S = 240.0  # between two saves, long enough for rates
_LAST_MINUTES_S = 900.0
_COSTLY_SHARE = 0.08  # then it is no jitter


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

    @property
    def full(self) -> float:
        """Seconds of a step at full speed."""
        return min((p.seconds for p in self.phases if not p.slow), default=0.0)

    @property
    def lost(self) -> list[float]:
        """What each slow phase took beyond full speed, in seconds."""
        return [(p.end - p.start) * (1.0 - self.full / p.seconds) for p in self.slow]

    def mostly(self, stretch: Set[int], spoken: Set[int]) -> bool:
        """Whether the phases spoken for hold at least half of what a stretch of slow phases lost."""
        lost = self.lost
        return 2 * sum(lost[i] for i in stretch & spoken) >= sum(lost[i] for i in stretch)


def find_symptoms(case: Case, eye: Eye = PLAIN) -> Symptoms:
    """Look at the job's own course; no metric is asked yet."""
    timeline, log = case.timeline, case.log
    names: set[str] = set()
    stall = case.stall
    phases = find_phases(timeline, case.masks, case.live, eye)
    if stall:
        names.add("stall")
    if any(p.slow for p in phases):
        names.add("slow")
    if log.heartbeat is not None and log.heartbeat.claim is not None:
        names.add("heartbeat")
    code = log.summary.exit if log.summary else None
    if case.event("first-failure") or log.first_failure or (code not in (None, 0, *CANCELS)):
        names.add("failed")
    if code in CANCELS or log.cancel is not None or case.triage.status == "cancelled":  # a launcher's own words, too
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


def _windows(case: Case, stall: Stall | None, phases: tuple[Phase, ...]) -> dict[str, list[Span]]:
    windows: dict[str, list[Span]] = {}
    timeline, until = case.timeline, case.end_of_work
    if case.start is not None and case.end is not None:
        windows["whole"] = [Span(case.start, case.end)]
    if stall is not None and stall.since is not None and stall.until is not None:
        margin = min(0.1 * (stall.until - stall.since), 60.0)
        # What ends a silence takes its time: a watchdog's kill is no part of it, nor what the last step left running.
        windows["during"] = [Span(stall.since + margin, stall.until - margin)]
        reach = max(20.0 * stall.limit_s / STALL_STEPS, 20.0)
        windows["before"] = [Span(max(case.start or 0.0, stall.since - min(reach, 900.0)), stall.since)]
    slow = [p for p in phases if p.slow and np.isfinite(p.start)]
    if slow:
        windows["slow"] = [_undisturbed(case, p) for p in slow]
        windows["fast"] = [_undisturbed(case, _nearest_fast(p, phases)) for p in slow]
        if not phases[0].slow and (first := _undisturbed(case, phases[0])).seconds >= _LONG_S:
            windows["steady"] = [first]  # what is so there was so from the first step on
    elif timeline is not None and timeline.last_end is not None and len(timeline) > 2 * WARM_UP_STEPS:
        begin, stop = float(timeline.ends[WARM_UP_STEPS]), min(timeline.last_end, until or np.inf)
        whole = Phase(int(timeline.steps[WARM_UP_STEPS]), int(timeline.steps[-1]), begin, stop, 0.0, False)
        calm = _undisturbed(case, whole)
        windows["steady"] = [calm if calm.seconds >= _CALM_S else Span(begin, stop)]
        if calm.seconds >= 60.0 and (calm.seconds < stop - begin or not save_steps(case)):
            windows["calm"] = [calm]
        at = 2 * len(timeline) // 3
        tail = Phase(int(timeline.steps[at]), int(timeline.steps[-1]), float(timeline.ends[at]), stop, 0.0, False)
        windows["late"] = [_undisturbed(case, tail)]
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
    at = phases.index(slow)
    while at > 0 and not phases[at - 1].slow and phases[at - 1].seconds > (1 + _SLIDE) * symptoms.full:
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
