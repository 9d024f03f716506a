"""The engine on small clusters of our own making: right cause, right hosts, and no over-claims."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from worlds import START, World

from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.views.asked import Diagnosis
from trackwalker.job.resolve import resolve
from trackwalker.telemetry.store import open_database

HOSTS = [f"tx{n}" for n in (11, 14, 15, 19, 23, 31)]


def steps_of(*phases: tuple[int, float], noise: float = 0.005, seed: int = 3) -> list[float]:
    rng = random.Random(seed)
    return [level * rng.gauss(1.0, noise) for count, level in phases for _ in range(count)]


def judge(world: World, workspace: Path, prometheus: Path | None) -> Diagnosis:
    job = world.build(workspace, prometheus)
    return diagnose(resolve(str(job), workspace))


def roots(diagnosis: Diagnosis) -> list[tuple[str, list[str]]]:
    return [(c.cause, c.hosts) for c in diagnosis.verdict.roots]


class Counter:
    """A counter that rises at a rate inside given spans, on top of what it had before the job."""

    def __init__(self, before: float, rate: float, spans: list[tuple[float, float]]) -> None:
        self.before, self.rate, self.spans = before, rate, spans

    def at(self, time: float) -> float:
        inside = sum(max(0.0, min(time, b) - a) for a, b in self.spans if time > a)
        return self.before + self.rate * inside


def rdma_world(phases: list[tuple[int, float]], bad: dict[str, list[int]], rate: float = 40.0) -> World:
    """Slow phases (by index) during which the given hosts retransmit; one clean host has a huge old total."""
    world = World(HOSTS, steps_of(*phases), total=9999, summary="FAILED (exit 143) — CANCELLED (scancel / SIGTERM)")
    bounds, first = [], 0
    for count, _ in phases:
        bounds.append((world.ends[first] - world.steps[first], world.ends[first + count - 1]))
        first += count
    counters = {h: Counter(9e7 if h == "tx15" else 10.0, rate, [bounds[i] for i in bad.get(h, [])]) for h in HOSTS}

    def metrics(host: str, time: float) -> dict[str, float]:
        return {
            'hw_rdma_tx_retx_pkts_total{device="mlx5_2",port="1"}': round(counters[host].at(time)),
            'hw_rdma_tx_ack_timeout_total{device="mlx5_2",port="1"}': round(counters[host].at(time) / 50),
            "hw_procs_running": 20 + (hash((host, int(time))) % 5),
            "hw_tcp_retransmits_total": 2000 * (time - START),
            'hw_gpu_power_watts{gpu="0"}': 650 + (int(time) % 7),
        }

    world.metrics = metrics
    return world


def test_two_bad_nics_in_turn_are_both_named(tmp_path: Path, prometheus: Path) -> None:
    world = rdma_world([(40, 12.0), (50, 14.5), (30, 12.0), (50, 15.6)], {"tx14": [1], "tx31": [3]})
    diagnosis = judge(world, tmp_path, prometheus)
    assert roots(diagnosis) == [("rdma-degradation", ["tx14", "tx31"])]
    root = diagnosis.verdict.roots[0]
    assert root.devices == ["tx14/mlx5_2", "tx31/mlx5_2"]
    assert root.onset is not None
    assert root.onset.step == pytest.approx(40, abs=2)
    assert root.magnitude is not None
    assert root.magnitude.change == pytest.approx(12.0 / 15.6 - 1, abs=0.01)
    assert [c.role for c in diagnosis.verdict.causes if c.cause == "user-cancel"] == ["mechanism"]
    assert [a.do for a in diagnosis.verdict.actions if not a.needs_approval] == []


def test_a_five_percent_drop_is_seen_when_the_job_is_quiet(tmp_path: Path, prometheus: Path) -> None:
    world = rdma_world([(60, 20.0), (60, 21.0)], {"tx23": [1]}, rate=6.0)
    assert roots(judge(world, tmp_path, prometheus)) == [("rdma-degradation", ["tx23"])]


def test_retransmits_that_do_not_follow_the_phases_accuse_nobody(tmp_path: Path, prometheus: Path) -> None:
    # tx19 retransmits at the same rate all the time: it cannot be what made the second half slow.
    world = rdma_world([(50, 12.0), (50, 15.0)], {"tx19": [0, 1]})
    diagnosis = judge(world, tmp_path, prometheus)
    assert diagnosis.verdict.outcome == "insufficient-evidence"
    assert "rdma-degradation" in [r.cause for r in diagnosis.verdict.ruled_out]


def test_without_nic_counters_the_nic_is_untestable_not_clean(tmp_path: Path, prometheus: Path) -> None:
    world = rdma_world([(50, 12.0), (50, 15.0)], {})
    full = world.metrics
    assert full is not None
    world.metrics = lambda h, t: {k: v for k, v in full(h, t).items() if "rdma" not in k}
    diagnosis = judge(world, tmp_path, prometheus)
    assert diagnosis.verdict.outcome == "insufficient-evidence"
    untestable = {u.cause: u.missing for u in diagnosis.verdict.untestable}
    assert "hw_rdma_tx_retx_pkts_total" in untestable["rdma-degradation"]
    assert all(m.startswith("hw_rdma_") for m in untestable["rdma-degradation"])
    assert "rdma-degradation" not in [r.cause for r in diagnosis.verdict.ruled_out]


def test_a_slow_job_without_metrics_asks_for_a_recording(tmp_path: Path) -> None:
    world = World(HOSTS, steps_of((50, 12.0), (50, 15.0)), total=100)
    diagnosis = judge(world, tmp_path, None)
    assert diagnosis.verdict.outcome == "insufficient-evidence"
    assert diagnosis.verdict.roots == []
    assert "--observe" in diagnosis.verdict.summary


def test_cpu_hog_on_one_host(tmp_path: Path, prometheus: Path) -> None:
    world = rdma_world([(60, 10.0), (60, 10.8)], {})
    full, onset = world.metrics, world.ends[59]
    assert full is not None

    def metrics(host: str, time: float) -> dict[str, float]:
        extra = 60 if host == "tx19" and time > onset else 0
        return {**full(host, time), "hw_procs_running": 20 + (int(time) % 5) + extra}

    world.metrics = metrics
    assert roots(judge(world, tmp_path, prometheus)) == [("cpu-contention", ["tx19"])]


def hang_world(vanished: str | None = None, busy: float = 210.0) -> World:
    world = World(
        HOSTS,
        steps_of((70, 8.0)),
        total=900,
        silent_s=1500.0,
        summary="FAILED (exit 143) — CANCELLED (scancel / SIGTERM)",
    )
    stop = world.last_end

    def metrics(host: str, time: float) -> dict[str, float]:
        if host == vanished and time > stop + 20:
            return {}
        watts = 620.0 + (int(time) % 9) if time < stop + 5 else busy
        return {'hw_gpu_power_watts{gpu="0"}': watts, 'hw_gpu_power_watts{gpu="1"}': watts + 3}

    world.metrics = metrics
    return world


def test_a_hang_that_nobody_stands_out_in_names_no_host(tmp_path: Path, prometheus: Path) -> None:
    diagnosis = judge(hang_world(), tmp_path, prometheus)
    assert roots(diagnosis) == [("collective-hang", [])]
    assert diagnosis.verdict.roots[0].onset is not None
    assert diagnosis.verdict.roots[0].onset.step == 70
    assert "node-death" in [r.cause for r in diagnosis.verdict.ruled_out]


def test_a_host_that_falls_silent_is_a_death_and_the_hang_its_consequence(tmp_path: Path, prometheus: Path) -> None:
    diagnosis = judge(hang_world(vanished="tx15"), tmp_path, prometheus)
    assert roots(diagnosis) == [("node-death", ["tx15"])]
    assert [(c.cause, c.role) for c in diagnosis.verdict.causes if c.cause == "collective-hang"] == [
        ("collective-hang", "consequence")
    ]


def test_silence_at_full_power_is_not_called_a_hang(tmp_path: Path, prometheus: Path) -> None:
    diagnosis = judge(hang_world(busy=615.0), tmp_path, prometheus)
    assert "collective-hang" not in [c.cause for c in diagnosis.verdict.causes]


def heartbeat_world(own_death: list[int], power_of_accused: float = 640.0) -> World:
    world = World(HOSTS, steps_of((80, 9.0)), total=900, config={"jax_distributed_heartbeat_timeout_seconds": "300"})
    world.summary = "FAILED (exit 1) — Training FAILED (exit=250)"
    claim = "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):"
    named = ["/job:jax_worker/replica:0/task:2", "/job:jax_worker/replica:0/task:5"]
    # 240 + 80 * 9 = 960 s after 08:00:00, one second after the last step
    world.tail = [f"0: E0601 08:16:01.000000  77 coordination_service.cc:1] Stopping: {claim}"]
    world.tail += [f"0: {n}" for n in named]
    for rank in own_death:
        said = "Polled error from coordination service"
        world.tail += [
            f"{rank}: E0601 08:16:01.200000  78 agent.cc:1] {said}: {claim}",
            *(f"{rank}: {n}" for n in named),
        ]

    def metrics(host: str, time: float) -> dict[str, float]:
        watts = power_of_accused if host in (HOSTS[2], HOSTS[5]) else 640.0 + (int(time) % 9)
        return {'hw_gpu_power_watts{gpu="0"}': watts}

    world.metrics = metrics
    return world


def test_healthy_tasks_declared_dead(tmp_path: Path, prometheus: Path) -> None:
    diagnosis = judge(heartbeat_world([0, 1, 2, 3, 4, 5]), tmp_path, prometheus)
    assert roots(diagnosis) == [("heartbeat-false-positive", [])]


def test_two_accused_one_proven_alive_is_no_defence(tmp_path: Path, prometheus: Path) -> None:
    diagnosis = judge(heartbeat_world([0, 1, 2]), tmp_path, prometheus)
    assert "heartbeat-false-positive" not in [c.cause for c in diagnosis.verdict.causes]


def test_healthy_run_with_saves(tmp_path: Path, prometheus: Path) -> None:
    steps = steps_of((121, 12.0))
    for save in (30, 60, 90, 120):
        steps[save] *= 9
    world = World(HOSTS, steps, total=121, config={"enable_checkpointing": "true", "checkpoint_period": "30"})
    world.metrics = lambda h, t: {'hw_gpu_power_watts{gpu="0"}': 600.0, "hw_procs_running": 20.0}
    diagnosis = judge(world, tmp_path, prometheus)
    assert (diagnosis.verdict.outcome, diagnosis.verdict.status) == ("healthy", "completed")
    assert diagnosis.verdict.causes == []


def test_a_cancel_of_a_healthy_run_is_expected(tmp_path: Path) -> None:
    world = World(HOSTS, steps_of((60, 12.0)), total=900, summary="FAILED (exit 143) — CANCELLED (scancel / SIGTERM)")
    diagnosis = judge(world, tmp_path, None)
    assert diagnosis.verdict.outcome == "expected"
    assert roots(diagnosis) == [("user-cancel", [])]


def test_same_bytes_twice_and_every_metric_number_comes_back(tmp_path: Path, prometheus: Path) -> None:
    world = rdma_world([(40, 12.0), (50, 14.5)], {"tx14": [1]})
    first = judge(world, tmp_path, prometheus)
    job = resolve("5150", tmp_path)
    second = diagnose(job)
    assert first.verdict.model_copy(update={"cost": None}) == second.verdict.model_copy(update={"cost": None})
    assert first.story == second.story
    metric = [e for e in first.verdict.evidence if e.kind == "metric"]
    assert len(metric) >= 3
    assert job.database is not None
    with open_database(job.database) as telemetry:
        for item in metric:
            again = telemetry.instant(item.source, START)  # the query carries its own moment
            keys = ("host", "gpu", "device", "window")
            values = {"/".join(v for k in keys if (v := s.labels.get(k))): s.value for s in again}
            assert {k: round(v, 3) for k, v in values.items()} == item.values


def test_a_dip_that_cost_less_than_a_step_is_no_incident(tmp_path: Path, prometheus: Path) -> None:
    world = World(HOSTS, steps_of((60, 12.0), (10, 12.9), (60, 12.0)), total=130)
    world.metrics = lambda h, t: {'hw_gpu_power_watts{gpu="0"}': 600.0, "hw_procs_running": 20.0}
    diagnosis = judge(world, tmp_path, prometheus)
    assert len(diagnosis.story.phases) == 3, "it is seen"
    assert diagnosis.verdict.outcome == "healthy", "but it is not worth a page"


@pytest.mark.parametrize("idle", [0, 6])
def test_gpus_that_spin_hide_no_idle_ones_beside_them(tmp_path: Path, prometheus: Path, idle: int) -> None:
    world = World(HOSTS, [], total=900, silent_s=5400, summary="FAILED (exit 143) — CANCELLED (scancel / SIGTERM)")
    world.metrics = lambda h, t: {
        f'hw_gpu_utilization_percent{{gpu="{n}"}}': 1.0 if n < idle or t < START + 600 else 100.0 for n in range(8)
    }
    verdict = judge(world, tmp_path, prometheus).verdict
    assert "collective-hang" in [c.cause for c in verdict.causes]
    told = [e.says for e in verdict.evidence]
    assert [t for t in told if t.startswith("the busiest GPU of every host spins (100..100 %)")]
    assert [t for t in told if f"up to {idle} GPUs of a host idle meanwhile" in t] == [
        t for t in told if "idle meanwhile" in t
    ]
    assert any("idle meanwhile" in t for t in told) == (idle > 0)
