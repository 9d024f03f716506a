"""A host that reaches a limit of its own, or will (handles, processes, connections): running out ends the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.facts.trend_facts import still_to_run
from trackwalker.record.masks import WARM_UP_STEPS
from trackwalker.stats.segments import Floats, steady_rise
from trackwalker.telemetry.client import QueryError, host_of
from trackwalker.telemetry.meaning import meaning_of
from trackwalker.telemetry.store import Telemetry

_CAPS = {"limit", "max", "maximum", "capacity"}
_LEVELS = {"used", "usage", "current", "open", "allocated", "count", "entries", "active", "number", "total"}
_WHOLE = {"ratio": 1.0, "percent": 100.0}
_POINTS, _LAST = 60, 4  # of the run; of these, the end
_REACHED, _BELOW, _ABOVE = 0.95, 0.8, 1.05  # of the limit: next to nothing left; with room; a limit is soft at times


@dataclass(frozen=True)
class Reached:
    """Hosts that came to a limit of theirs at the end of a run, which they had been below, or will come to it."""

    hosts: tuple[str, ...]
    since: float
    cited: str  # evidence


def limits_reached(case: Case, book: EvidenceBook) -> Reached | None:
    """Who reached a limit when the run ended, where few did; the closest to it."""

    def reached(times: Floats, values: Floats) -> float | None:
        known = values[np.isfinite(values)]
        low = len(known) > 4 * _LAST and float(np.median(known[: len(known) // 2])) < _BELOW
        there = low and _REACHED <= known[-_LAST:].max() <= _ABOVE
        return float(times[np.flatnonzero(values >= _REACHED)[0]]) if there else None

    return _few(case, book, reached, "came to its limit ({share:.1%} of it) when the run ended")


def limits_ahead(case: Case, book: EvidenceBook) -> Reached | None:
    """Who grows towards a limit all along, or of what has less and less, so that it ends before the steps left do.

    A share by itself may well come to 1, and nobody knows what it is a share of: it counts where most of it is gone,
    so that the rest goes in less time than that was seen to take.
    """
    left = still_to_run(case) or 0.0

    def gone(times: Floats, used: Floats, whole: float, within: float) -> float | None:
        trend = steady_rise(times, used)
        return float(times[0]) if trend is not None and trend.until(whole) < within else None

    grows = f"grows all along ({{share:.1%}} of its limit so far) and comes to it in the {left:.0f} s left to run"
    falls = f"falls all along ({{share:.1%}} are left) and comes to nothing in the {left:.0f} s left to run"
    return _few(case, book, lambda t, v: gone(t, v, 1.0, left), grows, True) or _few(
        case, book, lambda t, v: gone(t, -v, 0.0, min(left, float(t[-1] - t[0]))), falls, False
    )


def _few(
    case: Case,
    book: EvidenceBook,
    since: Callable[[Floats, Floats], float | None],
    says: str,
    named: bool | None = None,
) -> Reached | None:
    """The few hosts of whose share of a limit something is true, and since when; of the most used one.

    With `named` only limits that have a metric of their own, or none such.
    """
    telemetry, timeline, over = case.telemetry, case.timeline, case.end_of_work
    if telemetry is None or timeline is None or len(timeline) <= WARM_UP_STEPS or over is None:
        return None
    begin, found = float(timeline.ends[WARM_UP_STEPS]), []
    for metric, query, told in _shares(telemetry):
        if named is not None and named != told:
            continue
        # What is a share by its name alone may mean the rest that is left, which is all of it when the work is over.
        end = min(over if told else float(timeline.ends[-1]), telemetry.range()[1])
        try:
            matrix = telemetry.matrix(query, begin, end, max(end - begin, 1.0) / _POINTS)
        except QueryError:
            continue
        hosts = [host_of(labels) for labels in matrix.labels]
        rows = zip(hosts, matrix.values, strict=True)
        who = {h: t for h, v in rows if h in case.trusted and (t := since(matrix.times, v)) is not None}
        alone = len(case.hosts) > len(set(hosts)) == 1  # about the job, not about the host that tells it
        if who and not alone and 2 * len(who) <= max(2, len(set(hosts))):
            last = {h: v for h, v in telemetry.by_host(f"max_over_time(({query})[2m:10s])", end).items() if h in who}
            found.append((max(last.values(), default=0.0), metric, query, who, last, end))
    if not found:
        return None
    share, metric, query, who, last, end = max(found, key=lambda f: (round(f[0], 3), f[1]))
    text = f"{', '.join(sorted(who))}: {metric} {says.format(share=share)}"
    cited = book.add("metric", f"max_over_time(({query})[2m:10s] @ {end:.3f})", text, last)
    return Reached(tuple(sorted(who)), min(who.values()), cited)


def _shares(telemetry: Telemetry) -> Iterator[tuple[str, str, bool]]:
    """What of a limit is used, as queries: a gauge over the gauge of its name with a word for a limit, if told."""
    names = sorted(m for m in telemetry.metrics() - telemetry.renamed if not m.endswith("_total"))
    caps = {m: _stem(m) for m in names if set(m.split("_")) & _CAPS}
    for metric in names:
        meaning = meaning_of(metric)
        if meaning.known or metric in caps or meaning.kind not in ("gauge", "state"):
            continue  # of what the catalogue names, cause files ask
        mine = _stem(metric)  # what they have in common: one may say more of it than the other
        fit = [(len(mine ^ s), c) for c, s in caps.items() if mine & s in (mine, s) and mine & s]
        if cap := min(((n, c) for n, c in fit if meaning_of(c).unit == meaning.unit), default=(0, ""))[1]:
            yield metric, f"max by (host, instance) ({metric}) / (min by (host, instance) ({cap}) > 0)", True
        elif meaning.unit in _WHOLE:
            yield metric, f"max by (host, instance) ({metric}) / {_WHOLE[meaning.unit]:g}", False


def _stem(metric: str) -> frozenset[str]:
    return frozenset(w.rstrip("s") for w in metric.split("_") if w not in _CAPS | _LEVELS)
