"""Who is unlike all peers from the first step on, and which differences between hosts accuse nobody."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trackwalker.diagnose.causes.states import graph
from trackwalker.diagnose.deviations.levels import Unlike, _excused, _fits_the_steps, _kind, _odd_ones, _outside
from trackwalker.diagnose.episodes.symptoms import Span
from trackwalker.telemetry.client import Sample
from trackwalker.telemetry.meaning import Place, meaning_of

EIGHT = [f"n{i}" for i in range(8)]


def odd(metric: str, values: list[float], hosts: list[str] = EIGHT) -> list[str]:
    meaning = meaning_of(metric)
    kind = _kind(meaning, graph())
    return [] if kind is None else [hosts[i] for i in _outside(np.array(values), hosts, meaning, kind)]


def test_a_narrow_link_among_links_that_are_all_alike_is_odd() -> None:
    assert odd("hw_gpu_pcie_link_width", [16.0] * 5 + [4.0] + [16.0] * 2) == ["n5"]
    assert odd("hw_gpu_pcie_link_width", [16.0, 16.0, 4.0, 16.0], ["box"] * 4) == ["box"]


def test_links_of_several_widths_are_how_the_machines_were_built() -> None:
    assert odd("hw_gpu_pcie_link_width", [16.0, 8.0, 16.0, 8.0, 16.0, 8.0, 16.0, 4.0]) == []


def test_a_port_that_is_not_in_use_is_not_odd() -> None:
    assert odd("hw_net_speed_gbps", [100.0] * 7 + [0.0]) == []


def test_a_wider_link_than_the_others_is_no_trouble() -> None:
    assert odd("hw_gpu_pcie_link_width", [8.0] * 7 + [16.0]) == []


def test_waiting_is_odd_where_it_takes_a_tenth_of_the_time() -> None:
    quiet = [0.02, 0.01, 0.03, 0.02, 0.01, 0.02, 0.03]
    assert odd("hw_cpu_wait_seconds_total", [*quiet, 0.4]) == ["n7"]
    assert odd("hw_cpu_wait_seconds_total", [*quiet, 0.09]) == []


def test_errors_are_odd_where_they_are_many_enough_to_cost_something_and_on_nobody_else() -> None:
    assert odd("hw_net_rx_errors_total", [0.0] * 7 + [300.0]) == ["n7"]
    assert odd("hw_net_rx_errors_total", [0.0] * 7 + [4.0]) == []
    assert odd("hw_net_rx_errors_total", [30.0] * 7 + [300.0]) == []


def test_bytes_that_were_sent_again_are_as_many_errors_as_packets_they_fill() -> None:
    assert odd("hw_rdma_tx_retx_bytes_total", [0.0] * 7 + [102.4]) == []
    assert odd("hw_rdma_tx_retx_bytes_total", [0.0] * 7 + [4e5]) == ["n7"]


def test_an_unknown_level_is_odd_far_outside_the_range_of_all_others() -> None:
    others = [3395.0, 3401.0, 3400.0, 3398.0, 3404.0, 3399.0, 3402.0]
    assert odd("cpu_frequency_mhz", [*others, 1900.0]) == ["n7"]
    assert odd("cpu_frequency_mhz", [*others, 3370.0]) == []
    assert odd("cpu_frequency_mhz", [3400.0, 2900.0, 3100.0, 2700.0, 3000.0, 3300.0, 2800.0, 1900.0]) == []


def test_several_odd_ones_of_few_have_a_role() -> None:
    assert odd("open_files", [1000.0, 1001.0, 1002.0, 1003.0, 1004.0, 1001.0, 9000.0, 9100.0]) == []


@pytest.mark.parametrize(
    "metric", ["hw_gpu_temperature_celsius", "hw_gpu_power_watts", "ray_node_mem_used", "train_step"]
)
def test_places_roles_and_chips_differ_without_harm(metric: str) -> None:
    assert odd(metric, [60.0] * 7 + [85.0]) == []
    assert odd(metric, [60.0] * 7 + [20.0]) == []


def test_of_few_hosts_the_range_is_a_poor_measure() -> None:
    assert odd("cpu_frequency_mhz", [3400.0, 3401.0, 3399.0, 1900.0], ["a", "b", "c", "d"]) == ["d"]
    assert odd("cpu_frequency_mhz", [3400.0, 3401.0, 3399.0, 3100.0], ["a", "b", "c", "d"]) == []
    assert odd("cpu_frequency_mhz", [3400.0, 3401.0, 1900.0], ["a", "b", "c"]) == []
    assert odd("hw_cpu_wait_seconds_total", [0.01, 0.02, 0.01, 0.5], ["a", "b", "c", "d"]) == []


def test_a_delay_is_odd_where_it_is_a_millisecond_more_than_anybody_elses() -> None:
    assert odd("hw_fs_probe_write_seconds", [0.002, 0.003, 0.002, 0.002, 0.003, 0.002, 0.002, 0.3]) == ["n7"]
    assert odd("hw_rank_tcp_rtt_seconds", [0.00008, 0.0001, 0.00009, 0.0001, 0.00008, 0.0001, 0.0001, 0.0006]) == []


def test_a_single_event_of_a_counter_is_chance_and_several_hosts_need_more_than_their_level() -> None:
    meaning = meaning_of("acme_fallback_total")
    lone = np.array([0.0] * 7 + [0.0037])
    assert _outside(lone, EIGHT, meaning, "odd", 270.0) == []
    assert _outside(1000 * lone, EIGHT, meaning, "odd", 270.0) == [7]
    two = np.array([0.07] * 6 + [0.26, 0.27])
    assert _outside(two, EIGHT, meaning_of("acme_residency_ratio"), "odd", 270.0) == [7, 6]


@pytest.mark.parametrize(
    ("varies", "together", "several", "fits"),
    [
        (0.5, True, False, True),  # it moves, and the steps with it
        (0.5, False, False, False),  # bursts that no step feels
        (0.01, False, False, True),  # it hardly moves: nothing speaks against it
        (0.5, True, True, True),
        (0.01, False, True, False),  # several hosts alike have a role, unless the steps move with them
    ],
)
def test_what_costs_time_moves_with_the_steps(varies: float, together: bool, several: bool, fits: bool) -> None:
    rng = np.random.default_rng(3)
    course = rng.normal(0.0, 1.0, 40)
    seconds = np.repeat(10.0 + 0.4 * course, 12)
    own = 100.0 * (1.0 + varies * (course if together else rng.normal(0.0, 1.0, 40)))
    timeline = SimpleNamespace(ends=np.arange(480) * 10.0 + 10.0, seconds=seconds, last_end=4800.0)
    begin = float(timeline.ends[5])
    grid = begin + 120.0 * np.arange(1, 40)
    read = np.interp(grid - 60.0, np.arange(40) * 120.0 + 60.0, own)
    telemetry = SimpleNamespace(matrix=lambda *_: SimpleNamespace(values=read[None, :]))
    place = Place("n7", None, None, None, ())
    odd_one = Unlike(meaning_of("acme_x"), "odd", place, "n7", 1.0, 0.0, 9.0, "q", "s", {})
    case = SimpleNamespace(timeline=timeline)
    assert _fits_the_steps(case, telemetry, odd_one, several) == fits  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metric", "host", "kind", "excused"),
    [
        ("thp_compaction_stall_seconds_total", "n7", "odd", False),
        ("thp_compaction_stall_seconds_total", "n0", "odd", True),  # the first host also coordinates
        ("hw_gpu_pcie_link_width", "n0", "alike", False),
        ("bmc_fan_speed_rpm", "n7", "odd", True),  # a warmer place
        ("optic_fec_corrected_codewords_total", "n7", "odd", True),  # corrected: no harm done
        ("optic_fec_uncorrected_codewords_total", "n7", "odd", False),
    ],
)
def test_a_level_with_a_reason_of_its_own_accuses_only_where_the_steps_move_with_it(
    metric: str, host: str, kind: Any, excused: bool
) -> None:
    odd_one = Unlike(meaning_of(metric), kind, Place(host, None, None, None, ()), host, 1.0, 0.0, 9.0, "q", "s", {})
    assert _excused(odd_one, SimpleNamespace(hosts=EIGHT)) == excused  # type: ignore[arg-type]


def test_of_two_hosts_the_other_ports_are_the_peers_of_a_port() -> None:
    ports = [(host, f"mlx5_{i}") for host in ("n0", "n1") for i in range(4)]
    speed = {p: 16.0 if p != ("n1", "mlx5_2") else 8.0 for p in ports}

    def instant(query: str, at: float) -> list[Any]:
        if "label_replace" in query:  # its own value, and the median of the others
            assert query.count("mlx5_2") == 1, "the median is of all ports, not of those that are called alike"
            return [Sample({"host": "n1"}, 8.0, at), Sample({"host": "median"}, 16.0, at)]
        return [Sample({"host": h, "device": d}, v, at) for (h, d), v in speed.items()]

    hosts = ["n0", "n1"]
    topology: Any = SimpleNamespace(machines={})
    case: Any = SimpleNamespace(hosts=hosts, trusted=hosts, topology=topology)
    telemetry: Any = SimpleNamespace(instant=instant)
    found = list(_odd_ones(case, telemetry, meaning_of("hw_rdma_pcie_link_width"), "alike", Span(0.0, 600.0)))
    assert [u.name for u in found] == ["n1/mlx5_2"]
