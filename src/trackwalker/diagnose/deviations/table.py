"""The table of deviations that people read: few rows, every number from a query that can be run again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from trackwalker.diagnose import verdict as v
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.deviations.sweep import Deviation, order
from trackwalker.diagnose.episodes.symptoms import Span
from trackwalker.record.clock import utc
from trackwalker.telemetry.client import Sample, host_of
from trackwalker.telemetry.store import Telemetry

MOST_ROWS = 12
_LISTED = 3  # subjects of one story that have a row each; of more, the strongest stands for all
_SEEN = 0.1  # of a change
_TWO_SCRAPES_S = 180.0  # of an exporter that is asked once a minute, the second one late
_COMMON = 3  # rows of what most hosts did
_UNTOLD = frozenset({"speed", "learning"})  # the episode itself, told elsewhere
_PARTS = ("gpu", "device", "GpuIndex", "window")
_MEDIAN = "median"  # of the hosts, in place of a host's name

Explain = Callable[[Deviation], str | None]


def rows(
    found: Sequence[Deviation], telemetry: Telemetry, book: EvidenceBook, explain: Explain, most: int = MOST_ROWS
) -> list[v.Deviation]:
    """The strongest deviations with their numbers; a whole leaf switch's worth is one row."""
    stories: dict[tuple[object, ...], list[Deviation]] = {}
    for d in _merged(d for d in found if d.meaning.quantity not in _UNTOLD):
        stories.setdefault((d.fleet, *d.alike, explain(d)), []).append(d)
    shown = [
        (d, len(story) - 1 if len(story) > _LISTED else 0)
        for story in stories.values()
        for d in (story if len(story) <= _LISTED else story[:1])
    ]
    single = [p for p in shown if not p[0].fleet]
    common = [p for p in shown if p[0].fleet]
    out: list[v.Deviation] = []
    # Who stands out comes first; a few rows are kept for what most hosts did meanwhile.
    for some, room in ((single, most - min(_COMMON, len(common))), (common, most)):
        for d, alike in sorted(some, key=lambda p: -round(p[0].score, 3)):
            if len(out) >= room:
                break
            row = _row(d, alike, telemetry, book, explain)
            if row is not None:
                out.append(row)
    return out


def _merged(found: Iterable[Deviation]) -> list[Deviation]:
    """One row for a subject, metric and direction: the strongest, since the earliest episode that shows it."""
    best: dict[tuple[object, ...], Deviation] = {}
    for d in found:
        key = (*d.subject, d.rank, *d.alike)
        known = best.get(key)
        if known is None:
            best[key] = d
        else:
            strong = max((known, d), key=lambda x: x.score)
            # All slow phases together begin with the first of them, whichever of them shows it.
            dates = [x.since for x in (known, d) if len(x.episode.window) == 1] or [known.since, d.since]
            best[key] = replace(strong, since=min(dates))
    return sorted(best.values(), key=order)


def cite(d: Deviation, telemetry: Telemetry, book: EvidenceBook) -> tuple[str, float | None, float | None] | None:
    """Evidence for one deviation: its id, the value before and the value since; None when the query says otherwise."""
    now, past = d.episode.clear(d.episode.window), d.episode.clear(d.episode.reference)
    if d.kind in ("absent", "restarted", "frozen"):
        return _cite_irregular(d, telemetry, book, now)
    asked = (_ask(d, telemetry, wider, past) for wider in dict.fromkeys((now, _widened(now))))
    answer = next((a for a in asked if a is not None), None)
    if answer is None:
        return None
    query, values, before, after = answer
    told = f"{name(d)}: {d.meaning.metric}{_aspect(d)} {_moved(before, after)}{_unit(d)}"
    return book.add("metric", query, told + _against(d, before, after), values), before, after


def _ask(
    d: Deviation, telemetry: Telemetry, now: Span, past: Span
) -> tuple[str, dict[str, float], float, float] | None:
    """The query for one window, its values, before and after; None when it holds no sample or shows no change."""
    query = f'{_query(d, now)} or label_replace({_query(d, past)}, "window", "before", "", "")'
    values = {_key(s): s.value for s in telemetry.instant(query, now.end)}
    after = [x for k, x in values.items() if not k.endswith("before")]
    before = [x for k, x in values.items() if k.endswith("before")]
    if len(after) != 1 or len(before) != 1 or not math.isfinite(after[0]) or not math.isfinite(before[0]):
        return None
    if f"{before[0]:.4g}" == f"{after[0]:.4g}":
        return None  # a change that its own two numbers do not show
    seen, meant = after[0] - before[0], d.after - d.before
    if math.isfinite(meant) and seen * meant <= _SEEN * meant * meant:
        return None  # a burst somewhere: in what can be shown of the stretch there is next to none of it
    return query, values, before[0], after[0]


def _widened(span: Span) -> Span:
    """A bout shorter than two scrapes of a slow exporter, with what lies around it."""
    lacking = 0.5 * max(0.0, _TWO_SCRAPES_S - span.seconds)
    return Span(span.start - lacking, span.end + lacking)


def name(d: Deviation) -> str:
    """Whom a deviation is about, in words."""
    if d.host is None:
        return "most hosts" if d.of > 1 else "all hosts"
    part = f"/gpu{d.gpu}" if d.gpu is not None else f"/{d.device}" if d.device is not None else ""
    return f"{d.host}{part}"


def _row(d: Deviation, alike: int, telemetry: Telemetry, book: EvidenceBook, explain: Explain) -> v.Deviation | None:
    cited = cite(d, telemetry, book)
    if cited is None:
        return None
    evidence, before, after = cited
    kind = d.kind
    if before is not None and after is not None:
        kind = "rose" if after > before else "fell"
    return v.Deviation(
        host=d.host,
        gpu=d.gpu,
        device=d.device,
        metric=d.meaning.metric,
        labels=dict(d.aspect),
        kind=kind,
        **{"from": _short(before)},
        to=_short(after),
        unit=d.meaning.shown_unit if d.as_rate or not d.meaning.counts else d.meaning.unit,
        since=utc(d.since) or "",
        score=round(d.score, 1),
        alike=alike,
        explained_by=explain(d),
        evidence=evidence,
    )


def _cite_irregular(
    d: Deviation, telemetry: Telemetry, book: EvidenceBook, now: Span
) -> tuple[str, float | None, float | None] | None:
    function, says = {
        "absent": ("count_over_time", "has no sample any more, though its host reports"),
        "frozen": ("changes", "does not move any more"),
        "restarted": ("resets", "began anew"),
    }[d.kind]
    if d.kind == "absent":
        now = Span(min(max(now.start, d.since), now.end - 1.0), now.end)
    query = f"{function}({_selector(d)}[{_window(now)}] @ {now.end:.3f})"
    values = {_key(s): s.value for s in telemetry.instant(query, now.end)}
    return book.add("metric", query, f"{name(d)}: {d.meaning.metric}{_aspect(d)} {says}", values), None, None


def _query(d: Deviation, span: Span) -> str:
    function = "rate" if d.as_rate else "avg_over_time"
    inner = f"{function}({_selector(d)}[{_window(span)}] @ {span.end:.3f})"
    if not d.whole:
        return inner
    over = "sum" if d.as_rate else "avg"
    has_host = d.fleet or any(k == "host" for k, _ in d.pick)
    by_host = f"{over} by ({'host' if has_host else 'host, instance'}) ({inner})"
    if not d.fleet:
        return by_host
    return f'label_replace(quantile(0.5, {by_host}), "host", "{_MEDIAN}", "", "")'


def _selector(d: Deviation) -> str:
    pairs = ",".join(f"{k}={json.dumps(value)}" for k, value in d.pick)
    return f"{d.meaning.metric}{{{pairs}}}" if pairs else d.meaning.metric


def _window(span: Span) -> str:
    return f"{max(1, round(span.seconds))}s"


def _key(sample: Sample) -> str:
    parts = [host_of(sample.labels), *(sample.labels.get(k) for k in _PARTS)]
    return "/".join(p for p in parts if p)


def _aspect(d: Deviation) -> str:
    told = ", ".join(value for _, value in d.aspect)
    return f" ({told})" if told else ""


def _moved(before: float, after: float) -> str:
    verb = "rose" if after > before else "fell" if after < before else "stayed"
    return f"{verb} from {before:.4g} to {after:.4g}"


def _against(d: Deviation, before: float, after: float) -> str:
    own = "rose" if after > before else "fell"
    return "" if d.kind == own else ", less than on the other hosts"


def _unit(d: Deviation) -> str:
    unit = d.meaning.shown_unit if d.as_rate or not d.meaning.counts else d.meaning.unit
    return f" {unit}" if unit else ""


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
