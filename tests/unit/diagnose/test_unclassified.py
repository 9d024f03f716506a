"""Whom deviations point at when no cause fits: few, clear, and not those who only suffer."""

from __future__ import annotations

import pytest

from trackwalker.diagnose.causes.claims import Claim, explanation, settled
from trackwalker.diagnose.causes.states import graph
from trackwalker.diagnose.deviations.sweep import Deviation, Kind
from trackwalker.diagnose.deviations.unclassified import Suspicion, suspect
from trackwalker.diagnose.episodes.episodes import Episode
from trackwalker.diagnose.episodes.symptoms import Span
from trackwalker.telemetry.meaning import meaning_of

SLOW = Episode("slow-1", "slow", (Span(1000.0, 2000.0),), (Span(0.0, 1000.0),), 1000.0)
OTHER = Episode("slow-2", "slow", (Span(3000.0, 4000.0),), (Span(0.0, 1000.0),), 3000.0)
STALL = Episode("stall", "stall", (Span(1000.0, 2000.0),), (Span(0.0, 900.0),), 1000.0)


def off(
    metric: str,
    host: str | None,
    kind: Kind = "rose",
    score: float = 9.0,
    *,
    gpu: str | None = None,
    device: str | None = None,
    before: float = 0.0,
    after: float = 50.0,
    of: int = 16,
    whole: bool = False,
    episode: Episode = SLOW,
) -> Deviation:
    if kind == "fell":
        before, after = max(before, after), min(before, after)
    return Deviation(
        episode, meaning_of(metric), kind, score, host, gpu, device,
        before=before, after=after, since=episode.since, of=of, whole=whole,
    )  # fmt: skip


def found(*deviations: Deviation) -> Suspicion | None:
    return suspect(deviations, graph())


def named(*deviations: Deviation) -> list[str]:
    suspicion = found(*deviations)
    return list(suspicion.hosts) if suspicion is not None else []


FLEET_WAITS = (
    off("hw_gpu_power_watts", None, "fell", before=900.0, after=700.0),
    off("hw_rdma_tx_bytes_total", None, "fell"),
)


def test_errors_on_one_gpu_name_that_gpu() -> None:
    suspicion = found(*FLEET_WAITS, off("hw_gpu_pcie_correctable_total", "n7", gpu="3"))
    assert suspicion is not None
    assert (suspicion.hosts, suspicion.gpus, suspicion.devices) == (("n7",), ("n7/3",), ())
    assert suspicion.since == SLOW.since


def test_those_who_wait_are_not_named() -> None:
    assert named(*FLEET_WAITS) == []


def test_a_receiver_that_alone_gets_duplicates_is_named_and_its_five_senders_are_not() -> None:
    senders = [off("hw_rdma_tx_retx_pkts_total", f"n{i}", device="mlx5_0", score=11.0) for i in range(5)]
    receiver = [
        off("hw_rdma_rx_dup_request_total", "n9", device="mlx5_0"),
        off("hw_rdma_rx_out_of_sequence_total", "n9", device="mlx5_0"),
    ]
    assert named(*FLEET_WAITS, *senders, *receiver) == ["n9"]


def test_a_sender_that_alone_repeats_is_named_and_those_who_get_doubles_are_not() -> None:
    receivers = [off("hw_rdma_rx_dup_request_total", f"n{i}", device="mlx5_0", score=11.0) for i in range(5)]
    assert named(*receivers, off("hw_rdma_tx_retx_pkts_total", "n9", device="mlx5_0")) == ["n9"]


def test_what_most_hosts_show_accuses_nobody() -> None:
    assert named(*(off("hw_tcp_listen_drops_total", f"n{i}", of=16) for i in range(9))) == []


def test_more_of_what_all_hosts_do_accuses_nobody() -> None:
    fleet = off("hw_gpu_clock_mhz", None, "fell", before=2000.0, after=1500.0)
    assert named(fleet, off("hw_gpu_clock_mhz", "n3", "fell", before=2000.0, after=1300.0)) == []
    assert named(off("hw_gpu_clock_mhz", "n3", "fell", before=2000.0, after=1300.0)) == ["n3"]


def test_the_one_that_works_on_while_all_others_wait_is_named() -> None:
    assert named(*FLEET_WAITS, off("hw_gpu_power_watts", "n4", "rose", score=12.0)) == ["n4"]


def test_whoever_becomes_far_more_active_while_the_run_does_less_is_named() -> None:
    busy = off("hw_context_switches_total", "h3", before=42_000.0, after=300_000.0)
    assert named(busy, *FLEET_WAITS) == ["h3"]
    assert named(off("hw_context_switches_total", "h3", before=42_000.0, after=50_000.0), *FLEET_WAITS) == []


def test_in_single_long_steps_nothing_counts_that_a_save_can_do() -> None:
    long = Episode("long-steps", "long-steps", (Span(1000.0, 1020.0),), (Span(0.0, 2000.0),), 1000.0)
    assert named(off("hw_io_pressure_full_pct", "h0", episode=long)) == []
    assert named(off("acme_page_scan_rate", "h4", episode=long)) == ["h4"]


def test_the_last_scrape_is_left_out_of_a_window_that_is_long_enough() -> None:
    assert SLOW.until(1990.0).window == (Span(1000.0, 1990.0),)
    assert SLOW.until(1400.0) == SLOW
    assert STALL.until(1990.0) == STALL


def test_an_error_counter_that_falls_is_no_reason() -> None:
    assert named(off("hw_rdma_tx_retx_pkts_total", "n2", "fell")) == []


def test_the_quantity_upstream_is_told_first() -> None:
    suspicion = found(
        off("hw_gpu_clock_mhz", "n2", "fell", score=12.0, gpu="0"),
        off("hw_gpu_power_limit_watts", "n2", "fell", score=10.0, gpu="0"),
    )
    assert suspicion is not None
    assert [d.meaning.quantity for d in suspicion.deviations] == ["power-limit"]


def test_several_phases_may_have_several_culprits() -> None:
    first = off("hw_net_rx_errors_total", "n1", device="eth0")
    second = off("hw_net_rx_errors_total", "n2", device="eth0", episode=OTHER)
    assert named(first, second) == ["n1", "n2"]


def test_two_unrelated_stories_are_both_told_each_with_its_hosts() -> None:
    suspicion = found(off("hw_net_rx_errors_total", "n1", device="eth0"), off("psu_input_volts", "n6", "fell"))
    assert suspicion is not None
    assert [s.hosts for s in suspicion.stories] == [("n1",), ("n6",)]
    assert suspicion.hosts == ("n1", "n6")


def test_a_phase_in_which_the_clearest_does_not_show_has_a_story_of_its_own() -> None:
    first = off("hw_net_rx_errors_total", "n1", device="eth0", score=12.0)
    second = off("fan_rpm", "n6", "fell", score=8.0, episode=OTHER)
    assert named(first, second) == ["n1", "n6"]
    still = off("hw_net_rx_errors_total", "n1", device="eth0", score=12.0, episode=OTHER)
    assert named(first, second, still) == ["n1"]


def test_when_everybody_has_something_nobody_is_named() -> None:
    odd = ("fan_rpm", "hw_tcp_listen_drops_total", "hw_net_rx_drop_total", "hw_gpu_pcie_correctable_total")
    assert named(*(off(m, f"n{i}", score=9.0) for i, m in enumerate(odd))) == []


def test_the_only_host_is_judged_by_its_past() -> None:
    assert named(off("hw_tcp_listen_drops_total", "box", of=1)) == ["box"]
    assert named(off("hw_gpu_power_watts", "box", "fell", of=1)) == []


def test_in_a_stall_activity_says_nothing() -> None:
    assert named(off("hw_gpu_power_watts", "n4", "rose", episode=STALL), *FLEET_WAITS) == []


@pytest.mark.parametrize("metric", ["hw_collector_errors_total", "tb_perf_step_time_seconds", "hw_mem_dirty_bytes"])
def test_the_observer_and_the_speed_itself_are_never_the_reason(metric: str) -> None:
    assert named(off(metric, "n1", score=12.0)) == []


NIC = Claim("rdma-degradation", frozenset({"rdma-retransmits"}), frozenset({"n1"}), False)
LOGGED = Claim("python-exception", frozenset(), frozenset({"n1"}), True)


@pytest.mark.parametrize(
    ("deviation", "by"),
    [
        (off("hw_rdma_tx_retx_pkts_total", "n1", device="mlx5_0"), "rdma-degradation"),
        (off("hw_rdma_rx_dup_request_total", "n5", device="mlx5_0"), "rdma-degradation"),
        (off("hw_gpu_power_watts", None, "fell"), "rdma-degradation"),
        (off("hw_gpu_pcie_correctable_total", "n1", gpu="0"), None),
        (off("hw_tcp_listen_drops_total", "n5"), None),
    ],
)
def test_a_cause_covers_what_follows_from_it_here_and_elsewhere(deviation: Deviation, by: str | None) -> None:
    assert explanation(deviation, [NIC], graph(), {}) == by


def test_a_machine_is_covered_by_what_its_ranks_are_accused_of() -> None:
    lane = Claim("gpu-power-cap", frozenset({"power-limit"}), frozenset({"box-r0"}), False)
    limit = off("hw_gpu_power_limit_watts", "box", "fell", gpu="0")
    assert explanation(limit, [lane], graph(), {"box-r0": "box"}) == "gpu-power-cap"


def test_what_only_the_log_tells_covers_its_hosts_and_the_waiting() -> None:
    assert explanation(off("hw_net_rx_errors_total", "n1"), [LOGGED], graph(), {}) == "python-exception"
    assert explanation(off("hw_net_rx_errors_total", "n2"), [LOGGED], graph(), {}) is None


def test_what_stands_behind_a_root_becomes_the_root() -> None:
    roles = settled({"a": "root", "b": "contributing", "c": "mechanism"}, {"a": "b"})
    assert roles == {"a": "consequence", "b": "root", "c": "mechanism"}


def test_what_rises_a_hundredfold_needs_no_known_name() -> None:
    assert named(off("vendorx_switch_replays", "h2", score=6.0, before=0.01, after=60.0)) == ["h2"]
    assert named(off("vendorx_switch_replays", "h2", score=6.0, before=20.0, after=60.0)) == []


def test_whom_all_others_wait_for_in_collectives_is_named_and_who_waits_is_not() -> None:
    wait = "train_collective_wait_seconds_total"
    fleet = off(wait, None, "rose", before=0.2, after=0.45)
    assert named(fleet, off(wait, "n3", "fell", before=0.2, after=0.19)) == ["n3"]
    assert named(off(wait, "n1", "rose", before=0.2, after=0.45, of=2)) == []  # one of two: it waits for the other


def test_who_is_waited_for_already_needs_less_to_be_told_why() -> None:
    leak = off("process_open_fds", "n7", score=4.4, before=2e4, after=6e4, episode=STALL)
    chance = off("process_open_fds", "n3", score=4.4, before=2e4, after=6e4, episode=STALL)
    assert suspect([leak], graph()) is None
    told = suspect([leak], graph(), {"n7"})
    assert told is not None
    assert told.hosts == ("n7",)
    assert suspect([chance], graph(), {"n7"}) is None


def test_a_little_more_of_what_was_there_all_along_stops_nobody() -> None:
    assert named(off("hw_fs_probe_seconds", "n7", episode=STALL, before=0.002, after=0.006)) == []
    assert named(off("hw_fs_probe_seconds", "n7", episode=STALL, before=0.002, after=0.8)) == ["n7"]
    assert named(off("hw_rdma_rx_cnp_pkts_total", "n7", episode=STALL, before=0.0, after=3.0)) == [], (
        "of others' traffic"
    )


def test_seconds_that_grew_by_less_than_was_lost_are_not_what_all_wait_for() -> None:
    costly = Episode("slow-1", "slow", (Span(1000.0, 2000.0),), (Span(0.0, 1000.0),), 1000.0, cost=0.25)
    for after, who in ((0.15, []), (0.4, ["n7"])):
        assert named(off("hw_foreign_cpu_seconds_total", "n7", episode=costly, before=0.02, after=after)) == who


def test_what_setting_up_holds_says_nothing_of_a_slow_start() -> None:
    start = Episode("slow-1", "slow", (Span(0.0, 500.0),), (Span(500.0, 2000.0),), 0.0)
    held = {"before": 9e8, "after": 1.1e9}
    assert named(off("hw_mem_rss_bytes", "n7", episode=start, **held)) == []
    assert named(off("hw_mem_rss_bytes", "n7", **held)) == ["n7"]
    assert named(off("hw_net_rx_errors_total", "n7", episode=start)) == ["n7"]


def test_who_fell_less_than_the_others_became_no_worse() -> None:
    kept = Deviation(
        SLOW, meaning_of("hw_gpu_throttle_active"), "rose", 9.0, "n7", "2", before=0.09, after=0.0, since=1000.0, of=12
    )
    assert named(kept) == []
