"""Questions about storage that holds whole hosts up, by name, for playbooks."""

from __future__ import annotations

import numpy as np

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.episodes.course import save_steps
from trackwalker.diagnose.episodes.symptoms import Span, Symptoms
from trackwalker.diagnose.facts import heartbeat
from trackwalker.diagnose.facts.log_facts import FACTS, Answer
from trackwalker.stats.segments import Floats
from trackwalker.telemetry.client import host_of

_PRESSURE = "hw_io_pressure_full_pct"
_STALLED_PCT = 20.0  # of ten seconds in which nothing on the host could run for want of I/O: two whole seconds
_GRID_S = 10.0  # the kernel's own averaging time of that percentage
_LASTING_S = 60.0  # six of those: shorter ones are bursts of writeback
_AFTER_SAVE_S = 60.0  # written back to the store after the step that saved


def storage_stalled(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The very hosts that missed their heartbeats were held up by I/O when these stopped, outside of saves."""
    window = symptoms.windows.get("missed")
    if case.telemetry is None or not window or _PRESSURE not in case.telemetry.metrics():
        return Answer(None)
    span = window[0]
    matrix = case.telemetry.matrix(_PRESSURE, span.start, span.end, _GRID_S)
    free = _outside_saves(case, matrix.times)
    stalled: dict[str, float] = {}
    for labels, values in zip(matrix.labels, matrix.values, strict=True):
        host = host_of(labels)
        if host is not None and (not case.hosts or host in case.trusted):
            stalled[host] = _GRID_S * float(np.sum(free & (values >= _STALLED_PCT)))
    if not stalled:
        return Answer(None)
    held = sorted(h for h, seconds in stalled.items() if seconds >= _LASTING_S)
    seconds = round(span.seconds)
    query = f"avg by (host) (avg_over_time({_PRESSURE}[{seconds}s] @ {span.end:.3f}))"
    values = {h: v for h, v in case.telemetry.by_host(query, span.end).items() if h in stalled}
    accused = {h for _, h in heartbeat.accused(case)}
    if not accused:
        return Answer(None)
    if not accused <= set(held):
        highest = max(values.values(), default=0.0)
        says = f"I/O pressure at most {highest:.3g} % on average of any host while the beats were missed"
        return Answer(False, (book.add("metric", query, says, _few(values)),))
    few = held if 2 * len(held) <= len(stalled) else []
    worst = max(values[h] for h in held)
    others = max((v for h, v in values.items() if h not in held), default=0.0)
    who = ", ".join(few) or f"{len(held)} hosts"
    says = (
        f"{who}: I/O pressure {worst:.0f} % on average while the beats were missed, the others at most {others:.0f} %"
    )
    longest = max(stalled[h] for h in held)
    ids = [book.add("metric", query, says, _few(values))]
    says = f"for {longest:.0f} of {seconds} s hardly anything could run there for want of I/O, saves left out"
    source = f"{_PRESSURE} >= {_STALLED_PCT:.0f} every {_GRID_S:.0f} s"
    ids.append(book.add("progress", source, says, {"stalled_s": longest, "window_s": float(seconds)}))
    first = _first(matrix.times, matrix.values, [host_of(x) in held for x in matrix.labels], free)
    return Answer(True, tuple(ids), tuple(few), first)


def _outside_saves(case: Case, times: Floats) -> np.ndarray:
    """Which moments no save can account for."""
    timeline, saved = case.timeline, save_steps(case)
    free = np.ones(len(times), dtype=bool)
    if timeline is None:
        return free
    for i, step in enumerate(timeline.steps):
        if {int(step), int(step) - 1} & saved:
            span = Span(float(timeline.ends[i] - timeline.seconds[i]), float(timeline.ends[i]) + _AFTER_SAVE_S)
            free &= (times < span.start) | (times > span.end)
    return free


def _first(times: Floats, values: Floats, held: list[bool], free: np.ndarray) -> float:
    high = free & (values[np.array(held)] >= _STALLED_PCT).any(axis=0)
    return float(times[int(np.argmax(high))])


def _few(values: dict[str, float], most: int = 16) -> dict[str, float]:
    return {h: values[h] for h in sorted(values, key=lambda h: (-values[h], h))[:most]}


FACTS["storage-stalled"] = storage_stalled
