"""Whoever is unlike all its peers from beginning to end: where there is no past, the others are the reference.

A run at one speed throughout may have been slow from its first step. Levels differ from host to host for good reasons
(roles, chips, places in the rack), so only few of them accuse: what is the same everywhere by construction, what is
lost time by itself, errors by the hundred, and what no cause file knows where it stands far outside the others' range.

Of a slow run the one rank that ends its steps later than all others (`late_rank`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from trackwalker.diagnose.accounts.accounts import MOST
from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.causes.states import Graph, graph
from trackwalker.diagnose.deviations.sweep import MANY, owner
from trackwalker.diagnose.episodes.symptoms import Span, Symptoms
from trackwalker.record.masks import WARM_UP_STEPS
from trackwalker.stats.segments import robust_sigma
from trackwalker.telemetry.client import Floats, QueryError, Sample, host_of
from trackwalker.telemetry.meaning import Meaning, Place, meaning_of, pick_of, place_of
from trackwalker.telemetry.store import Telemetry

Kind = Literal["alike", "lost-time", "errors", "delay", "at-work", "odd"]
Pairs = tuple[tuple[str, str], ...]

_LONGEST_S, _LONGEST_OF_MANY_S = 1800.0, 600.0  # looked at, at both ends of a run
_SHORTEST_S = 120.0  # several scrapes of a slow exporter
_FEWEST, _ENOUGH = 3, 5  # others that agree, or whose range is a measure; of fewer than enough it is a poor one
_MOST_OF = 8  # one subject of so many may be odd: more of them have a role
_OUTSIDE = 5.0  # times the others' whole range
_OF_LEVEL = 0.05  # less is the spread of good hardware
_AT_WORK = 25.0  # per cent of the time: stages of a pipeline and their bubbles differ by less
_LOST = 0.1  # seconds of each second: what a wait has to take before anybody asks
_TOLD_LATER = ("alike", "errors")  # what began later and cost no speed: only what is broken by itself is told
_EVENTS = 10.0  # of a counter: fewer in a window are chance
_SOME_OF = 3  # one host of so many may be odd where it also moves with the steps
_VARIES, _TOGETHER, _APART_FROM = 0.3, 0.5, 0.3  # of its level; correlation with the step time, and none
_FEWEST_BINS, _BIN_S = 12, 120.0
_COSTS_S = 0.001  # an error (a packet sent again, an interrupt, a corrected read): a trickle goes unnoticed for years
_PACKET = 256.0  # bytes: the least that a network carries at once, so as many repeated ones are one error at most
_NEXT_TO_NOTHING = 0.01  # of it, on all others
_OF_PLACE = ("celsius", "rpm")  # heat, and the fans that answer to it
_CORRECTED = re.compile(r"(?<!un)correct(?:ed|able)")
_WHO = ("host", "instance", "gpu", "GpuIndex", "rank")
_MEDIAN = "median"  # of all, in place of a host's name
_WHOLE = {"percent": 100.0, "microseconds": 1e6}  # of a unit, in a second of each second


@dataclass(frozen=True)
class Unlike:
    """A subject whose level is not its peers', with the query that shows it."""

    meaning: Meaning
    kind: Kind
    place: Place
    host: str
    value: float
    middle: float  # the median of all
    outside: float  # times the others' range, for the order
    query: str
    series: str  # its course, as a query
    values: dict[str, float]
    later: bool = False  # it was like its peers in the beginning

    @property
    def name(self) -> str:
        """Whom it is about, in words."""
        part = f"gpu{self.place.gpu}" if self.place.gpu is not None else self.place.device
        return f"{self.host}/{part}" if part else self.host

    @property
    def says(self) -> str:
        """The difference in a sentence."""
        unit = f" {self.meaning.shown_unit}" if self.meaning.shown_unit else ""
        aspect = "".join(f" ({value})" for _, value in self.place.aspect)
        middle = f"{self.middle:.4g} in the median of all"
        when = "in the end" if self.later else "all along"
        return f"{self.name}: {self.meaning.metric}{aspect} is {self.value:.4g}{unit} {when}, {middle}"

    def cite(self, book: EvidenceBook) -> str:
        """The evidence item that tells it."""
        return book.add("metric", self.query, self.says, self.values)


def unlike_all_along(case: Case, symptoms: Symptoms, graph: Graph) -> list[Unlike]:
    """Who differs from all peers through a run at one speed, or since some time in it, the clearest first."""
    telemetry, windows = case.telemetry, symptoms.windows.get("calm") or symptoms.windows.get("steady")
    if telemetry is None or not windows or windows[0].seconds < 3 * _SHORTEST_S:
        return []
    longest = _LONGEST_OF_MANY_S if len(case.hosts) > MANY else _LONGEST_S
    whole, length = windows[0], min(longest, windows[0].seconds / 3.0)
    begin = whole.start if case.timeline is None else float(case.timeline.ends[WARM_UP_STEPS])
    first, last = Span(begin, begin + length), Span(whole.end - length, whole.end)
    if (tail := symptoms.windows["late"][0]).seconds >= _SHORTEST_S:  # between the last saves
        last = Span(max(tail.start, tail.end - length), tail.end)
    middle = Span(last.start - last.seconds, last.start)  # who became odd has been so for a while: no visitor
    found: list[Unlike] = []
    for metric in sorted(telemetry.metrics() - telemetry.renamed):
        meaning = meaning_of(metric)
        kind = _kind(meaning, graph)
        if kind is None or (kind == "lost-time" and case.topology.machines):  # on one machine chance decides who waits
            continue
        late = list(_odd_ones(case, telemetry, meaning, kind, last))
        if not late:
            continue
        early = {(u.place, u.host) for u in _odd_ones(case, telemetry, meaning, kind, first)}
        several = len({u.host for u in late}) > max(1, len(case.hosts) // _MOST_OF)
        along = [u for u in late if (u.place, u.host) in early]
        excused = {u.host for u in along if _excused(u, case)}
        if kind == "odd" or excused:  # what costs time moves with the steps where it moves at all
            along = [u for u in along if _fits_the_steps(case, telemetry, u, several or u.host in excused)]
        found += along
        if kind in _TOLD_LATER:
            before = {(u.place, u.host) for u in _odd_ones(case, telemetry, meaning, kind, middle)}
            fresh = (u for u in late if (u.place, u.host) in before - early and not _excused(u, case))
            found += [replace(u, later=True) for u in fresh]
    return sorted(found, key=lambda u: (u.kind != "alike", -round(u.outside, 3), u.says))


def _excused(odd: Unlike, case: Case) -> bool:
    """Whether something else is a reason to differ: the first host also coordinates, a room has warmer places, and
    what was corrected did no harm by itself. Such a level accuses only where the steps move with it.
    """
    corrected = not odd.meaning.known and _CORRECTED.search(odd.meaning.metric)
    return odd.kind != "alike" and bool(odd.host == case.hosts[0] or odd.meaning.unit in _OF_PLACE or corrected)


def _fits_the_steps(case: Case, telemetry: Telemetry, odd: Unlike, several: bool) -> bool:
    """Whether a level may be what the steps wait for: it moves with them, or (of one host) hardly moves at all."""
    timeline = case.timeline
    if timeline is None or timeline.last_end is None:
        return not several
    begin = float(timeline.ends[WARM_UP_STEPS])
    matrix = telemetry.matrix(odd.series, begin + _BIN_S, timeline.last_end, _BIN_S)
    ends = begin + _BIN_S * np.arange(1, matrix.values.shape[1] + 1)
    inside = [(timeline.ends > end - _BIN_S) & (timeline.ends <= end) for end in ends]
    steps = np.array([np.median(timeline.seconds[i]) if i.any() else np.nan for i in inside])
    if len(matrix.values) != 1:
        return not several
    own = matrix.values[0]
    known = np.isfinite(own) & np.isfinite(steps)
    own, steps = own[known], steps[known]
    if len(own) < _FEWEST_BINS or np.ptp(own) == 0.0 or np.ptp(steps) == 0.0:
        return not several
    together = float(np.corrcoef(own, steps)[0, 1])
    varies = float(own.std()) >= _VARIES * abs(float(own.mean()))
    return together >= _TOGETHER if several else not varies or together >= _APART_FROM


def _kind(meaning: Meaning, graph: Graph) -> Kind | None:
    """How a metric's levels can be compared between hosts, if at all."""
    if not meaning.compared or meaning.quantity in graph.never_the_reason or meaning.bad == "none":
        return None
    if meaning.quantity in graph.alike:
        return "alike" if meaning.kind == "state" else None
    if meaning.quantity in graph.lost_time:
        return "lost-time" if meaning.unit in ("seconds", *_WHOLE) else None
    if meaning.quantity in graph.delays and meaning.layer != "error":
        return "delay" if meaning.unit == "seconds" and not meaning.counts else None
    if meaning.quantity in graph.idle:
        return "at-work" if meaning.unit == "percent" and "memory" not in meaning.metric else None
    if meaning.layer == "error":
        return "errors" if meaning.counts else None
    return "odd" if not meaning.known else None


def _odd_ones(case: Case, telemetry: Telemetry, meaning: Meaning, kind: Kind, span: Span) -> Iterator[Unlike]:
    function = "rate" if meaning.counts else "avg_over_time"
    when = f"[{round(span.seconds)}s] @ {span.end:.3f}"
    floor = " > 0" if kind == "errors" else ""  # nearly all error counters stand still: not shipped
    try:
        if not _worth_reading(telemetry, meaning, kind, span):
            return
        # Of devices at work all of a host together: whoever is waited for is a host, and one may have a card to spare.
        whole = "avg by (host, instance) " if kind == "at-work" else ""
        read = telemetry.instant(f"{whole}({function}({meaning.metric}{when}){floor})", span.end)
    except QueryError:
        return
    groups: dict[tuple[Pairs, str | None], list[tuple[Sample, Place, str]]] = {}
    trusted = frozenset(case.trusted)
    for sample in read:
        place = place_of(sample.labels)
        host = owner(place, case.topology)
        if host in trusted and np.isfinite(sample.value):
            cards = (("kind", case.kinds[host]),) if place.gpu is not None and host in case.kinds else ()
            groups.setdefault(((*place.aspect, *cards), place.device), []).append((sample, place, host))
    if kind == "alike":  # ports of one order are peers, too, where fewer hosts than that are there to be compared
        for (aspect, device), members in list(groups.items()):
            if device is not None and len({host for _, _, host in members}) <= _FEWEST:
                groups.setdefault((aspect, None), []).extend(groups.pop((aspect, device)))
    for (_, device), members in sorted(groups.items(), key=lambda g: str(g[0])):
        values = np.array([m[0].value for m in members])
        hosts = [m[2] for m in members]
        if kind == "errors":
            values, hosts = _with_silent(case, values, hosts)
        for i in _outside(values, hosts, meaning, kind, span.seconds):
            if i >= len(members):
                continue  # a quiet counter is no oddity
            sample, place, host = members[i]
            mine = pick_of(sample.labels)
            theirs = tuple(p for p in mine if p[0] not in _WHO and (device is not None or p[1] != place.device))
            own, peers = (f"{whole}({function}({meaning.metric}{_braces(pick)}{when}))" for pick in (mine, theirs))
            query = f'{own} or label_replace(quantile(0.5, {peers}), "host", "{_MEDIAN}", "", "")'
            answer = {host_of(s.labels): s.value for s in telemetry.instant(query, span.end)}
            if len(answer) == 2 and _MEDIAN in answer:
                subject = "/".join(p for p in (host, place.gpu, place.device) if p)
                told = {subject: sample.value, _MEDIAN: answer[_MEDIAN]}
                spread = max(float(np.ptp(np.delete(values, i))), 1e-6 * max(abs(sample.value), abs(answer[_MEDIAN])))
                far = abs(sample.value - answer[_MEDIAN]) / spread
                course = f"{function}({meaning.metric}{_braces(mine)}[{round(_BIN_S)}s])"
                yield Unlike(meaning, kind, place, host, sample.value, answer[_MEDIAN], far, query, course, told)


def _worth_reading(telemetry: Telemetry, meaning: Meaning, kind: Kind, span: Span) -> bool:
    """Whether anybody can be odd, by single samples: of a large fleet hardly any metric is read any further."""
    name, end = meaning.metric, f"@ {span.end:.3f}"
    if kind == "alike":
        query = f"max({name} {end}) - min({name} {end}) > 0"
    elif kind == "errors":
        query = f"max({name} {end} - {name} @ {span.start:.3f}) > {_LOST / _COSTS_S * span.seconds:.0f} * 0.9"
    else:
        return True
    return bool(telemetry.instant(query, span.end))


def _with_silent(case: Case, values: Floats, hosts: list[str]) -> tuple[Floats, list[str]]:
    """The same with a zero for every host whose counter is quiet."""
    loud = set(hosts)
    silent = [h for h in case.trusted if h not in loud]
    return np.concatenate([values, np.zeros(len(silent))]), [*hosts, *silent]


def _outside(values: Floats, hosts: Sequence[str], meaning: Meaning, kind: Kind, seconds: float = 0.0) -> list[int]:
    """Which of the values stand clear of all others, in the bad direction; none where that is more than a few."""
    # Who idles while the others are busy is waited for; so is who is busy while the others idle.
    signs = {"up": (1.0,), "down": (-1.0,), "either": (1.0, -1.0)}["either" if kind == "at-work" else meaning.bad]
    for sign in signs:
        order = np.argsort(-sign * values, kind="stable")
        for few in range(1, max(1, len(set(hosts)) // (_SOME_OF if kind == "odd" and seconds else _MOST_OF)) + 1):
            odd, rest = order[:few], order[few:]
            others = len({hosts[i] for i in rest} - {hosts[i] for i in odd})
            # Siblings on the same host are peers as well where all are alike: one card of eight.
            peers = len(rest) if kind == "alike" else others
            enough = peers >= (_ENOUGH if kind == "lost-time" else _FEWEST)
            if meaning.counts and kind == "odd" and seconds:
                enough = enough and float(np.min(np.abs(values[odd] - values[rest].max()))) * seconds >= _EVENTS
            if enough and _apart(sign * values[odd], sign * values[rest], meaning, kind, others):
                return [int(i) for i in odd]
    return []


def _apart(odd: Floats, rest: Floats, meaning: Meaning, kind: Kind, others: int) -> bool:
    """Whether the few are beyond the many by as much as their kind of level asks for (larger is worse)."""
    gap, spread = float(odd.min() - rest.max()), float(np.ptp(rest))
    middle = abs(float(np.median(rest)))
    if kind == "alike":
        in_use = meaning.quantity in graph().wired or bool(np.all(odd != 0.0))  # a port at zero may have no cable
        return spread == 0.0 and gap > _OF_LEVEL * middle and in_use
    if kind == "lost-time":
        return gap >= max(_LOST * _WHOLE.get(meaning.unit, 1.0), spread)
    if kind == "errors":
        each = _PACKET if meaning.unit == "bytes" else 1.0
        return gap / each * _COSTS_S >= _LOST and float(rest.max()) <= _NEXT_TO_NOTHING * float(odd.min())
    if kind == "at-work":  # next to nothing: it has no part in the run
        return gap >= max(_OUTSIDE * spread, _AT_WORK) and others >= _ENOUGH and float(abs(odd).min()) >= 1.0
    caution = max(1.0, _ENOUGH / others) ** 2
    least = _COSTS_S if kind == "delay" else _OF_LEVEL * middle * caution
    return gap >= max(_OUTSIDE * caution * spread, least) and gap > 0.0


def _braces(pairs: Pairs) -> str:
    return "{" + ",".join(f"{k}={json.dumps(v)}" for k, v in pairs) + "}" if pairs else ""


# The moments at which the ranks end the same steps: where no metric deviates, they may.
_STEP, LATE_FROM = "train_step", "train_last_step_timestamp_seconds"
_MOST_RANKS = 512  # whose moments are read one by one
_FEW = 16  # ranks
_FEWEST_STEPS = 8  # that several ranks were seen to end, slow and at full speed
_SURE = 4.0  # standard errors
Moments = Mapping[int, float]  # of a rank: when each step that was seen ended


@dataclass(frozen=True)
class Late:
    """A rank that ends its steps late since the run is slow, and what that rests on."""

    host: str
    rank: str
    before_s: float  # behind the others, at full speed
    during_s: float
    others_s: float  # the most by which any other rank fell back
    steps: int
    since: float

    @property
    def says(self) -> str:
        """The finding in a sentence of its own numbers."""
        return (
            f"rank {self.rank} on {self.host} ends its steps {self.during_s:.3g} s behind the others while slow, "
            f"{self.before_s:.3g} s at full speed; no other rank fell back by more than {self.others_s:.3g} s"
        )


def late_rank(case: Case, symptoms: Symptoms) -> Late | None:
    """The one rank that ends its steps late by as much as the steps became longer; None where there is none."""
    telemetry, slow = case.telemetry, symptoms.slow
    if telemetry is None or not slow or not {_STEP, LATE_FROM} <= telemetry.metrics():
        return None
    ranks = _moments(case, telemetry)
    if not 3 <= len(ranks) <= _MOST_RANKS:
        return None
    seen = sorted({step for moments in ranks.values() for step in moments})
    # Looks at different moments show different steps: between two that were seen the ends lie on a line.
    steps = np.array(seen)
    ends = np.array([np.interp(steps, list(m), list(m.values()), np.nan, np.nan) for m in ranks.values()])
    told = np.isfinite(ends).all(axis=0)
    if not told.any():
        return None
    own = np.array([[step in m for step in seen] for m in ranks.values()])
    middle = np.median(ends, axis=0)  # which one of few moves along with itself
    others = [np.median(np.delete(ends, i, 0), axis=0) for i in range(len(ends))] if len(ends) <= _FEW else middle
    behind = np.where(own, ends - others, np.nan)[:, told]
    steps = steps[told]
    worst = max(slow, key=lambda p: (p.end - p.start) * (1.0 - symptoms.full / p.seconds))
    inside = (steps >= worst.first_step) & (steps <= worst.last_step)
    fast = np.any([(steps >= p.first_step) & (steps <= p.last_step) for p in symptoms.phases if not p.slow], axis=0)
    before, during = behind[:, fast], behind[:, inside]
    fewest = np.minimum(np.isfinite(before).sum(axis=1), np.isfinite(during).sum(axis=1))
    known = np.flatnonzero(fewest >= _FEWEST_STEPS)
    if len(known) < 3:
        return None
    was, came = (np.nanmedian(x[known], axis=1) for x in (before, during))  # clocks differ: only changes count
    fell, error = came - was, np.array([_error(before[i]) + _error(during[i]) for i in known])
    order = np.argsort(-fell)
    first, second = int(order[0]), float(fell[order[1]])
    lost = worst.seconds - symptoms.full
    if fell[first] < MOST * lost or second > MOST * fell[first] or fell[first] < _SURE * error[first]:
        return None
    host, rank = list(ranks)[known[first]]
    count = int(fewest[known[first]])
    return Late(host, rank, float(was[first]), float(came[first]), max(second, 0.0), count, worst.start)


def _error(values: Floats) -> float:
    own = values[np.isfinite(values)]
    return robust_sigma(own) / float(np.sqrt(len(own)))


def _moments(case: Case, telemetry: Telemetry) -> dict[tuple[str, str], dict[int, float]]:
    """By host and rank: when the steps ended that looks at both gauges showed."""
    begin, end = telemetry.range()
    shown: dict[str, dict[tuple[str, str], tuple[Floats, Floats]]] = {_STEP: {}, LATE_FROM: {}}
    for metric, rows in shown.items():
        for labels, times, values in telemetry.raw(metric, begin, end):
            host = host_of(labels)
            if host in case.trusted or not case.hosts:
                rows[str(host), labels.get("rank", "")] = (times, values)
    out: dict[tuple[str, str], dict[int, float]] = {}
    for who in shown[_STEP].keys() & shown[LATE_FROM].keys():
        (times, steps), (at, ends) = shown[_STEP][who], shown[LATE_FROM][who]
        _, mine, theirs = np.intersect1d(np.round(times, 3), np.round(at, 3), return_indices=True)
        told = zip(steps[mine].astype(int).tolist(), ends[theirs].tolist(), strict=True)
        out[who] = dict(sorted(told))
    return dict(sorted(out.items()))
