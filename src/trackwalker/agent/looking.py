"""`what_changed`, `tests` and `metrics`: what deviates, what the engine asked, what was recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from trackwalker.agent import answers as a
from trackwalker.agent import look_answers as la
from trackwalker.agent.tools import Cursor, JobId, MaxBytes
from trackwalker.agent.workspace import Workspace
from trackwalker.diagnose.causes.examine import Examination, TestResult
from trackwalker.diagnose.deviations.changed import MOST_ROWS, Changed, changed
from trackwalker.diagnose.deviations.log_changes import LogChange
from trackwalker.diagnose.verdict import Deviation
from trackwalker.diagnose.views.asked import Asked, state_of
from trackwalker.errors import UsageError
from trackwalker.record.clock import utc
from trackwalker.telemetry.coverage import hosts_seen, scrape_interval
from trackwalker.telemetry.meaning import meaning_of
from trackwalker.telemetry.query import iso
from trackwalker.telemetry.recorded import hints, list_metrics

_LOG_ROWS = 10
_DETAILED = 20  # metrics whose hosts and times are looked up: a few questions each

Hosts = Annotated[list[str] | None, Field(description="Host names, as verdicts and metrics have them.")]


def what_changed(
    ws: Workspace,
    job: JobId,
    start: Annotated[
        str, Field(description="First step (a number), or UTC time (ISO), of the window; default: the job's trouble.")
    ] = "",
    end: Annotated[str, Field(description="Last step, or UTC time, of the window.")] = "",
    hosts: Hosts = None,
    against: Hosts = None,
    cursor: Cursor = "",
    max_bytes: MaxBytes = None,
) -> la.ChangedAnswer:
    """Rank every metric and every kind of log line by how much it changed between a window and the rest of the run.

    Call it before you believe "healthy" or "no known cause", and whenever you doubt a verdict. Each series is measured
    by its own past and by what the other hosts (or `against`) did meanwhile; `absent` is a host that stopped reporting,
    `frozen` one that repeats old values. Counters are compared as rates per second. A score is a z-score.
    """
    found = ws.job(job)
    with ws.case(found) as case:
        seen = changed(case, start or None, end or None, hosts, against)
    lines = seen.log.rows[:_LOG_ROWS] if not cursor else []

    def make(part: Sequence[Deviation], following: str | None) -> la.ChangedAnswer:
        quoted = [_log_kind(row) for row in lines]
        return la.ChangedAnswer(
            notice=a.NOTICE if quoted else None,
            job=found.id,
            compared=_compared(seen),
            metrics=seen.metrics,
            comparisons=seen.tests,
            total=len(seen.deviations),
            changes=[_change(d) for d in part],
            log=quoted,
            log_shown=f"{len(lines)} of {len(seen.log.rows)}" if len(lines) < len(seen.log.rows) else None,
            log_says=seen.log.says or None,
            hint=_changed_hint(seen),
            not_compared=[a.short(line, 200) for line in seen.unseen[:4]],
            next=following,
            damage=[a.short(line, 200) for line in seen.damage[:4]],
        )

    return a.page(seen.deviations, cursor, a.bound(max_bytes), make)


def tests(
    ws: Workspace,
    job: JobId,
    cause: Annotated[str, Field(description="Only the questions about this cause, with their queries.")] = "",  # noqa: PT028 - no test of ours
    cursor: Cursor = "",  # noqa: PT028
    max_bytes: MaxBytes = None,  # noqa: PT028
) -> la.TestsAnswer:
    """List every question that `diagnose` asked: its answer, of which hosts, when it would fire; what was not asked.

    Use it to see whether a cause was ruled out on every host, and what no test looked at. A `no` holds only for the
    hosts of `asked_of`, in `window` (seconds), above the limit of `fires_when`.
    """
    found = ws.job(job)
    diagnosis = ws.verdict(found)
    asked = diagnosis.asked
    chosen = [e for e in asked.examined() if not cause or e.playbook.id == cause]
    skipped = {b.id: asked.why_uncalled(b) for b in asked.uncalled if not cause or b.id == cause}
    if cause and not chosen and not skipped:
        raise UsageError(f"no cause '{a.short(cause, 60)}' is known: playbook without an id lists them")
    begins = not cursor

    def make(part: Sequence[Examination], following: str | None) -> la.TestsAnswer:
        whole = following is None
        return la.TestsAnswer(
            job=found.id,
            symptoms=sorted(asked.symptoms) if begins else [],
            evidence_ends=asked.ends if begins else {},
            total=len(chosen),
            asked=[_examined(asked, e, bool(cause)) for e in part],
            not_asked={k: a.short(v, 160) for k, v in skipped.items()} if whole and (cause or not chosen) else {},
            not_asked_names=sorted(skipped) if whole and not cause else [],
            next=following,
        )

    return a.page(chosen, cursor, a.bound(max_bytes), make)


def metrics(
    ws: Workspace,
    job: JobId,
    pattern: Annotated[
        str, Field(max_length=200, description="Regular expression that a part of the name matches, e.g. 'gpu.*power'.")
    ] = "",
    cursor: Cursor = "",
    max_bytes: MaxBytes = None,
) -> la.RecordedAnswer:
    """List what was recorded: names, kinds, units, which direction is bad; with a narrow pattern also hosts and times.

    What is not in the list was not collected: absent is not zero.
    """
    found = ws.job(job)
    try:
        wanted = re.compile(pattern, re.IGNORECASE)
    except re.error as e:
        raise UsageError(f"'{a.short(pattern, 60)}' is no regular expression: {e}") from e
    with ws.metrics(found) as telemetry:
        names = sorted(name for name in telemetry.metrics() if wanted.search(name))
        detail = {m.name: m for m in list_metrics(telemetry, pattern)} if 0 < len(names) <= _DETAILED else {}
        first, last = telemetry.range()
        interval = scrape_interval(telemetry, names[0]) if names else 0.0
        reporting = len(hosts_seen(telemetry))
        said = hints(telemetry, pattern)[:1] if not names else []
        damage = [a.short(line, 200) for line in telemetry.damage[:4]]

    def row(name: str) -> la.MetricRow:
        means, known = meaning_of(name), detail.get(name)
        return la.MetricRow(
            name=name,
            kind=means.kind,
            unit=means.unit,
            bad=means.bad if means.bad != "none" else "",
            hosts=len(known.hosts) if known else None,
            series=known.series if known else None,
            first=iso(known.first) if known else None,
            last=iso(known.last) if known else None,
        )

    def make(part: Sequence[str], following: str | None) -> la.RecordedAnswer:
        return la.RecordedAnswer(
            job=found.id,
            start=iso(first),
            end=iso(last),
            scrape_s=round(interval, 2) or None,
            hosts=reporting,
            total=len(names),
            metrics=[row(name) for name in part],
            hint=a.short(said[0], 200) if said else None,
            next=following,
            damage=damage,
        )

    return a.page(names, cursor, a.bound(max_bytes), make)


def _compared(seen: Changed) -> list[la.Window]:
    return [
        la.Window(
            name=e.name,
            window=[[utc(s.start), utc(s.end)] for s in e.window[:4]],
            reference=[[utc(s.start), utc(s.end)] for s in e.reference[:4]],
        )
        for e in seen.episodes[:4]
    ]


def _changed_hint(seen: Changed) -> str | None:
    if not seen.metrics:
        return "no metric was recorded: only kinds of log lines were compared; that none changed proves nothing"
    if seen.says:
        return seen.says
    if not seen.deviations:
        return "nothing changed beyond its own noise and beyond what the other hosts did; name a window to look closer"
    if len(seen.deviations) >= MOST_ROWS:
        return f"the table ends at {MOST_ROWS} rows: there may be more; name hosts or a shorter window"
    return None


def _change(d: Deviation) -> la.Change:
    return la.Change(
        host=d.host,
        part=f"gpu {d.gpu}" if d.gpu is not None else d.device,
        alike=d.alike,
        metric=d.metric,
        labels=a.short(", ".join(f"{k}={v}" for k, v in d.labels.items()), 120),
        kind=d.kind,
        before=_digits(d.from_),
        after=_digits(d.to),
        unit=d.unit,
        since=d.since,
        score=round(d.score, 1),
    )


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _log_kind(row: LogChange) -> la.LogKind:
    return la.LogKind(
        kind=row.kind,
        line=row.line,
        inside=row.inside,
        expected=row.expected,
        score=row.score,
        ranks=a.ranges(row.ranks),
        quote=a.quoted(row.example, 160),
    )


def _examined(asked: Asked, examination: Examination, whole: bool) -> la.Examined:
    return la.Examined(
        cause=examination.playbook.id,
        state=state_of(examination),
        tests=[_question(asked, r, whole) for r in examination.results],
    )


def _question(asked: Asked, result: TestResult, whole: bool) -> la.Question:
    row = asked.row(result)
    return la.Question(
        test=row["test"],
        role=row["role"],
        answer=row["answer"],
        asks=a.short(row["asks"], 300) if whole else "",
        fires_when=a.short(row.get("fires_when", ""), 120) if whole or result.fired is not None else "",
        window=row.get("window", "") if whole else "",
        asked_of=row.get("asked_of", ""),
        not_covered=a.names(row.get("not_covered", [])),
        names=a.names(row.get("names", [])),
        missing=a.short(", ".join(row.get("missing", [])[:4]), 160),
        evidence=row.get("evidence", [])[:4],
    )
