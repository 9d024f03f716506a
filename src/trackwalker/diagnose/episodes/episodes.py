"""Episodes: the stretches of a run in which something was wrong, each with what to compare it with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.episodes.course import save_steps, spikes
from trackwalker.diagnose.episodes.symptoms import Span, Symptoms
from trackwalker.record.masks import WARM_UP_STEPS
from trackwalker.record.phases import Phase
from trackwalker.record.timeline import Floats

Kind = Literal["slow", "long-steps", "stall", "before-stall", "failure", "asked"]

_SAME_SPEED = 1.02  # of the fastest phase: a phase that is merely not slow enough to count may hold the cause already
_MOST_PHASES = 4  # looked at one by one, the longest ones; beyond them only all together
_TAIL_S, _TAIL_SHARE = 900.0, 0.1  # before a stall or a death: what announces it lasts minutes at most
_OWN_WINDOW_S = 100.0  # five scrapes of a usual recorder: of a shorter silence nothing can be said by itself
_FEWEST_KEPT = 0.3  # of a window must be left when saves are masked; else they are part of the picture
_FEWEST_BINS = 2  # of a window, whole ones
_FURTHER, _LASTING_STEPS = 1.05, 20  # slower than the slow phase before it, both lasting: something was added
_SAME_MOMENT_S = 0.5  # between the end of a step and the beginning of the next
_SAVE_STEPS = 3  # a save lengthens its own step and, written in the background, the next two


@dataclass(frozen=True)
class Episode:
    """Something wrong from `since` on: where it shows, and what is compared with it."""

    name: str
    kind: Kind
    window: tuple[Span, ...]
    reference: tuple[Span, ...]
    since: float
    masked: tuple[Span, ...] = ()
    cost: float = 0.0  # share of its time that was lost, where that is known
    saves_told: bool = False  # then its long steps are none that nobody told of

    @property
    def stops(self) -> bool:
        """Whether nothing moves any more: then all activity falls, whatever the reason."""
        return self.kind in ("stall", "failure")

    @property
    def first(self) -> bool:
        """Whether nothing of the run lies before it: it is compared with what came later."""
        return self.kind == "slow" and self.window[0].start < self.reference[0].start

    def bins(self, ends: Floats, step: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which bins lie in the window and which in the reference, whole and unmasked."""
        now, past = _inside(ends, step, self.window, self.kind == "long-steps"), _inside(ends, step, self.reference)
        if self.kind == "slow" and now.sum() < _FEWEST_BINS:  # shorter than two looks: whatever lies in it in part
            now = _inside(ends, step, self.window, touching=True)
        hidden = _inside(ends, step, self.masked, touching=True)
        # What a save does in the minute before a silence announces none.
        enough = (now & ~hidden).sum() >= _FEWEST_KEPT * now.sum() or self.kind == "before-stall"
        now = now & ~hidden if enough else now
        past = past & ~hidden if (past & ~hidden).sum() >= _FEWEST_KEPT * past.sum() else past
        if self.kind == "long-steps":
            past = past & ~_inside(ends, step, self.window, touching=True)
        return now, past & ~now

    def until(self, end: float) -> Episode:
        """The same without what lies after a moment, where at least half of the window is left."""
        if self.stops or self.kind == "before-stall":
            return self
        kept = tuple(Span(s.start, min(s.end, end)) for s in self.window if s.start < end)
        enough = sum(s.seconds for s in kept) >= 0.5 * sum(s.seconds for s in self.window)
        return replace(self, window=kept) if enough else self

    def clear(self, spans: tuple[Span, ...]) -> Span:
        """The longest stretch of these that nothing masks: what a single query can ask for."""
        best = spans[0]
        hidden = self.masked if spans == self.window else (*self.masked, *self.window)
        pieces = [piece for span in spans for piece in _without(span, hidden)]
        if pieces:
            best = max(pieces, key=lambda p: p.seconds)
        return best


def episodes_of(case: Case, symptoms: Symptoms) -> list[Episode]:
    """What went wrong with a run, as stretches of time; empty for one that went well."""
    timeline = case.timeline
    if timeline is None or len(timeline) < 2 * WARM_UP_STEPS or not np.isfinite(timeline.ends).all():
        return []
    masked = masked_spans(case)
    found = _slow(symptoms, masked)
    begin = float(timeline.ends[WARM_UP_STEPS])
    if symptoms.stall is not None:
        found += _around_stall(symptoms, begin, masked)
    elif {"failed", "heartbeat"} & symptoms.names and not found:
        until = case.end_of_work or float(timeline.ends[-1])
        tail = min(_TAIL_S, max(_TAIL_SHARE * (until - begin), 30.0))
        if until - tail > begin:
            since = until - tail
            found.append(Episode("end", "failure", (Span(since, until),), (Span(begin, since),), since, masked))
    if not found and {"uneven", "blip"} & symptoms.names:
        long = _joined(Span(s.start, s.end) for s in spikes(case))
        if long:
            rest = (Span(begin, float(timeline.ends[-1])),)
            told = bool(case.log.saves)
            found.append(Episode("long-steps", "long-steps", long, rest, long[0].start, masked, saves_told=told))
    return found


def _joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Long steps that follow each other are one bout."""
    out: list[Span] = []
    for span in spans:
        if out and span.start - out[-1].end < _SAME_MOMENT_S:
            out[-1] = Span(out[-1].start, span.end)
        else:
            out.append(span)
    return tuple(out)


def _slow(symptoms: Symptoms, masked: tuple[Span, ...]) -> list[Episode]:
    slow, fast = symptoms.slow, [p for p in symptoms.phases if not p.slow]
    if not slow or not fast:
        return []
    full = min(p.seconds for p in fast)
    reference = tuple(_span(p) for p in fast if p.seconds <= _SAME_SPEED * full)
    longest = sorted(sorted(slow, key=lambda p: p.start - p.end)[:_MOST_PHASES], key=lambda p: p.start)
    out = [
        Episode(alone(slow.index(p)), "slow", (_span(p),), reference, p.start, masked, 1.0 - full / p.seconds)
        for p in longest
    ]
    if len(slow) > 1:
        spent, lost = sum(p.end - p.start for p in slow), sum(symptoms.lost)
        spans = tuple(_span(p) for p in slow)
        out.append(Episode("slow", "slow", spans, reference, slow[0].start, masked, lost / spent))
    # A phase slower still than the one before it began with something of its own: measured by that one.
    for before, after in pairwise(symptoms.phases):
        lasting = min(before.steps, after.steps) >= _LASTING_STEPS
        if before.slow and after.slow and lasting and after.seconds >= _FURTHER * before.seconds:
            name = further(slow.index(after))
            cost = 1.0 - before.seconds / after.seconds
            out.append(Episode(name, "slow", (_span(after),), (_span(before),), after.start, masked, cost))
    return out


def alone(phase: int) -> str:
    """The name of the episode that is one slow phase."""
    return f"slow-{phase + 1}"


def further(phase: int) -> str:
    """The name of the episode in which a slow phase became slower still."""
    return f"further-{phase + 1}"


def _around_stall(symptoms: Symptoms, begin: float, masked: tuple[Span, ...]) -> list[Episode]:
    """During a stall, and the minutes before it, both against the far past: the near past may hold what led to it."""
    stall = symptoms.stall
    if stall is None or stall.since is None or stall.until is None:
        return []
    lead = min(_TAIL_S, _TAIL_SHARE * (stall.since - begin))
    past = (Span(begin, stall.since - lead),)
    if past[0].seconds <= 0:
        return []
    during = symptoms.windows.get("during", [Span(stall.since, stall.until)])[0]
    before = Span(stall.since - lead, stall.since)
    if during.seconds < _OWN_WINDOW_S:  # no window of its own: one with what leads to it
        return [Episode("end", "failure", (Span(before.start, stall.until),), past, before.start, masked)]
    return [
        Episode("stall", "stall", (during,), past, stall.since, masked),
        Episode("before-stall", "before-stall", (before,), past, before.start, masked),
    ]


def masked_spans(case: Case) -> tuple[Span, ...]:
    """Steps that are long for a known reason: saves and what they write afterwards, compilations, evaluations."""
    timeline = case.timeline
    if timeline is None or not np.isfinite(timeline.ends).all():
        return ()
    saves = {s + d for s in save_steps(case) for d in range(_SAVE_STEPS)}
    known = case.masks.of("eval", "profiler") | case.masks.recompiled | np.isin(timeline.steps, sorted(saves))
    inside = np.flatnonzero(known)
    return tuple(Span(float(timeline.ends[i] - timeline.seconds[i]), float(timeline.ends[i])) for i in inside)


def _span(phase: Phase) -> Span:
    return Span(phase.start, phase.end)


def _inside(ends: Floats, step: float, spans: tuple[Span, ...], touching: bool = False) -> NDArray[np.bool_]:
    """Bins that lie in one of the spans, or that touch one."""
    out = np.zeros(len(ends), dtype=bool)
    for span in spans:
        if touching:
            out |= (ends > span.start) & (ends - step < span.end)
        else:
            out |= (ends - step >= span.start - 0.1 * step) & (ends <= span.end + 0.1 * step)
    return out


def _without(span: Span, masked: tuple[Span, ...]) -> list[Span]:
    """What is left of a span."""
    pieces, at = [], span.start
    for mask in sorted(masked, key=lambda m: m.start):
        if mask.end <= at or mask.start >= span.end:
            continue
        if mask.start > at:
            pieces.append(Span(at, mask.start))
        at = max(at, mask.end)
    if at < span.end:
        pieces.append(Span(at, span.end))
    return pieces
