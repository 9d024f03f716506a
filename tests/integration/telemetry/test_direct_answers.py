"""The block reader against a real Prometheus: the same labels and the same numbers, for everything that it answers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from trackwalker.lab.scenario import load_scenario
from trackwalker.lab.simulate import simulate
from trackwalker.telemetry.blocks import STALE, BlockWriter, labels
from trackwalker.telemetry.client import QueryError, Telemetry
from trackwalker.telemetry.direct.answers import Direct, Traffic
from trackwalker.telemetry.store import open_database

T0 = 1_700_000_000_000
HOURS = 5
NEVER = 10**12
AT = T0 / 1000 + 9000
PARTS = (
    "heat",
    'heat{gpu="1"}',
    'heat{host=~"n[13]|n2"}',
    'heat{host!="n1",gpu!~"2|3"}',
    "sent_total",
    "lost_total",
    "ragged",
)
RANGED = (
    "avg_over_time", "changes", "count_over_time", "increase", "last_over_time", "max_over_time", "min_over_time",
    "rate", "resets", "sum_over_time",
)  # fmt: skip
ADDED_UP = ("sum_over_time", "increase(", "rate(")  # many numbers in another order, or a gauge's many falls
WHOLE = (
    "count(heat)", "sum(sent_total)", "avg by (host) (heat)", "min by (host, gpu) (heat)", "max without (gpu) (heat)",
    "quantile(0.5, heat)", "quantile by (host) (0.9, heat)", "count by (host) (ragged)", "group by (rack) (ragged)",
    'count_values("n", count_over_time(heat[300s]))', "timestamp(heat)", "sum by (host) (rate(sent_total[5m]))",
    f"sum(sent_total @ {AT}) - sum(sent_total @ {AT - 3000})", f"(heat @ {AT} - heat @ {AT - 3000}) != 0",
    f'label_replace(heat @ {AT} unless heat @ {AT - 14000}, "new", "1", "", "")', "heat > 45", "45 < heat",
    "heat >= bool 45", "1 - heat / 100", "heat * 2 + 1", "heat - heat offset 30s", "heat / on (host, gpu) heat > 0.2",
    "heat - ignoring (shelf) heat", "heat and on (host) (sent_total > 5)", "heat unless on () count(absent_metric)",
    "heat unless on () count(sent_total)", "sent_total or lost_total", 'heat{gpu="0"} or on (host) heat',
    "max by (host) (quantile_over_time(0.75, heat[10m]) - quantile_over_time(0.25, heat[10m]))",
    "quantile_over_time(0.8, heat[777s] offset 1m)", "clamp_min(heat - 45, 0)", "changes(lost_total[1h]) > 0",
    "max by (host) (max_over_time(((changes(heat[9m]) == bool 0) * (count_over_time(heat[9m]) > bool 9))[2h:5m]))",
    "sum_over_time(clamp_min(sent_total - sent_total offset 30s, 0)[20m:30s])", 'max(timestamp({__name__="heat"}))',
    'count(last_over_time({__name__=~"(sent|lost)_total"}[10m]))', "absent_metric", "rate(heat[1ms])", "heat == heat",
)  # fmt: skip


def write(folder: Path, seed: int) -> None:
    """Gauges, counters that begin anew, series that end, begin late, freeze, jitter, lack a label, or are no number."""
    rng = np.random.default_rng(seed)
    writer = BlockWriter(folder, seed=seed)
    for number in range(1, 5):
        host = f"n{number}"
        regular = T0 + 10_000 * np.arange(HOURS * 360) + int(rng.integers(0, 10_000))
        late = regular + (rng.random(len(regular)) < 0.05) * rng.integers(-900, 900, len(regular))
        times = late[rng.random(len(late)) > 0.02 * number]
        if number == 4:
            times = times[(times < T0 + 4_000_000) | (times > T0 + 8_000_000)]
        heat = rng.normal(45, 3, (4, len(times))).round(1)
        heat[1, 300:700] = heat[1, 300]
        if number == 3:
            heat[2, -200:] = STALE
            heat[3, rng.random(len(times)) < 0.1] = np.nan
        writer.add([labels("heat", host=host, gpu=str(g), shelf="top") for g in range(4)], times, heat)
        sent = np.cumsum(rng.integers(0, 900, (2, len(times))), axis=1).astype(float)
        sent[1, 500:] -= sent[1, 500]
        writer.add([labels("sent_total", host=host, device=f"d{d}") for d in range(2)], times, sent)
        lost = np.zeros((2, len(times)))
        lost[0, 900:] = 7.0 * (number == 2)
        writer.add([labels("lost_total", host=host, device=f"d{d}") for d in range(2)], times, lost)
        writer.add([labels("ragged", host=host, **({"rack": "r1"} if number % 2 else {}))], times[400:], heat[:1, 400:])
    writer.close()


@pytest.fixture(scope="module", params=[1, 2])
def both(
    request: pytest.FixtureRequest, prometheus: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Telemetry, Telemetry]]:
    folder = tmp_path_factory.mktemp("direct")
    write(folder, request.param)
    with ExitStack() as stack:
        yield stack.enter_context(open_database(folder, NEVER)), stack.enter_context(open_database(folder, 0))


def questions(seed: int) -> list[str]:
    rng = random.Random(seed)
    made = [f"{f}({part}[{rng.choice(('30s', '95s', '600s', '1h', '12345ms'))}])" for f in RANGED for part in PARTS]
    made += [f"quantile_over_time({q}, sent_total[{r}])" for q in (0, 0.31, 1) for r in ("25s", "15m")]
    return [*PARTS, *WHOLE, *made]


def test_the_same_names_and_the_same_range(both: tuple[Telemetry, Telemetry]) -> None:
    theirs, ours = both
    assert (ours.metrics(), ours.range()) == (theirs.metrics(), theirs.range())


def test_an_instant_is_the_same_to_the_last_digit(both: tuple[Telemetry, Telemetry]) -> None:
    theirs, ours = both
    first, last = theirs.range()
    rng = random.Random(5)
    before = ours._direct
    for promql in questions(5):
        for at in (AT, round(rng.uniform(first, last + 400), 3), round(last, 3)):
            want, got = theirs.instant(promql, at), ours.instant(promql, at)
            assert [s.labels for s in got] == [s.labels for s in want], (promql, at)
            assert [s.time for s in got] == [s.time for s in want], (promql, at)
            a, b = (np.array([s.value for s in found]) for found in (got, want))
            if any(word in promql for word in ADDED_UP):
                np.testing.assert_allclose(a, b, rtol=1e-13, err_msg=promql)
            else:
                assert np.array_equal(a, b, equal_nan=True), (promql, at, a, b)
    assert ours._direct is before
    assert ours._direct is not None
    assert ours._direct.metrics() is not None, "nothing was found to be damaged"


def test_a_grid_has_the_same_values(both: tuple[Telemetry, Telemetry]) -> None:
    first, last = both[0].range()
    rng = random.Random(6)
    for promql in questions(6):
        if "count_values" in promql:
            continue  # by the value of every step: left to Prometheus
        start, step = round(rng.uniform(first - 100, first + 4000), 3), rng.choice((15.0, 61.5, 600.0))
        want, got = (t.matrix(promql, start, min(last, start + 90 * step), step) for t in both)
        assert got.labels == want.labels, promql
        np.testing.assert_allclose(got.values, want.values, rtol=1e-12, atol=1e-12, err_msg=promql)


def test_samples_are_the_same(both: tuple[Telemetry, Telemetry]) -> None:
    theirs, ours = both
    for selector in PARTS:
        want, got = (t.raw(selector, AT - 5000, AT) for t in (theirs, ours))
        assert [row[0] for row in got] == [row[0] for row in want]
        for (_, times, values), (_, own_times, own_values) in zip(want, got, strict=True):
            assert np.array_equal(times, own_times)
            assert np.array_equal(values, own_values, equal_nan=True)


def test_what_it_cannot_answer_prometheus_does(both: tuple[Telemetry, Telemetry]) -> None:
    theirs, ours = both
    for promql in (
        "topk(2, sent_total)",
        "vector(1)",
        "stddev_over_time(sent_total[5m])",
        'label_replace(sent_total, "x", "$1", "host", "n(.)")',
    ):
        assert ours.instant(promql, AT) == theirs.instant(promql, AT)
    with pytest.raises(QueryError):
        ours.instant("sent_total + on (host) lost_total", AT)


def test_damage_in_a_chunk_is_told_and_the_rest_is_read(prometheus: Path, tmp_path: Path) -> None:
    write(tmp_path, 3)
    chunks = min(tmp_path.glob("*/chunks/000001"))
    data = bytearray(chunks.read_bytes())
    data[len(data) // 2] ^= 0x10
    chunks.write_bytes(bytes(data))
    with open_database(tmp_path, NEVER) as theirs, open_database(tmp_path, 0) as ours:
        for metric in sorted(theirs.metrics()):
            promql = f"count(count_over_time({metric}[{HOURS}h]))"
            assert [s.value for s in ours.instant(promql, AT)] == [s.value for s in theirs.instant(promql, AT)]
        assert ours.damage == theirs.damage
        assert ours.damage


def test_several_recorders_write_what_one_does(tmp_path: Path) -> None:
    scenario = load_scenario("rdma-phased")
    scenario.world |= {"steps": 40}
    one, three = (simulate(scenario, tmp_path / str(n), nodes=7, gpus=2, recorders=n) for n in (1, 3))
    assert one.samples == three.samples
    assert len(list((three.job / "prometheus").iterdir())) > len(list((one.job / "prometheus").iterdir()))
    first, second = (Direct(sorted((made.job / "prometheus").iterdir()), Traffic()) for made in (one, three))
    assert first.metrics() == second.metrics()
    for metric in ("hw_gpu_power_watts", "tb_step", "hw_rdma_tx_retx_pkts_total"):
        a, b = (direct.raw(metric, 0, 10**14) for direct in (first, second))
        assert a is not None
        assert b is not None
        assert [(labels, times.tolist(), values.tolist()) for labels, times, values in a] == [
            (labels, times.tolist(), values.tolist()) for labels, times, values in b
        ]
