"""What names tell: kind, unit, and which words of a query are metrics."""

from __future__ import annotations

import pytest

from trackwalker.telemetry.recorded import kind_of, metrics_in, unit_of


@pytest.mark.parametrize(
    ("name", "kind", "unit"),
    [
        ("hw_gpu_power_watts", "gauge", "W"),
        ("hw_gpu_throttle_seconds_total", "counter", "s"),
        ("hw_net_rx_bytes_total", "counter", "bytes"),
        ("hw_gpu_rank_info", "info", ""),
        ("job:gpu_power_watts:p95", "rule", "W"),
        ("hw_io_pressure_full_pct", "gauge", "%"),
        ("train_step", "gauge", ""),
    ],
)
def test_kind_and_unit(name: str, kind: str, unit: str) -> None:
    assert (kind_of(name), unit_of(name)) == (kind, unit)


@pytest.mark.parametrize(
    ("promql", "names"),
    [
        ("hw_gpu_power_watts", ["hw_gpu_power_watts"]),
        ('avg by (host, gpu) (avg_over_time(a_b{type="sclk", host=~"n.*"}[60s] @ 9.5))', ["a_b"]),
        ("a / on (host) group_left (gpu) b unless on () count(last_over_time(c[10m]))", ["a", "b", "c"]),
        ('label_replace(x, "host", "vm", "", "") or job:y:p50', ["x", "job:y:p50"]),
        ('{__name__=~"hw_.+"}', []),
        ("1e3 * inf + x offset 5m", ["x"]),
        ("quantile_over_time(0.5, x[5m:1m])", ["x"]),
    ],
)
def test_metrics_in_a_query(promql: str, names: list[str]) -> None:
    assert metrics_in(promql) == names
