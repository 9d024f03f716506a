"""Whose a series is: a rank owns its GPUs, and what is nobody's in particular is the machine's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trackwalker.diagnose.deviations.sweep import owner
from trackwalker.record.goodput import Goodput, Part
from trackwalker.record.topology import RECORDING, SCHEDULER, Seat, Topology, gpus_held, make_topology
from trackwalker.telemetry.meaning import Place

CLOCK = 'avg by (host) (avg_over_time(hw_gpu_clock_mhz{type="sclk"}[60s] @ 9.000))'


def lanes(*gpus: str) -> Topology:
    """Ranks on one machine, each with its GPUs (one letter each)."""
    seats = [Seat(rank, f"box-r{rank}", "box") for rank in range(len(gpus))]
    info = [{"host": "box", "gpu": g, "rank": str(rank)} for rank, mine in enumerate(gpus) for g in mine]
    return make_topology(seats, [], [], info)


def test_on_a_cluster_every_host_is_a_machine_of_its_own() -> None:
    nodes = [Seat(0, "n1", "n1"), Seat(1, "n1", "n1"), Seat(2, "n2", "n2"), Seat(3, "n2", "n2")]
    info = [{"host": f"n{1 + r // 2}", "gpu": str(r % 2), "rank": str(r)} for r in range(4)]
    topology = make_topology(nodes, [], [], info)
    assert topology.machines == ()
    assert topology.by_owner(CLOCK) == CLOCK
    assert topology.gpu_name("n2/1") == "n2/1"
    assert topology.ranks_of("n2", "1") == (3,)


def test_the_only_rank_of_a_machine_has_all_its_gpus() -> None:
    topology = make_topology([Seat(0, "vm-r0", "vm")], ["vm-r0"], [], [])
    assert topology.machines == ("vm",)
    assert topology.lane_of("vm", "3") == "vm-r0"
    assert topology.gpu_name("vm-r0/3") == "3"
    assert topology.by_owner(CLOCK) == (
        'label_replace(avg by (host) (avg_over_time(hw_gpu_clock_mhz{host="vm",type="sclk"}[60s] @ 9.000)),'
        ' "host", "vm-r0", "", "")'
    )


def test_each_lane_sees_its_own_gpus() -> None:
    topology = lanes("0", "12")
    assert topology.lane_of("box", "2") == "box-r1"
    assert topology.gpus_of("box-r1") == ["1", "2"]
    assert topology.by_owner("max by (host) (hw_gpu_power_watts)") == (
        'label_replace(max by (host) (hw_gpu_power_watts{host="box",gpu=~"0"}), "host", "box-r0", "", "") or '
        'label_replace(max by (host) (hw_gpu_power_watts{host="box",gpu=~"1|2"}), "host", "box-r1", "", "")'
    )


def test_a_gpu_that_several_ranks_use_is_told_as_the_machine_s() -> None:
    topology = lanes("0", "0")
    assert topology.lane_of("box", "0") == "box"
    assert '"host", "box", "", ""' in topology.by_owner("hw_gpu_power_watts")


def test_what_compares_with_everybody_is_not_narrowed_and_text_is_left_alone() -> None:
    asked = lanes("0", "1").by_owner("min by (host) (hw_gpu_clock_mhz) / scalar(max(hw_gpu_clock_mhz))")
    assert asked.count("scalar(max(hw_gpu_clock_mhz))") == 2
    named = 'max by (host) ({__name__=~"hw_gpu_power_watts|hw_procs_running"})'
    assert lanes("0").by_owner(named) == named


def test_what_counts_the_machine_is_the_rank_s_only_where_there_is_one_rank() -> None:
    query = "max by (host) (hw_gpu_user_processes)"
    assert lanes("0", "1").by_owner(query) == query
    assert '"host", "box-r0"' in lanes("0").by_owner(query)


def test_without_a_record_the_recording_tells_or_the_log_s_hosts_do() -> None:
    info = [
        {"host": "box-r1", "rank": "1", "node": "box"},
        {"host": "box-r0", "rank": "0", "node": "box"},
        {"host": "x"},
    ]
    assert make_topology([], ["a"], info, []).seats == (Seat(0, "box-r0", "box"), Seat(1, "box-r1", "box"))
    assert make_topology([], ["a", "b"], [], []).seats == (Seat(0, "a", "a"), Seat(1, "b", "b"))


def test_a_lane_is_a_host_only_where_the_run_calls_it_one() -> None:
    info = [{"host": f"n{r}-r{r}", "rank": str(r), "node": f"n{r}"} for r in range(2)]
    told = make_topology([], ["n0", "n1"], info, [])
    assert (told.seats, told.machines) == ((Seat(0, "n0", "n0"), Seat(1, "n1", "n1")), ())
    assert told.gpu_name("n1/3") == "n1/3"


def place(host: str, gpu: str | None = None, device: str | None = None) -> Place:
    return Place(host, gpu, device, None, ())


def test_a_series_of_a_gpu_is_its_lane_s_and_all_else_stays_where_it_is() -> None:
    topology = lanes("01", "23")
    whose = {name: owner(place("box", gpu=name), topology) for name in "0123"}
    assert whose == {"0": "box-r0", "1": "box-r0", "2": "box-r1", "3": "box-r1"}
    assert owner(place("box"), topology) == "box"
    assert owner(place("box", device="mlx5_0"), topology) == "box"
    assert owner(place("other", gpu="0"), topology) == "other"


Count = st.none() | st.integers(0, 100_000)


@given(Count, Count, Count)
def test_the_scheduler_counts_gpus_else_whoever_saw_most(
    allocated: int | None, told: int | None, recorded: int | None
) -> None:
    held = gpus_held(allocated, told, recorded)
    seen = [n for n in (told, recorded) if n]
    assert held.gpus == (allocated or max(seen, default=None))
    assert (held.source == SCHEDULER) == bool(allocated)
    assert bool(held.source) == (held.gpus is not None)


@given(Count, Count, Count)
def test_a_budget_that_learns_of_a_recording_says_what_one_says_that_knew_it_at_once(
    allocated: int | None, told: int | None, recorded: int | None
) -> None:
    first, at_once = gpus_held(allocated, told, None), gpus_held(allocated, told, recorded)
    later = Goodput(3600.0, *first, parts=[Part("train", 3600.0, 1.0, first.gpus)]).with_recorded(recorded)
    assert (later.gpus, later.gpus_from) == at_once
    assert later.parts[0].gpu_hours == (float(at_once.gpus) if at_once.gpus else None)
    assert later.with_recorded(recorded) == later


def test_a_recording_adds_the_gpus_that_a_log_does_not_tell_of() -> None:
    assert gpus_held(None, 4, 32) == (32, RECORDING)
    assert gpus_held(16, 4, 32) == (16, SCHEDULER)  # machines that it shares with others
