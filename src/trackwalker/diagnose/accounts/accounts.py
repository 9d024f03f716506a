"""Where lost time went: each episode's loss is booked on the waits that were recorded.

A loss is what the steps of an episode took beyond as many steps at the run's own full speed. A wait carries as much
of it as it grew, step for step, on the rank where it grew most: the others only wait for that one. An account needs no
peers: it holds for one rank as for a fleet that is ill together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trackwalker.diagnose.accounts import waits
from trackwalker.diagnose.accounts.waits import Rates, Wait, WaitQuery, all_waits, question, rates, scatter, source_of
from trackwalker.diagnose.case import Case
from trackwalker.diagnose.episodes.course import Spike, save_steps, spikes
from trackwalker.diagnose.episodes.symptoms import Span, Symptoms, slide_start
from trackwalker.record.masks import UNEVEN_SHARE, holds
from trackwalker.record.phases import LEAST_LOST_S, Phase
from trackwalker.record.timeline import Timeline
from trackwalker.stats.segments import Segment, segments
from trackwalker.telemetry.client import Question

SAVES = "saves"  # the episode of slower saves
MOST = 0.5  # of a loss: whatever carries more than all else together is what the time was lost to
SOME = 0.1  # of a loss: less is within what step times and waits of real runs disagree by
_SURE = 3.0  # standard errors
_GAP = 0.1  # of an episode: what is shorter and not slow in between is the same trouble, breathing
_ROSE = 1.25  # a thread-second rate that is no higher than before only lasted longer, as the step did
_APART = 0.5  # of the longest wait: who waits less than this is not the one that is waited for
_ALIKE = 0.05  # of a step: neighbours whose levels differ by more are two episodes, if both last
_FRAGMENT_STEPS = 20  # and fewer are too few to tell a level by
_FRAGMENT = 0.1  # of all slow steps
_LONGEST_SPIKES = 8
_SHORTEST_S = 2.0
_LEAST_SAVES = 5  # of each kind, to tell a level by
SLOWER_SAVES = 1.8  # times as long: no jitter of a store that others use as well
_MEASURED_S = 5.0  # a few samples of every collector


@dataclass(frozen=True)
class Booking:
    """A wait, the share of the loss that it carries, and the numbers behind it."""

    wait: Wait
    cause: str | None
    share: float
    hosts: tuple[str, ...]  # whose wait it is, where that is not everybody's
    longest: str  # the host with the most of it
    during: Rates
    before: Rates | None
    least: float = 0.0  # the share that is beyond doubt, where no other wait is booked before it


@dataclass(frozen=True)
class Account:
    """One episode: what it cost, and where that went."""

    episode: str
    steps: tuple[int, int]
    since: float
    lost_s: float
    slow: frozenset[int]  # which of the slow phases it holds
    step_s: float | None  # full speed
    bookings: tuple[Booking, ...]

    @property
    def shares(self) -> dict[str, float]:
        """By cause (by wait, where none is named), with what no wait carries."""
        out: dict[str, float] = {}
        for b in self.bookings:
            name = b.cause or b.wait.id
            out[name] = out.get(name, 0.0) + b.share
        return out | {"unaccounted": max(0.0, 1.0 - sum(out.values()))}

    def booked(self, wait: str) -> Booking | None:
        """The booking of a wait, if it was recorded."""
        return next((b for b in self.bookings if b.wait.id == wait), None)


@dataclass(frozen=True)
class _Episode:
    name: str
    steps: tuple[int, int]
    since: float
    spans: tuple[Span, ...]
    references: tuple[tuple[Span, float], ...]  # faster stretches and what a step takes there, full speed first
    lost_s: float  # in the whole episode
    step_s: float  # in it
    usual_s: float  # at full speed
    slow: frozenset[int] = frozenset()


def book_losses(case: Case, symptoms: Symptoms) -> tuple[Account, ...]:
    """The accounts of all episodes of a run, in order of time; none without a recording."""
    if case.telemetry is None or case.timeline is None:
        return ()
    accounts = [_account(case, e) for e in _episodes(case, symptoms)]
    stalled = _stall(case, symptoms)
    return tuple(accounts if stalled is None else [*accounts, stalled])


def _episodes(case: Case, symptoms: Symptoms) -> list[_Episode]:
    return [*_slow_episodes(case, symptoms), *_long_steps(case, symptoms), *_slower_saves(case)]


def losses_ask(case: Case, symptoms: Symptoms) -> Iterator[list[Question]]:
    """What the accounts ask of the recording whatever they find."""
    sources = [s for w in all_waits() if (s := source_of(case, w.queries)) is not None]
    for episode in _episodes(case, symptoms) if sources and case.timeline is not None else ():
        for span in (*episode.spans, *(reference for reference, _ in episode.references[:1])):
            yield from ([question(source, span)] for source in sources)


def _account(case: Case, episode: _Episode) -> Account:
    read = [b for wait in all_waits() if (b := _book(case, episode, wait)) is not None]
    return Account(
        episode.name, episode.steps, episode.since, episode.lost_s, episode.slow, episode.usual_s,
        tuple(in_order(read)),
    )  # fmt: skip


def in_order(read: list[Booking]) -> list[Booking]:
    """Together they carry no more than the loss: what stood still, then upper bounds, then mere idleness.

    What an upper bound on the same host can bring about, comes of it and stands behind it.
    """

    def rank(b: Booking) -> tuple[bool, int]:
        above = [o for o in read if o.wait.unit == "thread" and b.wait.id in o.wait.upstream and o.share > 0]
        behind = any(not (b.hosts and o.hosts) or set(b.hosts) & set(o.hosts) for o in above)
        return b.wait.devices, 1 if b.wait.unit == "thread" else 2 if behind else 0

    left, out = 1.0, []
    for booking in sorted(read, key=rank):
        share = min(booking.share, left)
        left -= share
        out.append(replace(booking, share=share))
    return out


def _book(case: Case, episode: _Episode, wait: Wait) -> Booking | None:
    """What a wait grew by against the loss, step for step."""
    source = source_of(case, wait.queries)
    if source is None:
        return None
    stretches = [(span, rates(case, source, span)) for span in episode.spans]
    during = max(stretches, key=lambda s: s[0].seconds)[1]
    if not during.values:
        return None
    reference, usual_s, before = _measured(case, source, episode)
    if wait.unit == "thread" and not (before and before.values):
        return None  # no faster stretch lasted long enough to be measured: nobody knows what it was there
    lost = episode.step_s - usual_s
    mean = _mean(stretches)
    extra = {h: _extra(wait, v, _usual(wait, before, h), episode.step_s, usual_s) for h, v in mean.items()}
    longest = max(extra, key=lambda h: (extra[h], h))
    noise = scatter(case, source, reference) if reference is not None else {}
    looks = waits.scatter_of_looks(case, source, episode.spans, longest, mean[longest]) if wait.devices else 0.0
    error = float(np.hypot(noise.get(longest, 0.0), looks)) * episode.step_s
    amount, doubt = extra[longest], (_SURE + np.sqrt(2.0 * np.log(len(extra)))) * error  # the highest of many strays
    whose: tuple[str, ...] = ()
    if wait.devices and amount <= doubt:  # one host was not looked at often enough: all of them together may be
        error /= np.sqrt(len(extra))
        amount, doubt = float(np.mean(list(extra.values()))), _SURE * error
    elif wait.unit == "wall":  # who shares in the loss at all is not free of it, as far as that was seen
        whose = _whose(extra, max(SOME * lost, _SURE * error))
    else:  # the threads of all ranks on a busy machine wait: whose waiting grew far more, if nobody waits longer still
        whose = _whose(extra)
        whose = whose if max(mean, key=lambda h: (mean[h], h)) in whose else ()
    booked = lost > 0 and amount > doubt
    share = min(amount / lost, 1.0) if booked else 0.0
    least = min((amount - _SURE * error) / lost, 1.0) if booked else 0.0
    return Booking(wait, wait.cause, share, whose if longest in whose else (), longest, during, before, least)


def _measured(case: Case, source: WaitQuery, episode: _Episode) -> tuple[Span | None, float, Rates | None]:
    """The fastest stretch in which a wait was measured, what a step took there, and the wait."""
    for span, step_s in episode.references:
        found = rates(case, source, span)
        if found.values:
            return span, step_s, found
    return None, episode.usual_s, None


def _mean(stretches: list[tuple[Span, Rates]]) -> dict[str, float]:
    """A wait over several stretches, weighted by their length."""
    hosts = sorted({h for _, r in stretches for h in r.values})
    total = sum(span.seconds for span, _ in stretches)
    return {h: sum(s.seconds * r.values.get(h, 0.0) for s, r in stretches) / total for h in hosts}


def _usual(wait: Wait, before: Rates | None, host: str) -> float | None:
    """The same wait at full speed; where no sample tells, all of a step's time, as it cannot have been more."""
    known = before.values.get(host) if before is not None else None
    if known is not None:
        return known
    return 1.0 if wait.unit == "wall" else None


def _extra(wait: Wait, rate: float, usual: float | None, step_s: float, usual_s: float) -> float:
    """Seconds by which a wait became longer in each step."""
    if usual is None or (wait.unit == "thread" and rate < _ROSE * usual):
        return 0.0
    return max(0.0, rate * step_s - usual * usual_s)


def _whose(waits: dict[str, float], none: float = np.inf) -> tuple[str, ...]:
    """The few whose wait it is; nobody where most wait, or where the others are not free of it."""
    most = max(waits.values())
    mine = sorted(h for h, v in waits.items() if v >= _APART * most)
    rest = max((v for h, v in waits.items() if h not in mine), default=0.0)
    return tuple(mine) if most > 0 and 2 * len(mine) <= len(waits) and rest < none else ()


def _slow_episodes(case: Case, symptoms: Symptoms) -> list[_Episode]:
    """Slow phases side by side are one episode; its reference is the longest stretch at full speed."""
    full = _reference(case, symptoms.phases)
    if full is None:
        return []
    _, usual = full
    each = [found[:2] for p in symptoms.phases if (found := _calm(case, p.first_step, p.last_step)) is not None]
    lasting = sorted((c for c in each if c[0].seconds >= _MEASURED_S), key=lambda c: c[1])
    out = []
    for number, group in enumerate(_groups(symptoms), start=1):
        phases = [symptoms.slow[i] for i in group]
        first, last = phases[0].first_step, phases[-1].last_step
        found = _calm(case, first, last)
        if found is None:
            continue
        span, level, steps = found
        lost = steps * (level - usual)
        if lost > 0:
            slower = tuple(c for c in lasting if usual < c[1] < level / (1.0 + _ALIKE))
            since, name = slide_start(case, symptoms, group[0]), f"slow-{number}"
            told = (first, last), since, (span,), (full, *slower), lost, level, usual, frozenset(group)
            out.append(_Episode(name, *told))
    return out


def _groups(symptoms: Symptoms) -> list[list[int]]:
    """The numbers of the slow phases of each episode: neighbours, but for long ones that are slow in different degree.

    Real runs fragment, and a fragment is too short for an account; a lasting change of level is a second trouble.
    """
    slow = symptoms.slow
    groups = [[i] for i in range(len(slow))]
    short = max(_FRAGMENT_STEPS, _FRAGMENT * sum(p.steps for p in slow))
    while (pair := _next_pair(groups, slow, short)) is not None:
        groups[pair : pair + 2] = [groups[pair] + groups[pair + 1]]
    return groups


def _next_pair(groups: list[list[int]], slow: list[Phase], short: float) -> int | None:
    """Which two neighbours to join next: those that are most alike, of all that have to be joined."""
    steps = [sum(slow[i].steps for i in g) for g in groups]
    level = [float(np.average([slow[i].seconds for i in g], weights=[slow[i].steps for i in g])) for g in groups]
    pairs = []
    for k in range(len(groups) - 1):
        before, after = slow[groups[k][-1]], slow[groups[k + 1][0]]
        whole = after.end - slow[groups[k][0]].start
        apart = abs(level[k] / level[k + 1] - 1.0)
        if after.start - before.end <= _GAP * whole and (apart < _ALIKE or min(steps[k], steps[k + 1]) < short):
            pairs.append((apart, k))
    return min(pairs)[1] if pairs else None


def _reference(case: Case, phases: tuple[Phase, ...]) -> tuple[Span, float] | None:
    """The longest stretch at full speed and what a step takes there; a lucky moment is no reference."""
    fast = sorted((p for p in phases if not p.slow), key=lambda p: p.start)
    joined: list[tuple[int, int]] = []
    for p in fast:  # phases that were told apart by a per cent or two are one reference
        if joined and not any(s.slow and joined[-1][1] < s.first_step < p.first_step for s in phases):
            joined[-1] = (joined[-1][0], p.last_step)
        else:
            joined.append((p.first_step, p.last_step))
    calm = [found for first, last in joined if (found := _calm(case, first, last)) is not None]
    if not calm:
        return None
    span, level, _ = max(calm, key=lambda c: c[0].seconds)
    return span, level


def _calm(case: Case, first: int, last: int) -> tuple[Span, float, int] | None:
    """The longest stretch between two steps without a save, the wall time of a step there, and the steps in all.

    Where saves leave no stretch that can be measured, all of it: their own time is booked like any other wait.
    """
    timeline = case.timeline
    inside = np.flatnonzero(timeline.between(first, last)) if timeline is not None else np.zeros(0, int)
    if timeline is None or len(inside) < 2:
        return None
    saved = save_steps(case)
    held = holds(timeline.steps, saved) | holds(timeline.steps, saved, 1)  # where a row tells of several steps, too
    cut = [int(i) for i in inside if held[i]]
    edges = [int(inside[0]) - 1, *cut, int(inside[-1]) + 1]
    begin, end = max(pairwise(edges), key=lambda e: e[1] - e[0])
    span, steps = _stretch(timeline, begin + 1, end - 1), len(inside) - len(cut)
    if span.seconds < _MEASURED_S:
        begin, end, steps = edges[0], edges[-1], len(inside)
        span = _stretch(timeline, begin + 1, end - 1)
    if not np.isfinite(span.seconds) or span.seconds <= 0:
        return None
    return span, span.seconds / (end - begin - 1), steps


def _stretch(timeline: Timeline, begin: int, end: int) -> Span:
    if end < begin:
        return Span(0.0, 0.0)
    return Span(float(timeline.ends[begin] - timeline.seconds[begin]), float(timeline.ends[end]))


def _slower_saves(case: Case) -> list[_Episode]:
    """A stretch of saves that take longer than those of another stretch of the run, steps between them included."""
    timeline, saved = case.timeline, save_steps(case)
    if timeline is None or not timeline.exact or len(timeline) < 2:
        return []
    apart = np.diff(timeline.ends, prepend=timeline.ends[0])
    after = np.flatnonzero(holds(timeline.steps, saved, 1))
    if len(after) < 2 * _LEAST_SAVES:
        return []
    cuts = segments(apart[after], smallest=SLOWER_SAVES - 1.0)
    usual = min(cuts, key=lambda c: c.level)
    slow = [c for c in cuts if c.level > SLOWER_SAVES * usual.level]
    lost = sum(c.size * (c.level - usual.level) for c in slow)
    if not slow or lost < max(LEAST_LOST_S, UNEVEN_SHARE * float(timeline.ends[-1] - timeline.ends[0])):
        return []
    longest = max(slow, key=lambda c: c.size * c.level)
    span, level = _saves_and_steps(timeline, after, longest)
    before, full = _saves_and_steps(timeline, after, usual)
    steps = (int(timeline.steps[after[slow[0].start]]), int(timeline.steps[after[slow[-1].end - 1]]))
    since = float(timeline.ends[after[slow[0].start]] - apart[after[slow[0].start]])
    return [_Episode(SAVES, steps, since, (span,), ((before, full),), lost, level, full)]


def _saves_and_steps(timeline: Timeline, after: NDArray[np.intp], cut: Segment) -> tuple[Span, float]:
    """From the first save of a stretch to its last, and the wall time of a step there."""
    first, last = int(after[cut.start]), int(after[cut.end - 1])
    span = Span(float(timeline.ends[max(first - 1, 0)]), float(timeline.ends[last]))
    return span, span.seconds / max(last - first + 1, 1)


def _long_steps(case: Case, symptoms: Symptoms) -> list[_Episode]:
    """Single long steps are one episode of their own, against the steps around them."""
    slow = symptoms.slow
    found = [s for s in spikes(case) if not any(p.start <= s.end <= p.end for p in slow)]
    told = sorted(found, key=lambda s: s.level - s.seconds)[:_LONGEST_SPIKES]
    spans = tuple(Span(s.start, s.end) for s in sorted(told, key=lambda s: s.start) if s.seconds >= _SHORTEST_S)
    if not spans:
        return []
    calm = _between(case, symptoms, found)
    mean = float(np.mean([s.seconds for s in told if s.seconds >= _SHORTEST_S]))
    usual = float(np.mean([s.level for s in told if s.seconds >= _SHORTEST_S]))
    lost = sum(s.seconds - s.level for s in found)
    steps = (found[0].step, found[-1].step)
    references = ((calm, usual),) if calm is not None else ()
    return [_Episode("long-steps", steps, found[0].start, spans, references, lost, mean, usual)]


def _between(case: Case, symptoms: Symptoms, found: list[Spike]) -> Span | None:
    """The longest stretch of the run without a long step."""
    timeline = case.timeline
    if timeline is None:
        return None
    edges = [float(timeline.ends[0]), *(t for s in found for t in (s.start, s.end)), float(timeline.ends[-1])]
    gaps = [Span(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    calm = [g for g in gaps if not any(p.start < g.end and g.start < p.end for p in symptoms.slow)]
    best = max(calm, key=lambda g: g.seconds, default=None)
    return best if best is not None and best.seconds >= _SHORTEST_S else None


def _stall(case: Case, symptoms: Symptoms) -> Account | None:
    """What filled the silence of a run that went silent."""
    stall, windows = symptoms.stall, symptoms.windows.get("during")
    if stall is None or stall.since is None or stall.step is None or not windows or windows[0].seconds < _SHORTEST_S:
        return None
    bookings = []
    for wait in all_waits():
        if wait.stall is None or source_of(case, [wait.stall]) is None:
            continue
        during = rates(case, wait.stall, windows[0])
        if during.values:
            longest = max(during.values, key=lambda h: (during.values[h], h))
            share = min(during.values[longest], 1.0)
            bookings.append(Booking(wait, wait.stall.cause, share, _whose(during.values), longest, during, None))
    steps = (stall.step, stall.step)
    return Account("stall", steps, stall.since, stall.seconds, frozenset(), None, tuple(in_order(bookings)))
