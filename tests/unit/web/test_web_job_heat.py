"""Hosts x time: ordered by how much they differ, grouped without losing an outlier, packed for the browser."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from trackwalker.report.story.heat import measure, spread_of
from trackwalker.web.data import heat
from trackwalker.web.data.heat import Grid
from trackwalker.web.data.heat_rows import MOST_ROWS, document, group, members, outliers, rank
from trackwalker.web.data.job_page_charts import MOST_LINES, overlay


def grid_of(values: np.ndarray, hosts: list[str] | None = None) -> Grid:
    names = tuple(hosts or [f"n{i:04d}" for i in range(len(values))])
    small = values.astype(np.float32)
    spread = spread_of(small)
    usual, deviation = measure(small, spread)
    times = np.arange(values.shape[1], dtype=float) * 10.0
    return Grid("hw_power", "auto", ("q",), names, times, small, usual, deviation, 10.0, 10.0, spread)


def noisy(hosts: int, columns: int = 100, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(600.0, 3.0, (hosts, columns))


def unpacked(text: str, kind: str, columns: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=kind).reshape(-1, columns)


def test_the_host_that_differs_in_one_phase_comes_first() -> None:
    values = noisy(40)
    values[17, 30:50] -= 40.0
    grid = grid_of(values)
    assert grid.hosts[rank(grid).at[0]] == "n0017"


def test_one_odd_sample_does_not_outrank_a_phase() -> None:
    values = noisy(40)
    values[3, 10] += 60.0
    values[17, 30:50] -= 40.0
    grid = grid_of(values)
    assert [grid.hosts[i] for i in rank(grid).at[:2]] == ["n0017", "n0003"]


def test_a_metric_that_moves_for_everybody_alike_marks_nobody() -> None:
    values = noisy(20)
    values[:, 50:] /= 2.0
    grid = grid_of(values)
    assert np.nanmax(np.abs(grid.deviation)) < 8.0


def test_counters_that_are_zero_on_all_hosts_but_one_show_that_one() -> None:
    values = np.zeros((30, 50))
    values[4, 20:] = 812.0
    grid = grid_of(values)
    found = outliers(grid, rank(grid))[0]
    assert (found["host"], found["value"], found["usual"]) == ("n0004", 812.0, 0.0)
    assert np.abs(grid.deviation[5]).max() == 0.0


def test_many_hosts_share_rows_and_the_outliers_have_their_own() -> None:
    values = noisy(1000)
    values[[7, 512]] += 50.0
    grid = grid_of(values)
    rows = group(grid, rank(grid), accused=["n0999"])
    assert len(rows) <= MOST_ROWS
    assert sorted(h for row in rows for h in row.hosts) == list(grid.hosts)
    assert [row.hosts for row in rows[:2]] in ([("n0007",), ("n0512",)], [("n0512",), ("n0007",)])
    accused = next(row for row in rows if "n0999" in row.hosts)
    assert accused.accused
    assert len(accused.hosts) == 1


def test_a_group_shows_its_furthest_member_and_can_be_opened() -> None:
    values = noisy(400, columns=60)
    values[:200, 50:] += np.linspace(100.0, 60.0, 200)[:, None]  # 200 clear ones take the single rows
    values[333, 5] += 50.0  # one odd cell, in a shared row
    grid = grid_of(values)
    order = rank(grid)
    rows = group(grid, order)
    at = next(i for i, row in enumerate(rows) if "n0333" in row.hosts)
    assert len(rows[at].hosts) > 1
    made = document(grid, order, rows)
    shown = made["lo"] + unpacked(made["values"], "<u2", 60)[at, 5] / 65534 * (made["hi"] - made["lo"])
    assert shown == pytest.approx(grid.values[333, 5], abs=0.01)
    opened = members(grid, order, [], *rows[at].ranks)
    assert [row.hosts[0] for row in opened] == list(rows[at].hosts)


def test_where_nothing_was_recorded_the_cell_says_so() -> None:
    values = noisy(5, columns=20)
    values[2, 8:] = np.nan
    values[:, 19] = np.nan
    grid = grid_of(values)
    order = rank(grid)
    rows = group(grid, order)
    made = document(grid, order, rows)
    at = next(i for i, row in enumerate(rows) if row.hosts == ("n0002",))
    assert (unpacked(made["values"], "<u2", 20)[at, 8:] == 65535).all()
    assert (unpacked(made["deviation"], "i1", 20)[at, 8:] == -128).all()
    assert (unpacked(made["deviation"], "i1", 20)[:, 19] == -128).all()


def test_an_answer_stays_small_however_many_hosts_there_are() -> None:
    grid = grid_of(noisy(3000, columns=400))
    order = rank(grid)
    made = document(grid, order, group(grid, order))
    assert len(made["values"]) + len(made["deviation"]) < 400_000
    assert sum(len(row["hosts"]) for row in made["rows"]) <= 3000


def test_a_grid_without_hosts_is_an_empty_map() -> None:
    grid = grid_of(np.empty((0, 10)))
    order = rank(grid)
    made = document(grid, order, group(grid, order))
    assert made["rows"] == []
    assert made["outliers"] == []


def test_the_accused_are_not_part_of_their_own_control_group() -> None:
    values = noisy(12, columns=30)
    values[4] = 100.0
    found = overlay(grid_of(values), ["n0004", "elsewhere"])
    assert found["control"]["hosts"] == 11
    assert min(found["control"]["low"]) > 500
    assert found["lines"][0]["values"][0] == 100.0
    assert found["absent"] == ["elsewhere"]


def test_an_overlay_of_everybody_has_no_band_and_a_limit_of_lines() -> None:
    grid = grid_of(noisy(12, columns=5))
    found = overlay(grid, list(grid.hosts))
    assert len(found["lines"]) == MOST_LINES
    assert found["left_out"] == 12 - MOST_LINES
    assert found["control"]["median"] == [None] * 5


@pytest.mark.parametrize(
    ("metric", "counter"),
    [
        ("hw_rdma_tx_retx_pkts_total", True),
        ("hw_cpu_pressure_some_total_us", True),
        ("hw_mem_total_bytes", False),
        ("hw_gpu_power_watts", False),
    ],
    ids=["counter", "counter-with-unit", "gauge-with-total", "gauge"],
)
def test_a_counter_is_known_by_its_name(metric: str, counter: bool) -> None:
    assert heat.is_counter(metric) is counter


def test_a_host_name_cannot_leave_its_quotes() -> None:
    assert heat.selector("up", host='a"} or up{x="') == r'up{host="a\"} or up{x=\""}'
    assert heat.selector("odd metric", host="a") == '{__name__="odd metric",host="a"}'
