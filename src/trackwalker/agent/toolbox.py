"""Where every call of a tool passes: secrets go, the audit log is written, errors become one line."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Sequence, Set
from functools import wraps
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from trackwalker.agent import answers as a
from trackwalker.agent.actions import Office, cancel_job, exclude_nodes, stack_dump, submit_job
from trackwalker.agent.answers import Answer, as_text
from trackwalker.agent.audit import Audit, Caller
from trackwalker.agent.job_files import files, rank_tails
from trackwalker.agent.looking import metrics, tests, what_changed
from trackwalker.agent.texts import logs, stacks
from trackwalker.agent.tools import (
    Cursor,
    JobId,
    MaxBytes,
    compare,
    diagnose,
    evidence,
    list_jobs,
    perf_summary,
    playbook,
    triage,
)
from trackwalker.agent.workspace import Workspace
from trackwalker.errors import RefusedError, TrackwalkerError, UsageError
from trackwalker.job.scrub import Scrubber
from trackwalker.telemetry.client import Floats, Labels, Telemetry
from trackwalker.telemetry.query import iso, parse_time, too_short

# `query_metrics`: one PromQL question; the server aggregates, and a summary of each series comes before any point.
_GRID = 250  # times at which a query is evaluated
_MOST_POINTS = 100  # of one series in an answer
_LONGEST_QUERY = 2_000
_MANY = 40  # series: better aggregated by the server than read one by one


def query_metrics(
    ws: Workspace,
    job: JobId,
    promql: Annotated[
        str,
        Field(description="E.g. 'sum by (host) (rate(hw_rdma_tx_retx_pkts_total[2m]))'; `metrics` lists the names."),
    ],
    start: Annotated[str, Field(description="UTC: ISO time or epoch seconds; default: the job's first sample.")] = "",
    end: Annotated[str, Field(description="The same; default: the last sample.")] = "",
    points: Annotated[int, Field(ge=0, le=_MOST_POINTS, description="Points of each series; 0: summary only.")] = 0,
    cursor: Cursor = "",
    max_bytes: MaxBytes = None,
) -> a.MetricsAnswer:
    """Ask a job's Prometheus one question over a window; aggregate in PromQL (sum by (host), max, topk).

    Each series comes as mean, min, max with its time (UTC), first and last; those that vary most come first. Values are
    in the metric's own unit (`metrics` tells it), of a rate per second; points are [seconds since start, value]. An
    aggregate can hide what is wrong: look at the raw series of a host before you believe it.
    """
    found = ws.job(job)
    limit = a.bound(max_bytes)
    with ws.metrics(found) as telemetry:
        damage = [a.short(line, 200) for line in telemetry.damage[:4]]
        if not promql.strip():
            raise UsageError("say what to ask; `metrics` lists what was recorded")
        if len(promql) > _LONGEST_QUERY:
            raise UsageError(f"the query has {len(promql)} characters: {_LONGEST_QUERY} are enough for one question")
        first, last, step = _window(telemetry, start, end)
        matrix = telemetry.matrix(promql, first, last, step)
        recorded = telemetry.metrics()
        short_ranges = too_short(telemetry, promql)
    series = sorted(
        (_summary(labels, matrix.times, row, points) for labels, row in zip(matrix.labels, matrix.values, strict=True)),
        key=_interest,
    )
    hint = "; ".join([*short_ranges, *([told] if (told := _hint(recorded, promql, series)) else [])]) or None

    def make(part: Sequence[a.SeriesSummary], following: str | None) -> a.MetricsAnswer:
        return a.MetricsAnswer(
            job=found.id,
            query=promql,
            start=iso(first),
            end=iso(last),
            step_s=step,
            total=len(series),
            series=list(part),
            next=following,
            hint=hint,
            damage=damage,
        )

    return a.page(series, cursor, limit, make)


def _window(telemetry: Telemetry, start: str, end: str) -> tuple[float, float, float]:
    begin, until = parse_time(start or None), parse_time(end or None)
    low, high = telemetry.range()
    first, last = low if begin is None else begin, high if until is None else until
    if last < first:
        raise UsageError(f"the end ({iso(last)}) lies before the start ({iso(first)})")
    # Far outside there is nothing, and a window of years would be a grid of days.
    first, last = max(first, low - 3600), min(last, high + 3600)
    if last < first:
        raise UsageError(f"nothing was recorded then: the job's metrics are from {iso(low)} to {iso(high)}")
    return first, last, max(1.0, float(round((last - first) / _GRID)))


def _summary(labels: Labels, times: Floats, row: Floats, points: int) -> a.SeriesSummary:
    known = np.isfinite(row)
    when, values = times[known], row[known]
    tags = {a.short(k, 60): a.short(v, 80) for k, v in sorted(labels.items())}
    if not len(values):
        return a.SeriesSummary(labels=tags, count=0)
    top = int(np.argmax(values))
    chosen = np.unique(np.linspace(0, len(values) - 1, min(points, len(values))).astype(int)) if points else ()
    return a.SeriesSummary(
        labels=tags,
        count=len(values),
        mean=_number(values.mean()),
        min=_number(values.min()),
        max=_number(values[top]),
        max_at=iso(float(when[top])),
        first=_number(values[0]),
        last=_number(values[-1]),
        points=[(round(float(when[i] - times[0]), 1), _number(values[i])) for i in chosen] or None,
    )


def _interest(series: a.SeriesSummary) -> tuple[float, float, str]:
    """Those that vary most first, then the largest; the labels decide the rest, so the order is always the same."""
    low, high = series.min or 0.0, series.max or 0.0
    return low - high, -abs(series.mean or 0.0), str(series.labels)


def _number(value: float) -> float:
    """Five digits: enough to compare, and an answer of many series stays small."""
    return float(f"{float(value):.5g}")


def _hint(recorded: Set[str], promql: str, series: list[a.SeriesSummary]) -> str | None:
    if len(series) > _MANY:
        return f"{len(series)} series: aggregate them, for example sum by (host) (…) or topk(5, …)"
    if series:
        return None
    unknown = [word for word in re.findall(r"\b(?:hw|tb|ray|up)_?\w*", promql) if word not in recorded]
    if unknown:
        return f"{a.short(unknown[0], 80)} was not recorded in this job: absent is not zero; `metrics` lists what was"
    return "no series in this window: absent is not zero"


Tool = Callable[..., Answer]

READ_TOOLS: tuple[Tool, ...] = (
    *(list_jobs, triage, diagnose, what_changed, tests, compare, evidence, metrics, query_metrics),
    *(logs, rank_tails, files, playbook, perf_summary, stacks),
)
ACTION_TOOLS: tuple[Tool, ...] = (submit_job, cancel_job, exclude_nodes, stack_dump)


class Toolbox:
    """The tools over one workspace for one caller; without an office there are no actions."""

    def __init__(self, ws: Workspace, audit: Audit, caller: Caller, office: Office | None = None) -> None:
        self.ws, self.audit, self.caller, self.office = ws, audit, caller, office

    def tools(self) -> list[Tool]:
        """What this caller can call."""
        return [*READ_TOOLS, *(ACTION_TOOLS if self.office is not None else ())]

    def call(self, tool: Tool, **args: Any) -> str:
        """Call a tool; returns compact JSON, raises TrackwalkerError with one line."""
        begin, acts = time.monotonic(), tool in ACTION_TOOLS
        first: Workspace | Office = self.ws
        if acts:
            if self.office is None:
                raise RefusedError("actions are switched off: start the server with --actions and --policy")
            first = self.office
            self._note(tool, args, "begin", "", 0, begin)  # no action without a line that it began
        try:
            answer = tool(first, **args)
        except RefusedError as e:
            self._note(tool, args, "refused", str(e), 0, begin)
            raise
        except Exception as e:
            self._note(tool, args, "error", str(e), 0, begin)
            raise
        text = as_text(answer, self._scrubber(args))
        self._note(tool, args, "ok", getattr(answer, "state", ""), len(text.encode("utf-8", "replace")), begin)
        return text

    def bound(self, tool: Tool, complaint: Callable[[str], Exception]) -> Callable[..., str]:
        """The tool as a caller sees it: its name, words and parameters without the workspace; errors as one line."""
        signature = inspect.signature(tool, eval_str=True)
        own = list(signature.parameters.values())[1:]

        @wraps(tool)
        def call(**args: Any) -> str:
            try:
                return self.call(tool, **args)
            except (TrackwalkerError, OSError) as e:  # OSError: the audit log, or evidence that vanished
                raise complaint(self.line(e)) from e

        call.__signature__ = signature.replace(parameters=own, return_annotation=str)  # type: ignore[attr-defined]
        call.__annotations__ = {**{p.name: p.annotation for p in own}, "return": str}
        call.__doc__ = inspect.getdoc(tool)  # without the indentation: a model reads it
        del call.__wrapped__
        return call

    def line(self, error: Exception) -> str:
        """An error as a model may read it: one line, no secrets."""
        return " ".join(self.ws.scrubber().clean(str(error)).split())[:1000]

    def _scrubber(self, args: dict[str, Any]) -> Scrubber:
        name = args.get("job")
        try:
            return self.ws.scrubber(self.ws.job(name) if isinstance(name, str) else None)
        except TrackwalkerError:
            return self.ws.scrubber()

    def _note(self, tool: Tool, args: dict[str, Any], outcome: Any, says: str, size: int, begin: float) -> None:
        given = {name: value for name, value in args.items() if value not in (None, "")}
        seconds = time.monotonic() - begin
        self.audit.note(self.caller, tool.__name__, given, outcome, says=says, size=size, seconds=seconds)
