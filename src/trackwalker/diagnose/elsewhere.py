"""A job whose metrics are in the cluster's own store: they are borrowed for one diagnosis, in our names."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trackwalker.diagnose.triage import triage
from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.job.run import RankPlace, RunRecord, load_run
from trackwalker.logs.formats.nodelist import expand
from trackwalker.record.read import Record
from trackwalker.telemetry.foreign.borrowed import borrow
from trackwalker.telemetry.foreign.names import Maps
from trackwalker.telemetry.foreign.remote import Access, RemoteStore

_MARGIN_S = 120.0  # a scrape or two on both sides of what the log speaks of
_LONGEST_S = 7 * 86400.0

Span = tuple[float | None, float | None]


@dataclass(frozen=True)
class Elsewhere:
    """The job with its borrowed metrics, and what they cost the store."""

    job: Job
    says: str


@contextmanager
def with_metrics(job: Job, access: Access, hosts: str | None, span: Span, maps: Maps) -> Iterator[Elsewhere]:
    """The same job with what a store has about its hosts; gone again at the end."""
    seen = triage(job)
    named = expand(hosts) if hosts else list(seen.record.hosts)
    if not named:
        raise UsageError("the log does not say which hosts the job had: give --hosts n[1-24]")
    since, until = _span(span, *_dated(seen.record))
    store = RemoteStore(access)
    try:
        with tempfile.TemporaryDirectory(prefix="trackwalker-borrowed-") as folder:
            into = Path(folder) / "prometheus"
            found = borrow(store, maps, named, since, until, into)
            record = None
            if load_run(job.run_json) is None:
                record = Path(folder) / "run.json"
                _record(job, named, since).save(record)
            absent = sorted(set(named) - found.hosts)
            gone = f"; no sample of {', '.join(absent[:5])}" if absent else ""
            kinds = ", ".join(f"{name} ({count} metrics)" for name, count in sorted(found.exporters.items()))
            says = f"metrics from {kinds}, every {found.interval:.0f} s, {len(found.hosts)} hosts{gone}"
            told = f"{says}; cost to the store: {store.cost.text()}"
            yield Elsewhere(replace(job, metrics=into, record=record), told)
    finally:
        store.close()


def _dated(record: Record) -> tuple[float | None, float | None]:
    """When the job began and ended: by the scheduler, by its own record, by the stamps of its steps."""
    said, clock, course = record.accounting, record.clock, record.timeline
    first = float(course.ends[0]) if course is not None and len(course) and np.isfinite(course.ends[0]) else None
    begun = next((t for t in (said.start, clock.start, record.table.begin, first) if t is not None), None)
    over = next((t for t in (said.end, clock.ended, course.last_end if course else None) if t is not None), None)
    return begun, None if clock.live else over


def _span(asked: Span, start: float | None, end: float | None) -> tuple[float, float]:
    since = asked[0] if asked[0] is not None else start - _MARGIN_S if start is not None else None
    if since is None:
        raise UsageError("the log does not say when the job began: give --since")
    until = asked[1] if asked[1] is not None else end + _MARGIN_S if end is not None else time.time()
    until = min(until, time.time())
    if not since < until:
        raise UsageError("--since is not before --until")
    if until - since > _LONGEST_S:
        raise UsageError("more than seven days: name the hours in question with --since and --until")
    return since, until


def _record(job: Job, hosts: list[str], since: float) -> RunRecord:
    return RunRecord(
        id=job.id,
        name=job.name,
        model=job.name,
        scheduler="elsewhere",
        trainer="command",
        attached=True,
        created=since,
        argv=[],
        command=[],
        ranks=[RankPlace(rank=rank, host=host, node=host) for rank, host in enumerate(hosts)],
        workspace="",
    )
