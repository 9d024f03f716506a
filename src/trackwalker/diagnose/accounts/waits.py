"""Recorded waits: what a rank did in a stretch of time instead of its step's own work, in seconds per second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from string import Template
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.episodes.symptoms import Span
from trackwalker.job.yaml_files import shipped
from trackwalker.telemetry.client import Question, host_of

_BLOCKS = 6  # of a stretch, whose scatter is the wait's own noise
_SHORTEST_BLOCK_S = 4.0  # holds two samples of a collector that is read every second or two


class WaitQuery(BaseModel):
    """Seconds per second of each host, and the metric that has to be there."""

    model_config = ConfigDict(extra="forbid")

    metric: str
    query: str


class StallQuery(WaitQuery):
    """The same while nothing moves, and the cause of a silence that it fills."""

    cause: str


class Wait(BaseModel):
    """One kind of recorded wait (waits.yml says what the fields mean)."""

    model_config = ConfigDict(extra="forbid")

    id: str
    cause: str | None = None
    words: str
    unit: Literal["wall", "thread"]
    devices: bool = False
    upstream: list[str] = []
    queries: list[WaitQuery]
    stall: StallQuery | None = None


@dataclass(frozen=True)
class Rates:
    """A wait of every host in one stretch, with the query that gives it back."""

    query: str
    values: dict[str, float]  # seconds per second


@cache
def all_waits() -> tuple[Wait, ...]:
    """The waits of waits.yml, those upstream of others first."""
    raw = shipped("diagnose", "waits.yml")
    return tuple(Wait.model_validate(entry) for entry in raw)


def source_of(case: Case, queries: list[WaitQuery]) -> WaitQuery | None:
    """The first of the queries whose metric was recorded."""
    known = case.telemetry.metrics() if case.telemetry is not None else frozenset()
    return next((q for q in queries if q.metric in known), None)


def question(source: WaitQuery, span: Span) -> Question:
    """What is asked about a stretch of time."""
    return _filled(source.query, span.seconds, f" @ {span.end:.3f}"), span.end


def rates(case: Case, source: WaitQuery, span: Span) -> Rates:
    """What a wait came to in a stretch of time, for the job's own hosts that can be believed."""
    query, at = question(source, span)
    if case.telemetry is None:
        return Rates(query, {})
    trusted = set(case.trusted)
    values = case.telemetry.by_host(query, at)
    return Rates(query, {h: v for h, v in values.items() if v == v and (not case.hosts or h in trusted)})


def scatter(case: Case, source: WaitQuery, span: Span) -> dict[str, float]:
    """The standard error of a wait's mean over a stretch, from the scatter of its parts; unknown of a short one."""
    length = max(span.seconds / _BLOCKS, _SHORTEST_BLOCK_S)
    if case.telemetry is None or span.seconds < 3 * length:
        return {}
    matrix = case.telemetry.matrix(_filled(source.query, length, ""), span.start + length, span.end, length)
    found: dict[str, float] = {}
    for labels, row in zip(matrix.labels, matrix.values, strict=True):
        known, host = row[np.isfinite(row)], host_of(labels)
        if host is not None and len(known) > 2:
            found[host] = float(known.std(ddof=1) / np.sqrt(len(known)))
    return found


def scatter_of_looks(case: Case, source: WaitQuery, spans: Sequence[Span], host: str, share: float) -> float:
    """The standard error of a share of time that single looks at a gauge tell: of steps shorter than the interval
    between them each look is a coin. What is a mean already strays less, as its parts show.
    """
    strays = scatter(case, source, max(spans, key=lambda s: s.seconds)).get(host)
    if case.telemetry is None or strays == 0.0:
        return 0.0
    looks = max(sum(s.seconds for s in spans) / (case.interval or 1.0), 1.0)
    share = (max(share, 0.0) * looks + 1.0) / (looks + 2.0)  # a few looks alike prove no certainty
    coin = float(np.sqrt(share * max(1.0 - share, 0.0) / looks))
    return coin if strays is None else min(coin, strays)


def _filled(query: str, seconds: float, at: str) -> str:
    window = max(1, round(seconds))
    return Template(query).substitute(window=f"{window}s", seconds=str(window), at=at)
