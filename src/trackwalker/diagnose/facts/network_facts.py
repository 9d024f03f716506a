"""Questions about who loses packets and when, by name, for playbooks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.episodes import course
from trackwalker.diagnose.episodes.symptoms import Symptoms
from trackwalker.diagnose.facts.log_facts import Answer, add_facts
from trackwalker.record.timeline import Floats
from trackwalker.stats.detectors import outliers
from trackwalker.telemetry.client import host_of

_RETX = "hw_rdma_tx_retx_pkts_total"
_RECEIVED = {  # what a receiver counts of packets that were lost or damaged on their way in
    "hw_rdma_rx_dup_request_total": "duplicates/s",
    "hw_rdma_rx_out_of_sequence_total": "packets/s out of sequence",
}
_PORT = "hw_rdma_port_state"
_SENDERS = 3  # fewer may each have a fault of their own
_ECHO = 5.0  # times as many packets: a port, not the fabric (as in playbooks/limits.yml)
_LEAST_RATE = 1.0  # retransmits a second
_FEW = 40  # hosts named one by one
_FLAPS = 2  # a port does not go down by chance
_BURSTS = 3  # coincidences that are no coincidence any more
_SLOWER = 1.05
_IDLE_PERCENT = 40.0


def lossy_receiver(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Several hosts retransmit and one that does not receives twice or out of order: it loses what they send."""
    telemetry, spans = case.telemetry, symptoms.windows.get("slow")
    counted = [m for m in _RECEIVED if telemetry is not None and m in telemetry.metrics()]
    if telemetry is None or not spans or not counted or _RETX not in telemetry.metrics():
        return Answer(None)
    ids: list[str] = []
    trusted = frozenset(case.trusted)
    accused: set[str] = set()
    for span, metric in product(spans, counted):
        window = f"[{max(1, round(span.seconds))}s] @ {span.end:.3f}"
        sent, doubled = (f"sum by (host) (rate({m}{window}))" for m in (_RETX, metric))
        senders = {h: v for h, v in telemetry.by_host(sent, span.end).items() if h in trusted}
        receivers = {h: v for h, v in telemetry.by_host(doubled, span.end).items() if h in trusted}
        loud = [h for h, v in senders.items() if v >= _LEAST_RATE]
        worst = outliers(receivers, factor=3, floor=_LEAST_RATE, share=0.2)
        quiet = [h for h in worst.hosts if h not in loud]
        if len(loud) >= _SENDERS and quiet and len(quiet) == len(worst.hosts):
            accused |= set(quiet)
            says = f"{len(loud)} hosts retransmit, up to {max(senders.values()):.0f} packets/s each"
            ids.append(book.add("metric", sent, says, senders))
            most = max(receivers[h] for h in quiet)
            says = f"{', '.join(quiet)} receives {most:.0f} {_RECEIVED[metric]} and retransmits nothing: it loses them"
            ids.append(book.add("metric", doubled, says, receivers))
    return Answer(bool(accused), tuple(ids), tuple(sorted(accused)), symptoms.slow[0].start if accused else None)


def bursts_slow_steps(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """A host's bursts of retransmits and the run's slow steps come and go together."""
    query, words = f"sum by (host) (increase({_RETX}[$s]))", "{n} bursts of retransmits; steps inside them"
    # Prometheus extends what two samples rose by to a window of at most 3.2 times their distance.
    could = f"sum by (host) (increase({_RETX}[$s])) > {_LEAST_RATE * 30 / 4:g}"
    return _with_the_steps(case, book, _RETX, query, could, lambda v: v > _LEAST_RATE * 30, _BURSTS, words, "bursts")


def flaps_slow_steps(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """A host's port goes down and comes back, and the run's slow steps are those in which it is down."""
    query, words = f"min by (host) (min_over_time({_PORT}[$s]))", "its port goes down {n} times; steps meanwhile"
    could = f"max by (host) (max_over_time({_PORT}[$s])) != min by (host) (min_over_time({_PORT}[$s]))"
    return _with_the_steps(case, book, _PORT, query, could, lambda v: v < 0.5 * np.nanmax(v), _FLAPS, words, "downs")


def _with_the_steps(
    case: Case, book: EvidenceBook, metric: str, asks: str, could: str, loud: Callable[[Floats], NDArray[np.bool_]],
    least: int, words: str, count: str,
) -> Answer:  # fmt: skip
    """Whether the loud moments of a few hosts are the run's slow steps; `could` asks who could have any at all."""
    telemetry, timeline = case.telemetry, case.timeline
    if telemetry is None or timeline is None or metric not in telemetry.metrics() or len(timeline) < 20:
        return Answer(None)
    keep = ~case.masks.of("checkpoint", "warm-up")
    if keep.sum() < 20:
        return Answer(None)
    begin, end = float(timeline.ends[0]), float(timeline.ends[-1])
    pace = max(10.0, (end - begin) / 2000)
    window = max(30, round(2 * pace))
    query = asks.replace("$s", f"{window}s")
    # Of a thousand hosts hardly one ever lost a packet: the others' two thousand moments need not be looked at.
    able = sorted(telemetry.by_host(could.replace("$s", f"{math.ceil(end - begin) + window}s"), end))
    if not able:
        return Answer(False)
    few = f"{metric}{{host=~{json.dumps('|'.join(map(re.escape, able)))}}}" if len(able) <= _FEW else metric
    matrix = telemetry.matrix(query.replace(metric, few), begin, end, pace)
    found: dict[str, _Match] = {}
    trusted = frozenset(case.trusted)
    most = max((float(np.nansum(values)) for values in matrix.values), default=0.0)
    for labels, values in zip(matrix.labels, matrix.values, strict=True):
        host = host_of(labels)
        if count == "bursts" and float(np.nansum(values)) * _ECHO < most:
            continue  # who repeats a little while another repeats a lot, repeats for its sake
        if host in trusted and np.isfinite(values).any():
            match = _aligned(loud(values), matrix.times, timeline.ends, timeline.seconds, keep, least)
            if match is not None:
                found[str(host)] = match
    if not found or len(found) * 2 > len(case.hosts):
        return Answer(False)
    ids = []
    for host, (slow, usual, n, _) in sorted(found.items()):
        says = f"{host}: {words.format(n=n)} take {slow:.2f} s, the others {usual:.2f} s"
        source = f"{timeline.source} against {query} by step"
        ids.append(book.add("progress", source, says, {"inside_s": slow, "outside_s": usual, count: float(n)}))
    return Answer(True, tuple(ids), tuple(sorted(found)), min(m.first for m in found.values()))


class _Match(NamedTuple):
    """Median step time inside and outside of a host's loud moments, how many bursts, when the first began."""

    slow: float
    usual: float
    bursts: int
    first: float


def _aligned(
    loud: NDArray[np.bool_], times: Floats, ends: Floats, seconds: Floats, keep: NDArray[np.bool_], least: int = _BURSTS
) -> _Match | None:
    """How a host's loud moments go with slow steps; None when they do not."""
    start, stop = np.searchsorted(times, np.stack([ends - seconds, ends]))
    so_far = np.concatenate([[0], np.cumsum(loud)])
    inside = so_far[np.clip(stop, start + 1, None).clip(max=len(loud))] > so_far[start]
    bursts = int(np.sum(np.diff(inside.astype(int), prepend=0) == 1))
    a, b = seconds[inside & keep], seconds[~inside & keep]
    if bursts < least or len(a) < _BURSTS or len(b) < 10 or len(a) > len(b):
        return None
    slow, usual = float(np.median(a)), float(np.median(b))
    above = float(np.mean(a > np.quantile(b, 0.9)))  # most loud steps are slower than nearly all quiet ones
    first = float((ends - seconds)[inside & keep][0])
    return _Match(slow, usual, bursts, first) if slow > _SLOWER * usual and above > 0.6 else None


def idle_in_slow_steps(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The GPUs have nothing to do during the single slow steps: they wait for something outside."""
    telemetry, slow = case.telemetry, course.spikes(case)
    metrics = ("ray_node_gpus_utilization", "hw_gpu_utilization_percent")
    metric = next((m for m in metrics if telemetry is not None and m in telemetry.metrics()), None)
    if telemetry is None or metric is None or len(slow) < _BURSTS or "uneven" not in symptoms.names:
        return Answer(None)
    begin, end = telemetry.range()
    usual = telemetry.instant(f"avg(quantile_over_time(0.5, {metric}[{round(end - begin)}s] @ {end:.3f}))", end)
    if not usual or usual[0].value < _IDLE_PERCENT:
        return Answer(None)  # who trains on CPUs has idle devices all along
    inside: list[float] = []
    ids: list[str] = []
    for spike in slow[:12]:
        # The waiting is somewhere in the step; the lowest moment tells whether anybody computed all along.
        window = f"[{max(15, round(spike.end - spike.start))}s] @ {spike.end:.3f}"
        query = f"avg(min_over_time({metric}{window}))"
        values = [s.value for s in telemetry.instant(query, spike.end)]
        if values:
            inside.append(values[0])
            if len(ids) < _BURSTS:
                says = f"step {spike.step} took {spike.seconds:.1f} s; GPU utilisation falls to {values[0]:.0f} % in it"
                ids.append(book.add("metric", query, says, {"utilisation": values[0]}))
    if len(inside) < _BURSTS:
        return Answer(None)
    return Answer(float(np.median(inside)) < _IDLE_PERCENT, tuple(ids), (), slow[0].start)


add_facts(lossy_receiver, bursts_slow_steps, flaps_slow_steps, idle_in_slow_steps)
