"""What the end of a recording, the peers and the load tell: worlds whose physics nobody tuned an engine to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_worlds import Floats, Small, gone, noisy_steps, since
from worlds import START, World

from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.verdict import Verdict
from trackwalker.job.resolve import resolve

HOSTS = [f"kiln{i:02d}" for i in range(6)]


def verdict(world: Small, where: Path) -> Verdict:
    return diagnose(resolve(str(world.job(where)), where)).verdict


def roots(found: Verdict) -> list[tuple[str, list[str], list[str]]]:
    return [(c.cause, c.hosts, c.gpus) for c in found.roots]


def stopped(silent_s: float, summary: str | None = None, gpus: int = 4, **more: object) -> Small:
    """A run that has not done its steps when it ends."""
    return Small(HOSTS, noisy_steps(160, 11.0), 400, silent_s=silent_s, summary=summary, gpus=gpus, **more)  # type: ignore[arg-type]


def slowed(factor: float = 1.4) -> Small:
    return Small(HOSTS, noisy_steps(160, 11.0, slow=(90, 160, factor)), 160)


@pytest.mark.parametrize(
    ("silent_s", "summary", "gpus", "before_s"),
    [
        (1200.0, None, 4, 5.0),  # the run hangs
        (1200.0, None, 1, 5.0),  # and the host has no second card to be compared with
        (60.0, None, 4, 3.0),  # the recording ends a minute later
        (30.0, "FAILED (exit 1)", 4, 70.0),  # it vanished a minute before the run failed
    ],
)
def test_a_card_whose_series_end_while_its_host_reports_is_named(
    tmp_path: Path, silent_s: float, summary: str | None, gpus: int, before_s: float
) -> None:
    world = stopped(silent_s, summary, gpus)
    gpu = str(min(2, gpus - 1))
    world.lay("*", "kiln03", gone(world.last_end - before_s), gpu)
    assert roots(verdict(world, tmp_path)) == [("unclassified", ["kiln03"], [f"kiln03/{gpu}"])]


def test_a_card_that_is_not_seen_any_more_in_a_run_at_full_speed_is_no_trouble_of_the_run(tmp_path: Path) -> None:
    world = Small(HOSTS, noisy_steps(160, 11.0), 160)
    world.lay("*", "kiln03", gone(world.when(90)), "2")
    assert verdict(world, tmp_path).outcome == "healthy"


def fell_silent(world: Small, host: str, moment: float) -> Small:
    for part in ("", "*"):
        world.lay("*", host, gone(moment), part)
    return world


@pytest.mark.parametrize("summary", [None, "FAILED (exit 1)"])
def test_who_falls_silent_before_all_others_died_though_the_recording_ends_a_minute_later(
    tmp_path: Path, summary: str | None
) -> None:
    world = stopped(60.0, summary)
    assert roots(verdict(fell_silent(world, "kiln02", world.last_end - 2), tmp_path)) == [
        ("node-death", ["kiln02"], [])
    ]


def test_a_host_that_tells_its_own_error_before_it_falls_silent_did_not_die(tmp_path: Path) -> None:
    world = stopped(60.0, "FAILED (exit 1)")
    world.tail = ["2: Traceback (most recent call last):", '2:   File "train.py", line 3', "2: ValueError: bad shape"]
    found = verdict(fell_silent(world, "kiln02", world.last_end - 2), tmp_path)
    assert [c.cause for c in found.roots] == ["python-exception"]


def test_a_short_silence_is_the_end_where_the_devices_are_at_rest_and_a_pause_where_they_work(tmp_path: Path) -> None:
    at_rest = verdict(stopped(60.0), tmp_path / "rest")
    assert (at_rest.status, at_rest.outcome) == ("hanging", "insufficient-evidence")
    busy = stopped(60.0)
    for host in HOSTS:
        busy.lay_all("hw_gpu_utilization_percent", host, lambda t, v: np.full(len(v), 97.0))
    working = verdict(busy, tmp_path / "work")
    assert (working.status, working.outcome) == ("running", "healthy")


def test_what_begins_two_minutes_before_the_end_of_run_and_recording_is_seen(tmp_path: Path) -> None:
    world = stopped(60.0, counters={"acme_bmc_faults_total": 0.0})
    world.lay("acme_bmc_faults_total", "kiln05", since(world.last_end - 130, lambda v: v + 7.0 * np.arange(len(v))))
    assert roots(verdict(world, tmp_path)) == [("unclassified", ["kiln05"], [])]


def starves(world: Small, host: str, moment: float) -> Small:
    """Cards that have nothing to do: they draw little, as evenly as a capped one, and clock down."""
    rng = np.random.default_rng(2)
    for metric, level, scatter in (
        ("hw_gpu_utilization_percent", 22.0, 1.0),
        ("hw_gpu_power_watts", 140.0, 1.5),
        ("hw_gpu_clock_mhz", 900.0, 0.0),
    ):
        world.lay_all(metric, host, since(moment, lambda v, m=level, s=scatter: m + s * rng.normal(0, 1, len(v))))  # type: ignore[misc]
    return world


def test_idle_cards_are_not_held_back_by_a_power_limit(tmp_path: Path) -> None:
    world = slowed()
    assert roots(verdict(starves(world, "kiln04", world.when(90)), tmp_path)) == [("input-stall", ["kiln04"], [])]


@pytest.mark.parametrize(("limit_w", "cause"), [(340.0, "gpu-power-cap"), (600.0, "gpu-clock-degraded")])
def test_busy_cards_that_stand_at_a_limit_are_held_back_by_it_and_others_by_their_clock(
    tmp_path: Path, limit_w: float, cause: str
) -> None:
    world = slowed()
    world.lay_all("hw_gpu_power_watts", "kiln04", since(world.when(90), lambda v: 330 + 0.02 * (v - 450)))
    world.lay_all("hw_gpu_clock_mhz", "kiln04", since(world.when(90), lambda v: 0.78 * v))
    world.lay_all("hw_gpu_power_limit_watts", "kiln04", since(world.when(90), lambda v: np.full(len(v), limit_w)))
    found = verdict(world, tmp_path)
    assert [(c.cause, c.hosts) for c in found.roots] == [(cause, ["kiln04"])]


def test_a_rank_that_is_stopped_now_and_then_is_named_though_the_run_has_one_speed(tmp_path: Path) -> None:
    steps = noisy_steps(160, 11.0)
    for at in range(40, 160, 20):
        steps[at] += 30.0
    world = Small(HOSTS, steps, 160, more={"hw_rank_stopped": (0.0, 0.0)})
    long = [(world.ends[at - 1], world.ends[at]) for at in range(40, 160, 20)]
    world.lay(
        "hw_rank_stopped", "kiln03", lambda t, v: np.any([(t > a + 8) & (t < b - 3) for a, b in long], axis=0) * 1.0
    )
    assert roots(verdict(world, tmp_path)) == [("unclassified", ["kiln03"], [])]


def test_a_soldered_link_that_is_down_from_the_first_step_on_is_told(tmp_path: Path) -> None:
    world = Small(HOSTS, noisy_steps(160, 11.0), 160, cards={"hw_gpu_nvlink_up": 1.0})
    world.lay("hw_gpu_nvlink_up", "kiln04", lambda t, v: np.zeros(len(v)), "2")
    assert roots(verdict(world, tmp_path)) == [("unclassified", ["kiln04"], ["kiln04/2"])]


def test_foreign_work_that_costs_no_step_is_no_trouble(tmp_path: Path) -> None:
    world = Small(HOSTS, noisy_steps(160, 11.0), 160, counters={"hw_foreign_cpu_seconds_total": 0.001})
    world.lay("hw_foreign_cpu_seconds_total", "kiln02", lambda t, v: 0.22 * (t - t[0]))
    assert verdict(world, tmp_path).outcome == "healthy"


def test_the_driver_says_that_a_cards_firmware_answers_no_more(tmp_path: Path) -> None:
    world = stopped(1200.0, cards={"hw_gpu_xid_total": 0.0}, tags={"hw_gpu_xid_total": {"xid": "119"}})
    for host in HOSTS:
        for gpu in range(4):  # a number that was never counted has no series
            since_s = world.last_end - 5.0 if (host, gpu) == ("kiln03", 2) else np.inf
            world.lay("hw_gpu_xid_total", host, lambda t, v, s=since_s: np.where(t > s, 1.0, np.nan), str(gpu))  # type: ignore[misc]
    world.lay("hw_gpu_power_watts", "kiln03", gone(world.last_end - 5), "2")
    assert roots(verdict(world, tmp_path)) == [("gpu-driver-fault", ["kiln03"], ["kiln03/2"])]


def test_a_spare_card_is_no_finding(tmp_path: Path) -> None:
    world = Small(HOSTS, noisy_steps(160, 11.0), 160)
    for metric, level in (("power_watts", 88.0), ("clock_mhz", 345.0), ("utilization_percent", 0.0)):
        world.lay(f"hw_gpu_{metric}", "kiln04", lambda t, v, m=level: np.full(len(v), m), "3")  # type: ignore[misc]
    assert verdict(world, tmp_path).outcome == "healthy"


def test_who_idles_or_alone_is_busy_from_the_first_step_on_is_unlike_its_peers(tmp_path: Path) -> None:
    idle = Small(HOSTS, noisy_steps(160, 11.0), 160)
    assert roots(verdict(starves(idle, "kiln04", START), tmp_path / "idle")) == [("unclassified", ["kiln04"], [])]
    busy = Small(HOSTS, noisy_steps(160, 11.0), 160)
    for host in HOSTS:
        wait = 0.0 if host == "kiln02" else 35.0
        busy.lay_all("hw_gpu_utilization_percent", host, lambda t, v, w=wait: v - w)  # type: ignore[misc]
    assert roots(verdict(busy, tmp_path / "busy")) == [("unclassified", ["kiln02"], [])]


def fills(moment: float) -> object:
    def course(times: Floats, values: Floats) -> Floats:
        return np.round(6e11 * np.clip((moment - times) / (moment - START), 0.0, 1.0))

    return course


@pytest.mark.parametrize(("silent_s", "summary"), [(30.0, "FAILED (exit 1)"), (1200.0, None), (60.0, None)])
@pytest.mark.parametrize("own", [True, False])
def test_a_disk_that_only_the_recording_shows_full_ends_the_run(
    tmp_path: Path, silent_s: float, summary: str | None, own: bool
) -> None:
    world = stopped(silent_s, summary, more={"hw_fs_free_bytes": (5e11, 0.0)})
    for host in ["kiln02"] if own else HOSTS:
        world.lay("hw_fs_free_bytes", host, fills(world.last_end - 20))  # type: ignore[arg-type]
    assert roots(verdict(world, tmp_path)) == [("storage-full", ["kiln02"] if own else [], [])]


@pytest.mark.parametrize(
    "words",
    [
        "transport: remote kiln04 unreachable, giving up after 5 attempts",
        "RuntimeError: connect to kiln04:29501 failed: No route to host",
        "ERROR peer 4 did not answer within 60s, aborting",
    ],
)
def test_ranks_of_several_hosts_that_lost_one_name_it_and_a_single_one_names_nobody(tmp_path: Path, words: str) -> None:
    for speakers, expected in (((0, 1, 2, 3, 5), ["kiln04"]), ((1,), [])):
        world = stopped(40.0, "FAILED (exit 1)")
        world.tail = [f"{rank}: {words}" for rank in speakers]
        assert verdict(world, tmp_path / str(len(speakers))).roots[0].hosts == expected


def test_nobody_is_named_where_each_lost_another_or_all_lost_the_coordinator(tmp_path: Path) -> None:
    ring = [f"{rank}: lost connection to peer {(rank + 1) % 6}" for rank in range(6)]
    first = [f"{rank}: failed to connect to kiln00:8476" for rank in range(1, 6)]
    for name, tail in (("ring", ring), ("first", first)):
        world = stopped(40.0, "FAILED (exit 1)")
        world.tail = tail
        assert [h for c in verdict(world, tmp_path / name).roots for h in c.hosts] == []


def test_what_begins_in_the_middle_of_a_slow_phase_did_not_make_it_slow(tmp_path: Path) -> None:
    world = slowed()
    world.more = {"acme_pump_bar": (2.1, 0.02), "acme_slab_bytes": (3e9, 4e7)}
    world.lay("acme_pump_bar", "kiln01", since(world.when(90), lambda v: v - 0.7))
    world.lay("acme_slab_bytes", "kiln04", since(world.when(130), lambda v: v + 5e9))
    assert roots(verdict(world, tmp_path)) == [("unclassified", ["kiln01"], [])]


@pytest.mark.parametrize("words", [[], ["0: OSError: [Errno 24] Too many open files"]])
def test_who_comes_to_a_limit_of_its_own_when_the_run_ends_is_named(tmp_path: Path, words: list[str]) -> None:
    world = stopped(30.0, "FAILED (exit 1)")
    world.more = {"acme_handles_open": (9_000.0, 400.0), "acme_handles_limit": (65_536.0, 0.0)}
    begin, end = world.when(80), world.last_end - 5

    def grows(times: Floats, values: Floats) -> Floats:
        return np.minimum(values + 60_000.0 * np.clip((times - begin) / (end - begin), 0, 1), 65_536.0)

    world.lay("acme_handles_open", "kiln03", grows)
    world.tail = words
    assert roots(verdict(world, tmp_path)) == [("unclassified", ["kiln03"], [])]


def test_a_limit_that_most_hosts_live_at_ends_nothing(tmp_path: Path) -> None:
    world = stopped(30.0, "FAILED (exit 1)")
    world.more = {"acme_slots_used": (62_000.0, 10.0), "acme_slots_max": (64_000.0, 0.0)}
    assert verdict(world, tmp_path).outcome == "insufficient-evidence"


@pytest.mark.parametrize("reporters", [HOSTS, HOSTS[:1]])
def test_what_moves_on_all_hosts_by_far_more_than_the_steps_is_told_of_nobody(
    tmp_path: Path, reporters: list[str]
) -> None:
    world = slowed()
    world.more = {"acme_checkout_seconds": (0.02, 0.004)}
    for host in HOSTS:
        later = since(world.when(90), lambda v: v + 3.0)
        world.lay("acme_checkout_seconds", host, later if host in reporters else gone(0.0))
    found = verdict(world, tmp_path)
    assert (found.outcome, roots(found)) == ("incident", [("unclassified", [], [])])


def test_what_moves_as_the_steps_do_is_their_consequence(tmp_path: Path) -> None:
    world = slowed()
    world.more = {"acme_duration_seconds": (11.0, 0.2)}
    world.lay("acme_duration_seconds", "*", since(world.when(90), lambda v: 1.4 * v))
    assert verdict(world, tmp_path).outcome == "insufficient-evidence"


def test_a_slow_phase_that_is_shorter_than_two_looks_is_seen_in_part(tmp_path: Path) -> None:
    world = Small(HOSTS, noisy_steps(1200, 1.0, slow=(600, 618, 1.7)), 1200)
    world.more = {"acme_bus_wait_ratio": (0.1, 0.02)}
    begin, end = world.when(600), world.when(618)
    world.lay("acme_bus_wait_ratio", "kiln03", lambda t, v: np.where((t >= begin) & (t <= end), v + 0.4, v))
    assert roots(verdict(world, tmp_path)) == [("unclassified", ["kiln03"], [])]


def hung(silent_s: float = 900.0, **more: tuple[float, float]) -> Small:
    """All ranks poll in a collective that does not end, until a watchdog takes the processes down."""
    told = {"hw_rank_up": (1.0, 0.0), "hw_fs_probe_wedged": (0.0, 0.0), **more}
    world = stopped(silent_s, "FAILED (exit 1)", more=told)
    polls = since(world.last_end, lambda v: np.full(len(v), 260.0))
    ended = since(world.end - 40.0, np.zeros_like)
    for host in HOSTS:
        world.lay_all("hw_gpu_power_watts", host, polls)
        world.lay_all("hw_gpu_utilization_percent", host, since(world.last_end, lambda v: np.full(len(v), 98.0)))
        world.lay("hw_rank_up", host, ended)
    return world


def absent(world: Small, host: str) -> Small:
    """One host is not in it: its cards have nothing to do."""
    world.lay_all("hw_gpu_power_watts", host, since(world.last_end, lambda v: np.full(len(v), 105.0)))
    world.lay_all("hw_gpu_utilization_percent", host, since(world.last_end, np.zeros_like))
    return world


def test_who_is_not_in_the_collective_is_named_though_a_watchdog_ended_all_processes(tmp_path: Path) -> None:
    assert roots(verdict(hung(), tmp_path / "all")) == [("collective-hang", [], [])]
    assert roots(verdict(absent(hung(), "kiln03"), tmp_path / "one")) == [("dataloader-hang", ["kiln03"], [])]
    by_power = absent(hung(), "kiln03")
    for host in HOSTS:
        by_power.lay_all("hw_gpu_utilization_percent", host, lambda t, v: np.full(len(v), np.nan))
    assert roots(verdict(by_power, tmp_path / "power")) == [("dataloader-hang", ["kiln03"], [])]


@pytest.mark.parametrize(("hosts", "named"), [(["kiln03"], ["kiln03"]), (HOSTS, [])])
def test_a_store_that_answers_no_more_is_why_nobody_goes_on(tmp_path: Path, hosts: list[str], named: list[str]) -> None:
    world = hung()
    for host in hosts:
        absent(world, host)
        world.lay("hw_fs_probe_wedged", host, since(world.last_end + 30.0, np.ones_like))
        world.lay("hw_io_pressure_full_pct", host, since(world.last_end + 20.0, lambda v: v + 80.0))
    assert roots(verdict(world, tmp_path)) == [("storage-degradation", named, [])]


@pytest.mark.parametrize(("capped", "outcome"), [(0, "healthy"), (4, "incident"), (6, "incident")])
def test_a_limit_below_the_boards_default_tells_of_a_fleet_capped_before_its_first_step(
    tmp_path: Path, capped: int, outcome: str
) -> None:
    world = Small(HOSTS, noisy_steps(160, 11.0), 160, cards={"hw_gpu_power_limit_default_watts": 600.0})
    for host in HOSTS[:capped]:
        world.lay_all("hw_gpu_power_limit_watts", host, lambda t, v: np.full(len(v), 420.0))
        world.lay_all("hw_gpu_power_watts", host, lambda t, v: np.minimum(v, 416.0))
    found = verdict(world, tmp_path)
    assert found.outcome == outcome
    assert roots(found) == ([("gpu-power-cap", HOSTS[:capped] if capped < 6 else [], [])] if capped else [])


def test_a_pod_whose_log_names_only_itself_has_the_hosts_of_the_recording(tmp_path: Path, prometheus: Path) -> None:
    def metrics(host: str, time: float) -> dict[str, float]:
        killed = host == "p3" and time > START + 240.0 + 590.0
        return {"hw_oom_kills_total": float(killed), "hw_procs_running": 4.0, 'hw_gpu_power_watts{gpu="0"}': 500.0}

    lost = "0: RuntimeError: NCCL error: remote process exited or there was a network error"
    world = World(["p0", "p1", "p2", "p3"], [10.0] * 60, 400, metrics, [lost], "FAILED (exit 1)", silent_s=40.0)
    job = world.build(tmp_path, prometheus)
    log = tmp_path / f"{job.name}.log"
    log.write_text(log.read_text().replace("JOB_NODELIST=p0,p1,p2,p3", "JOB_NODELIST=p0"))
    verdict = diagnose(resolve(str(job), tmp_path)).verdict
    assert [(c.cause, list(c.hosts)) for c in verdict.roots] == [("oom-host", ["p3"])]


def test_late_data_is_booked_by_the_counter_of_waits_where_the_gauge_is_only_looked_at_now_and_then(
    tmp_path: Path,
) -> None:
    world = Small(
        HOSTS, noisy_steps(900, 2.0, slow=(450, 900, 1.75)), 900,
        more={"train_data_wait_seconds": (0.01, 0.001)}, counters={"train_data_wait_seconds_total": 0.001},
    )  # fmt: skip
    moment = world.when(450)
    for host in HOSTS:
        world.lay("train_data_wait_seconds", host, since(moment, lambda v: v + 1.4))
        world.lay(
            "train_data_wait_seconds_total", host, lambda t, v: 0.005 * (t - t[0]) + 0.4 * np.clip(t - moment, 0, None)
        )
        for metric in ("hw_gpu_utilization_percent", "hw_gpu_power_watts", "hw_gpu_clock_mhz"):
            world.lay_all(metric, host, gone(0.0))  # nobody records whether the devices idle
    assert roots(verdict(world, tmp_path)) == [("input-stall", [], [])]


def restless(slow: float) -> list[float]:
    """Steps whose full speed wanders, and that are longer on the whole from the middle on."""
    rng = np.random.default_rng(2)
    level = np.zeros(1200)
    for step in range(1, 1200):
        level[step] = 0.97 * level[step - 1] + rng.normal(0.0, 0.12 * np.sqrt(1.0 - 0.97**2))
    steps = 2.0 * np.exp(level) * (1.0 + 0.1 * rng.normal(0.0, 1.0, 1200).clip(-2.0, 2.0))
    steps[600:] *= slow
    return [round(float(s), 3) for s in steps]


@pytest.mark.parametrize(("late", "wanted"), [(True, [("network-degradation", [], [])]), (False, [])])
def test_in_weather_a_cause_that_rose_severalfold_everywhere_is_believed(
    tmp_path: Path, late: bool, wanted: list[tuple[str, list[str], list[str]]]
) -> None:
    world = Small(HOSTS, restless(1.2), 1200, summary="SUCCESS")
    world.more["hw_rank_tcp_rtt_seconds"] = (2e-4, 2e-5)
    for host in HOSTS if late else ():
        world.lay("hw_rank_tcp_rtt_seconds", host, since(world.when(600), lambda v: v + 0.0045))
    assert roots(verdict(world, tmp_path)) == wanted


@pytest.mark.parametrize("frozen", [False, True])
def test_a_hole_of_the_recording_is_no_incident_of_a_run_that_is_well(tmp_path: Path, frozen: bool) -> None:
    def world() -> Small:
        well = Small(HOSTS, noisy_steps(300, 11.0), 300, more={"hw_scrape_duration_seconds": (0.05, 0.01)})
        a, b = well.when(120), well.when(190)

        def unseen(times: Floats, values: Floats) -> Floats:
            inside = (times >= a) & (times <= b)
            return np.where(inside, values[inside][0] if frozen else np.nan, values)

        for part in ("", "*"):
            well.lay("*", "kiln02", unseen, part)
        return well

    found = verdict(world(), tmp_path / "well")
    cause = "telemetry-ghost" if frozen else "telemetry-gap"
    assert (found.status, found.outcome, roots(found)) == ("completed", "expected", [(cause, [], [])])
    assert "The run itself is well" in found.summary
    assert "kiln02" in found.summary, "where it was, and nobody's fault"
    assert any(not q.ok and q.hosts == ["kiln02"] for q in found.data_quality)

    odd = world()  # it hides nobody who is unlike all peers
    odd.cards = {"hw_gpu_nvlink_up": 1.0}
    odd.lay("hw_gpu_nvlink_up", "kiln04", lambda t, v: np.zeros(len(v)), "2")
    found = verdict(odd, tmp_path / "odd")
    assert (found.outcome, roots(found)) == ("incident", [("unclassified", ["kiln04"], ["kiln04/2"])])
    assert [(c.cause, c.role) for c in found.causes[1:]] == [(cause, "contributing")]


@pytest.mark.parametrize("part", ["exporter", "cards"])
def test_who_repeats_old_values_is_no_culprit_of_what_came_later(tmp_path: Path, part: str) -> None:
    world = slowed()
    world.more = {"hw_scrape_duration_seconds": (0.05, 0.01)}  # the scrape itself goes on
    for card in range(4):  # all wait for kiln04, and draw less
        for host in HOSTS:
            lower = 0.7 if host == "kiln04" else 0.85
            world.lay("hw_gpu_power_watts", host, since(world.when(90), lambda v, f=lower: f * v), str(card))  # type: ignore[misc]
        world.lay("hw_gpu_clock_mhz", "kiln04", since(world.when(90), lambda v: 0.6 * v), str(card))
    world.counters = {"hw_rdma_tx_bytes_total": 1e9}

    def stuck(times: Floats, values: Floats) -> Floats:
        return np.where(times >= world.when(60), values[times < world.when(60)][-1], values)

    for measure in ("utilization_percent", "power_watts", "clock_mhz", "temperature_celsius"):
        world.lay_all(f"hw_gpu_{measure}", "kiln02", stuck)
    for metric in ("hw_context_switches_total", "hw_rdma_tx_bytes_total") if part == "exporter" else ():
        world.lay(metric, "kiln02", stuck)
    found = verdict(world, tmp_path)
    assert {h for c in found.causes if c.role != "contributing" for h in c.hosts} == {"kiln04"}
    assert any(not q.ok and q.hosts == ["kiln02"] for q in found.data_quality)


def test_a_driver_that_calls_idleness_a_reason_for_low_clocks_tells_no_cause(tmp_path: Path) -> None:
    world = stopped(1800.0)
    world.cards = {"hw_gpu_throttle_active": 0.0, "hw_gpu_vram_used_bytes": 6e10, "hw_gpu_vram_total_bytes": 8e10}
    world.tags = {"hw_gpu_throttle_active": {"reason": "gpu_idle"}}
    for host in HOSTS:  # all others spin in the collective
        busy = 0.0 if host == "kiln03" else 100.0
        world.lay_all("hw_gpu_utilization_percent", host, since(world.last_end, lambda v, b=busy: 0 * v + b))  # type: ignore[misc]
    world.lay_all("hw_gpu_throttle_active", "kiln03", since(world.last_end, lambda v: v + 1.0))
    assert [(c, h) for c, h, _ in roots(verdict(world, tmp_path))] == [("dataloader-hang", ["kiln03"])]


def test_whom_a_launcher_of_several_hosts_calls_killed_is_where_its_line_stands(tmp_path: Path) -> None:
    world = stopped(60.0, "FAILED (exit 1)")
    where = "torch/distributed/elastic/multiprocessing/api.py:870]"
    told = "failed (exitcode: -9) local_rank: 3 (pid: 7166) of binary: python"
    world.tail = [f"2: E0224 19:40:00.000000 77 {where} {told}"]
    assert roots(verdict(world, tmp_path)) == [("peer-died", ["kiln02"], [])]


@pytest.mark.parametrize("metric", ["hw_fs_free_bytes", "acme_disk_used_percent"])
@pytest.mark.parametrize(("fill", "named"), [(["kiln02"], ["kiln02"]), (HOSTS, [])])
def test_a_disk_that_fills_is_its_hosts_own_unless_others_see_the_same_of_it(
    tmp_path: Path, metric: str, fill: list[str], named: list[str]
) -> None:
    bytes_free = metric == "hw_fs_free_bytes"
    world = Small(HOSTS, noisy_steps(300, 11.0), 4000, summary=None, more={metric: (6e11 if bytes_free else 40.0, 0.0)})

    def course(times: Floats, values: Floats) -> Floats:
        free = (world.last_end + 2000.0 - times) / (world.last_end + 2000.0 - START)
        return 6e11 * free if bytes_free else 100.0 * (1.0 - free)

    for host in fill:
        world.lay(metric, host, course)
    assert roots(verdict(world, tmp_path)) == [("storage-filling", named, [])]


@pytest.mark.parametrize(
    "metric", ["hw_rdma_port_xmit_wait_total", "hw_net_rx_prio3_pause_total", "acme_credit_wait_total"]
)
def test_ports_that_all_wait_to_send_speak_for_the_fabric_and_name_nobody(tmp_path: Path, metric: str) -> None:
    world = slowed()
    world.counters = {metric: 2.0}
    moment = world.when(90)
    for host in HOSTS:
        world.lay(metric, host, lambda t, v: v + 9e4 * np.clip(t - moment, 0, None))
    assert roots(verdict(world, tmp_path)) == [("fabric-congestion", [], [])]


@pytest.mark.parametrize("told", ["hw_gpu_power_limit_default_watts", "modelName", ""])
@pytest.mark.parametrize("slow", [False, True])
def test_cards_of_another_kind_are_no_peers(tmp_path: Path, told: str, slow: bool) -> None:
    world = slowed() if slow else Small(HOSTS, noisy_steps(160, 11.0), 160)
    if told.startswith("hw_"):
        world.cards = {told: 600.0}
    for host in (older := HOSTS[2:4]):
        world.lay_all("hw_gpu_power_limit_watts", host, lambda t, v: np.full(len(v), 400.0))
        world.lay_all("hw_gpu_power_watts", host, lambda t, v: np.minimum(v, 398.0))
        world.lay_all("hw_gpu_clock_mhz", host, lambda t, v: np.minimum(v, 1410.0))
        world.lay_all("hw_gpu_power_limit_default_watts", host, lambda t, v: np.full(len(v), 400.0))
    if told == "modelName":
        world.kinds = {host: {told: "NVIDIA A100-SXM4-80GB" if host in older else "NVIDIA H100"} for host in HOSTS}
    found = verdict(world, tmp_path)
    assert [h for c in found.roots for h in c.hosts] == ([] if told else older)
    assert told == "" or found.outcome == ("insufficient-evidence" if slow else "healthy")


def capped(world: Small, host: str) -> Small:
    """Its cards stand at a lower limit from the first step on."""
    world.lay_all("hw_gpu_power_limit_watts", host, lambda t, v: np.full(len(v), 420.0))
    world.lay_all("hw_gpu_power_watts", host, lambda t, v: np.minimum(v, 418.0))
    world.lay_all("hw_gpu_clock_mhz", host, lambda t, v: np.where(v > 1000.0, 0.8 * v, v))
    return world


@pytest.mark.parametrize("late", ["kiln01", "kiln03", None])
def test_what_holds_from_the_first_step_on_is_told_beside_what_begins_later(tmp_path: Path, late: str | None) -> None:
    world = capped(slowed(), "kiln03")
    if late is not None:
        world.more = {"train_data_wait_seconds": (0.05, 0.01)}
        world.lay("train_data_wait_seconds", late, since(world.when(90), lambda v: v + 4.4))
        for host in HOSTS:
            world.lay_all("hw_gpu_utilization_percent", host, since(world.when(90), lambda v: 0.7 * v))
    else:
        world.more = {"acme_pump_bar": (2.1, 0.02)}
        world.lay("acme_pump_bar", "kiln01", since(world.when(90), lambda v: v - 0.7))
    found = verdict(world, tmp_path)
    later = ("input-stall", [late], []) if late is not None else ("unclassified", ["kiln01"], [])
    assert sorted(roots(found)) == sorted([("gpu-power-cap", ["kiln03"], [f"kiln03/{g}" for g in range(4)]), later])
    assert "at full speed already" in found.summary


_BROKEN = [
    "OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/lus/data/shard-00017.bin'",
    "OSError: [Errno 116] Stale file handle: '/mnt/nfs/data/shard-17.bin'",
    "nfs: server nas4 not responding, still trying",
]


@pytest.mark.parametrize("words", _BROKEN)
@pytest.mark.parametrize("summary", ["FAILED (exit 1)", None])
def test_what_one_host_says_of_its_store_before_a_silence_is_why_all_wait(
    tmp_path: Path, words: str, summary: str | None
) -> None:
    world = hung()
    world.summary, world.tail = summary, [f"3: {words}"]
    found = verdict(world, tmp_path / "one")
    assert roots(found) == [("storage-error", ["kiln03"], [])]
    assert [(c.cause, c.role) for c in found.causes[1:]] == [("collective-hang", "consequence")]
    if "Errno" in words:  # the loader of the very host idles, as the error says
        assert roots(verdict(absent(world, "kiln03"), tmp_path / "idle")) == [("storage-error", ["kiln03"], [])]
    several = hung()
    several.summary, several.tail = summary, [f"{rank}: {words}" for rank in range(6)]
    assert roots(verdict(several, tmp_path / "all")) == [("storage-error", [], [])]


@pytest.mark.parametrize(("begins", "ends"), [(150.0, 1e9), (0.0, 400.0), (-900.0, 1e9)])
def test_who_is_there_through_the_whole_slow_phase_is_named_and_not_who_passes_by(
    tmp_path: Path, begins: float, ends: float
) -> None:
    world = slowed()
    world.more = {"acme_pump_bar": (2.1, 0.02), "acme_fan_rpm": (9000.0, 120.0)}
    moment = world.when(90)
    world.lay("acme_pump_bar", "kiln01", since(moment, lambda v: v - 0.7))
    there = (moment + begins, moment + ends)
    world.lay("acme_fan_rpm", "kiln05", lambda t, v: np.where((t > there[0]) & (t < there[1]), 0.55 * v, v))
    assert roots(verdict(world, tmp_path)) == [("unclassified", ["kiln01"], [])]


@pytest.mark.parametrize("waits", [3.0, 0.05])
def test_somebodys_program_on_a_card_has_threads_too(tmp_path: Path, waits: float) -> None:
    world = slowed()
    world.counters = {"hw_cpu_wait_seconds_total": 0.002, "hw_foreign_cpu_seconds_total": 0.01}
    world.cards, world.tags = {"hw_gpu_processes": 0.0}, {"hw_gpu_processes": {"owner": "other"}}
    moment = world.when(90)
    world.lay("hw_gpu_processes", "kiln03", since(moment, lambda v: v + 1.0), "1")
    world.lay("hw_cpu_wait_seconds_total", "kiln03", lambda t, v: v + waits * np.clip(t - moment, 0, None))
    world.lay("hw_foreign_cpu_seconds_total", "kiln03", lambda t, v: v + np.clip(t - moment, 0, None))
    world.lay("hw_procs_running", "kiln03", since(moment, lambda v: v + 12.0))
    assert roots(verdict(world, tmp_path / "one")) == [("gpu-shared", ["kiln03"], ["kiln03/1"])]
    world.lay("hw_gpu_processes", "kiln03", lambda t, v: v, "1")
    world.lay("hw_cpu_wait_seconds_total", "kiln03", lambda t, v: v + 3.0 * np.clip(t - moment, 0, None))
    assert roots(verdict(world, tmp_path / "none")) == [("cpu-contention", ["kiln03"], [])]
