"""Many send again, one loses what they send: the receiver is named by what arrives twice or out of order there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.facts.network_facts import bursts_slow_steps, lossy_receiver
from trackwalker.telemetry.client import Matrix

HOSTS = [f"n{i}" for i in range(6)]
RETX = "hw_rdma_tx_retx_pkts_total"


def ask(rates: dict[str, dict[str, float]]) -> Any:
    """What the fact says where these counters rise at these rates in the one slow span."""

    def by_host(query: str, at: float) -> dict[str, float]:
        return next(values for metric, values in rates.items() if metric in query)

    telemetry = SimpleNamespace(metrics=lambda: set(rates), by_host=by_host)
    span = SimpleNamespace(seconds=600.0, end=5000.0, start=4400.0)
    symptoms = SimpleNamespace(windows={"slow": [span]}, slow=[span])
    return lossy_receiver(SimpleNamespace(telemetry=telemetry, trusted=HOSTS), symptoms, EvidenceBook())  # type: ignore[arg-type]


def only(loud: list[str], rate: float) -> dict[str, float]:
    return {h: rate if h in loud else 0.01 for h in HOSTS}


@pytest.mark.parametrize("metric", ["hw_rdma_rx_dup_request_total", "hw_rdma_rx_out_of_sequence_total"])
def test_who_receives_wrongly_what_the_others_send_again_is_named(metric: str) -> None:
    found = ask({RETX: only(HOSTS[:5], 40.0), metric: only(HOSTS[5:], 190.0)})
    assert found.fired
    assert found.hosts == ("n5",)


@pytest.mark.parametrize("metric", ["hw_rdma_rx_dup_request_total", "hw_rdma_rx_out_of_sequence_total"])
def test_nobody_is_named_who_sends_again_himself_or_where_nobody_does(metric: str) -> None:
    assert not ask({RETX: only(HOSTS, 40.0), metric: only(HOSTS[5:], 190.0)}).fired
    assert not ask({RETX: only([], 0.0), metric: only(HOSTS[5:], 190.0)}).fired
    assert ask({metric: only(HOSTS[5:], 190.0)}).fired is None


@pytest.mark.parametrize(("loudest", "named"), [(0.0, ("n5",)), (1100.0, ())])
def test_who_repeats_a_little_while_another_repeats_a_lot_repeats_for_its_sake(
    loudest: float, named: tuple[str, ...]
) -> None:
    count = 200
    slow = (np.arange(count) > 100) & (np.arange(count) % 5 == 0)
    seconds = np.where(slow, 15.0, 12.0)
    ends = 1000.0 + np.cumsum(seconds)
    times = np.arange(ends[0], ends[-1], 12.0)
    step = np.minimum(np.searchsorted(ends, times), count - 1)
    rises = np.array([np.where(slow[step], 200.0, 0.0), np.where(step > 100, 30.0 * loudest, 0.0)])
    labels = [{"host": "n5"}, {"host": "n2"}]
    telemetry = SimpleNamespace(
        metrics=lambda: {RETX},
        by_host=lambda query, at: {"n2": 1.0, "n5": 1.0},
        matrix=lambda query, begin, end, pace: Matrix(labels, times, rises),
    )
    timeline = SimpleNamespace(ends=ends, seconds=seconds, source="job.log")
    timeline = type("Course", (SimpleNamespace,), {"__len__": lambda self: count})(**vars(timeline))
    masks = SimpleNamespace(of=lambda *_: np.arange(count) < 5)
    case = SimpleNamespace(telemetry=telemetry, timeline=timeline, masks=masks, trusted=HOSTS, hosts=HOSTS)
    assert bursts_slow_steps(case, SimpleNamespace(), EvidenceBook()).hosts == named  # type: ignore[arg-type]
