"""The query box: one PromQL question to a job's own Prometheus, bounded in time, points and bytes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import orjson

from trackwalker.errors import EvidenceError, UsageError
from trackwalker.telemetry.client import Floats, Labels, QueryError, Telemetry, read_matrix
from trackwalker.web.data.pace import Pace, duration_text, sample_interval

LONGEST = 4_000  # characters of a question
POINTS = 400  # of one series
MOST_CHARTED, MOST_LISTED = 24, 200  # series
_MOST_BYTES = 12 << 20
_SECONDS = 15
_BOUND_TIME = re.compile(r"\s*@\s*(?:\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|start\(\)|end\(\))")
_RANGE = re.compile(r"\[\s*(?:\d+(?:ms|[smhdwy]))+\s*\]")
_TWICE = re.compile(r"(?s)(.+) or label_replace\(\1, \"window\", \"[a-z]+\", \"\", \"\"\)")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
WINDOW, STEP = "$__rate_interval", "$__interval"  # as Grafana calls what follows the zoom


@dataclass(frozen=True)
class Question:
    """What is asked: over a span, or (`instant`) at its end."""

    promql: str
    start: float | None = None
    end: float | None = None
    instant: bool = False


def pinned(promql: str) -> bool:
    """Whether a query names its own moment (`@ 1780300800`), so that it gives the same number at every time."""
    return bool(_BOUND_TIME.search(promql))


def unpinned(promql: str) -> str:
    """The same query as it goes over time: its windows follow the zoom, or what ended would be drawn until long after.

    One that asks the same of two moments (`... or label_replace(..., "window", "fast", "", "")`) asks it once.
    """
    free = _RANGE.sub(f"[{WINDOW}]", _BOUND_TIME.sub("", promql))
    twice = _TWICE.fullmatch(free)
    return twice[1] if twice else free


def _filled(telemetry: Telemetry, promql: str, step: float) -> str:
    """A query with the windows that fit this grid: its own columns, and two samples for a rate."""
    if WINDOW not in promql and STEP not in promql:
        return promql
    named = (word for word in _NAME.findall(promql) if word in telemetry.metrics())
    pace = Pace(step, sample_interval(telemetry, next(named, "up")))
    return promql.replace(WINDOW, pace.window_text(True)).replace(STEP, duration_text(step))


@dataclass(frozen=True)
class Plan:
    """A question as Prometheus is asked it."""

    promql: str
    first: float
    last: float
    step: float
    instant: bool

    @property
    def times(self) -> Floats:
        """The moments of the answer."""
        if self.instant:
            return np.array([self.last])
        return np.arange(round(self.first * 1000), round(self.last * 1000) + 1, round(self.step * 1000)) / 1000.0


def plan(telemetry: Telemetry, question: Question) -> Plan:
    """Check a question and put it on a grid."""
    promql = question.promql.strip()
    if not promql:
        raise UsageError("ask something, for example: sum by (host) (rate(hw_rdma_tx_retx_pkts_total[2m]))")
    if len(promql) > LONGEST:
        raise UsageError(f"the query has {len(promql):,} characters: {LONGEST:,} are enough for one question")
    low, high = telemetry.range()
    # Far outside there is nothing, and a window of years would be a grid of days.
    first = low if question.start is None else min(max(question.start, low - 3600), high + 3600)
    last = high if question.end is None else min(max(question.end, low - 3600), high + 3600)
    if last < first:
        raise UsageError("the end of the window lies before its start")
    if question.instant or last == first:
        # As a range of one point: there Prometheus refuses raw samples (`up[2h]`), of which a database has millions.
        return Plan(_filled(telemetry, promql, 1.0), last, last, 1.0, True)
    step = max(1.0, math.ceil((last - first) / POINTS))
    return Plan(_filled(telemetry, promql, step), first, last, step, False)


def answer(telemetry: Telemetry, made: Plan, raw: bytes, seconds: float) -> dict[str, Any]:
    """What Prometheus said, for the chart and the table, with what was left out said in words."""
    times = made.times
    found = _over_time(raw, made, times)
    found.sort(key=lambda pair: _interest(pair[1]))
    return {
        "query": made.promql,
        "start": round(made.first, 3),
        "end": round(made.last, 3),
        "step": 0.0 if made.instant else made.step,
        "seconds": round(seconds, 3),
        "times": [round(float(t), 3) for t in times],
        "series": [
            {"labels": labels, "values": _plain(row) if i < MOST_CHARTED else None, **_summary(row)}
            for i, (labels, row) in enumerate(found[:MOST_LISTED])
        ],
        "total": len(found),
        "note": _note(telemetry, made.promql, len(found)),
    }


def _over_time(raw: bytes, made: Plan, times: Floats) -> list[tuple[Labels, Floats]]:
    out = []
    for labels, own, values in read_matrix(raw) or _slowly(raw):
        row = np.full(len(times), np.nan)
        at = np.rint((own - made.first) / made.step).astype(np.int64)
        inside = (at >= 0) & (at < len(row))
        row[at[inside]] = values[inside]
        out.append((labels, row))
    return out


async def fetch(telemetry: Telemetry, made: Plan) -> bytes:
    """The answer's bytes, read only as far as a page can use them; cancelled, Prometheus stops computing it."""
    limit = httpx.Timeout(_SECONDS + 5.0)
    times = {"start": f"{made.first:.3f}", "end": f"{made.last:.3f}", "step": f"{made.step:.3f}"}
    params = {"query": made.promql, **times, "timeout": f"{_SECONDS}s"}
    try:
        async with (
            httpx.AsyncClient(base_url=telemetry.url, timeout=limit, trust_env=False) as client,
            client.stream("POST", "/api/v1/query_range", data=params) as said,
        ):
            parts, size = [], 0
            async for part in said.aiter_bytes():
                parts.append(part)
                size += len(part)
                if size > _MOST_BYTES:
                    raise UsageError(
                        f"the answer is larger than {_MOST_BYTES >> 20} MB: aggregate it, "
                        "for example topk(20, …) or max by (host) (…), or zoom in"
                    )
            return b"".join(parts)
    except httpx.TimeoutException as e:
        raise UsageError(f"no answer within {_SECONDS} s: {_SMALLER}") from e
    except httpx.TransportError as e:
        raise EvidenceError(f"the job's Prometheus stopped answering ({type(e).__name__}): load the page again") from e


_SMALLER = "ask for fewer series, a shorter range or a longer subquery step"


def _data(raw: bytes) -> dict[str, Any]:
    try:
        body: dict[str, Any] = orjson.loads(raw)
    except orjson.JSONDecodeError as e:
        raise EvidenceError("the job's Prometheus gave no answer that can be read: load the page again") from e
    if body.get("status") == "success":
        data: dict[str, Any] = body["data"]
        return data
    said = " ".join(str(body.get("error")).split())
    if body.get("errorType") in ("timeout", "canceled") or "timed out" in said:
        raise UsageError(f"stopped after {_SECONDS} s: {_SMALLER}")
    if "range vector" in said and "must be Scalar" in said:
        raise UsageError("that is not one number for each series: take a function over it, such as rate(…[2m])")
    if "too many samples" in said:
        raise UsageError(f"the question touches too many samples: {_SMALLER}")
    raise QueryError(said)


def _slowly(raw: bytes) -> list[tuple[Labels, Floats, Floats]]:
    """An answer that is empty, or an error; both are small."""
    result = _data(raw)["result"]
    pairs = [(s["metric"], np.array(s["values"], dtype=np.float64)) for s in result if s.get("values")]
    return [(labels, values[:, 0], values[:, 1]) for labels, values in pairs]


def _interest(row: Floats) -> tuple[float, float]:
    """Those that vary most first, then the largest."""
    known = row[np.isfinite(row)]
    return (float(known.min() - known.max()), -abs(float(known[-1]))) if known.size else (math.inf, 0.0)


def _summary(row: Floats) -> dict[str, float | None]:
    known = row[np.isfinite(row)]
    if not known.size:
        return {"last": None, "min": None, "mean": None, "max": None}
    numbers = {"last": known[-1], "min": known.min(), "mean": known.mean(), "max": known.max()}
    return {name: float(f"{value:.6g}") for name, value in numbers.items()}


def _plain(row: Floats) -> list[float | None]:
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in row.tolist()]


def _note(telemetry: Telemetry, promql: str, found: int) -> str:
    if found > MOST_LISTED:
        return (
            f"{found:,} series: the {MOST_LISTED} that vary most are listed, {MOST_CHARTED} drawn; aggregate for fewer"
        )
    if found > MOST_CHARTED:
        return f"{found:,} series: the {MOST_CHARTED} that vary most are drawn"
    if found:
        return ""
    unknown = [word for word in re.findall(r"\b(?:hw|tb|ray)_\w+", promql) if word not in telemetry.metrics()]
    if unknown:
        return f"no series: {unknown[0][:80]} was not recorded in this job, and absent is not zero"
    return "no series in this window; absent is not zero"
