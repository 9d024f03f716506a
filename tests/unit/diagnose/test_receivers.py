"""Many send again, one loses what they send: the receiver is named by what arrives twice or out of order there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.facts.network_facts import lossy_receiver

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
