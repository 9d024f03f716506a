"""The worked cases of upstream's posts, from the lab to the verdict: 24 nodes x 8 GPUs and the posts' own numbers.

What the posts leave open (who was bad in which phase, how far a decline went, job ids) the scenarios say in a comment.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from trackwalker.diagnose.compare.compare import Comparison, compare
from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.verdict import Cause, Verdict
from trackwalker.job.layout import Job
from trackwalker.job.resolve import resolve
from trackwalker.lab.scenario import load_scenario
from trackwalker.lab.scoring.grade import grade
from trackwalker.lab.simulate import Simulated, simulate
from trackwalker.telemetry.store import open_database

pytestmark = [pytest.mark.usefixtures("prometheus")]

FULL_SIZE = "a simulated run of 24 nodes x 8 GPUs; test_ask.py asks about the same case on six nodes"
HARDWARE = {"gpu-hardware-fault", "gpu-driver-fault", "rdma-link-failure"}
PHASE = re.compile(r"steps (\d+)\.\.(\d+) \(([a-z ]+)\): median ([\d.,]+) tokens/s/device")


@dataclass(frozen=True)
class Judged:
    """A case of the posts and what the engine says of it."""

    made: Simulated
    verdict: Verdict

    @property
    def root(self) -> Cause:
        (root,) = self.verdict.roots
        return root

    @property
    def ruled_out(self) -> set[str]:
        return {r.cause for r in self.verdict.ruled_out if r.evidence}

    def carries(self, pattern: str, cause: Cause | None = None) -> re.Match[str]:
        """The one statement of the cause's evidence that matches."""
        ids = (cause or self.root).evidence
        says = [e.says for e in self.verdict.evidence if e.id in ids]
        found = [m for s in says if (m := re.search(pattern, s))]
        assert len(found) == 1, f"{pattern!r} in {says}"
        return found[0]

    @property
    def phases(self) -> list[tuple[int, int, str, float]]:
        """First and last step, what it is called, and the level, as the verdict tells them."""
        found = [m for e in self.verdict.evidence if (m := PHASE.match(e.says)) and e.id in self.root.evidence]
        return [(int(m[1]), int(m[2]), m[3], float(m[4].replace(",", ""))) for m in found]


def make(name: str, out: Path) -> Simulated:
    scenario = load_scenario(f"posts/{name}")
    done = simulate(scenario, out)
    assert (scenario.world["nodes"], len(scenario.world["hosts"])) == (24, 24)
    return done


def job_of(made: Simulated) -> Job:
    return resolve(str(made.job), made.workspace)


def judge(name: str, out: Path) -> Judged:
    made = make(name, out)
    verdict = diagnose(job_of(made)).verdict
    graded = grade(verdict.model_dump(mode="json", by_alias=True), made.truth)
    assert graded.passed, f"{graded.said} {graded.forbidden} {graded.ungrounded}: {verdict.summary}"
    assert graded.status
    assert (verdict.job.nodes, verdict.job.gpus) == (24, 192)
    return Judged(made, verdict)


def at(made: Simulated, query: str, time: float) -> dict[str, float]:
    """What the recording itself holds, to see that the lab made the numbers of the case."""
    with open_database(made.job / "prometheus") as telemetry:
        return telemetry.by_host(query, time)


def numbers(match: re.Match[str]) -> list[float]:
    return [float(n.replace(",", "")) for n in match.groups()]


@pytest.mark.long(reason="24 x 8 GPUs; test_ask asks about the same case on six nodes")
def test_f1_four_nics_in_two_phases(tmp_path: Path) -> None:
    bad = ["chi2822", "chi2834", "chi2835", "chi2882"]
    found = judge("rdma-8308", tmp_path / "8308")
    assert found.verdict.job.id == "8308"
    assert found.root.cause == "rdma-degradation"
    assert found.root.hosts == bad
    assert [c.cause for c in found.verdict.causes if c.role == "mechanism"] == ["user-cancel"]
    first, slow, recovered, slower = found.phases
    assert first[1:3] == (96, "full speed")
    assert slow[:3] == (97, 216, "slow")
    assert recovered[0] == 217
    assert recovered[1] in (250, 251), "step 251 belongs to neither"
    assert recovered[2] == "full speed"
    assert slower[0] in (251, 252)
    assert slower[1:3] == (319, "slow")
    levels = [phase[3] for phase in found.phases]
    assert levels == pytest.approx([3293, 2620, 3288, 2520], rel=0.003)
    assert found.root.onset is not None
    assert found.root.onset.step == 97
    assert found.root.magnitude is not None
    assert found.root.magnitude.change == pytest.approx(-0.235, abs=0.004)
    assert "chi2822, chi2834 (steps 97..216) and chi2835, chi2882 (steps 25" in found.verdict.summary
    for hosts in ("chi2822, chi2834", "chi2835, chi2882"):
        assert numbers(found.carries(rf"^{hosts} retransmits \d+ RDMA packets/s .* highest other host ([\d.]+)$")) == [
            0
        ]
        found.carries(rf"^{hosts}: RDMA ACK timeouts at [\d.]+/s")
    normal = {"fabric-congestion", "gpu-thermal-throttle", "gpu-power-cap", "cpu-contention", "input-stall"}
    assert found.ruled_out >= normal | HARDWARE | {"moe-routing-shift"}
    (action,) = found.verdict.actions
    assert (action.do, action.hosts, action.needs_approval) == ("exclude-nodes", bad, True)
    expected = re.search(r"expected without these nodes: about ([\d.,]+) tokens/s/device, \+([\d.]+) %", action.why)
    assert expected is not None
    level, gain = numbers(expected)
    assert gain == pytest.approx(30.4, abs=0.8)
    # What was promised is what the job without the four nodes got.
    after = judge("rdma-8309", tmp_path / "8309").verdict
    assert after.progress.tgs == pytest.approx(3287, rel=0.003)
    assert level == pytest.approx(after.progress.tgs, rel=0.005)


def defended(found: Judged, accused: str, control: str) -> None:
    """The defence: who was accused, who was not and looks the same, and everything that speaks for them."""
    verdict = found.verdict
    assert found.root.cause == "heartbeat-false-positive"
    assert found.root.hosts == [], "the accused are innocent"
    assert f"tasks {accused} dead" in verdict.summary
    assert f"task {control}, which it did not suspect, looks the same" in verdict.summary
    assert found.ruled_out >= {"collective-hang", "node-death", "oom-host"} | HARDWARE
    for what in ("TCP", "RDMA"):
        (most,) = numbers(found.carries(rf"^{what} retransmits at most ([\d.]+)/s .* while the beats were missed"))
        assert most < 0.5
    assert numbers(found.carries(r"^I/O pressure at most ([\d.]+) % .* while the beats were missed"))[0] < 10
    assert [a.do for a in verdict.actions] == ["raise-heartbeat-timeout", "restart-job"]
    assert all(not a.hosts for a in verdict.actions), "nobody is taken out"


def powers(found: Judged, which: str) -> list[float]:
    """Lowest and highest of the accused, the control, lowest and highest of all others."""
    watts = r": suspects ([\d.]+)\.\.([\d.]+) W, control ([\d.]+) W, all others ([\d.]+)\.\.([\d.]+) W"
    return numbers(found.carries(f"^{which}.*{watts}"))


def test_f2_two_tasks_declared_dead_at_full_power(tmp_path: Path) -> None:
    found = judge("heartbeat-8043", tmp_path)
    defended(found, "8 (chi2853), 10 (chi2875)", "9 (chi2865)")
    assert found.verdict.job.id == "8043"
    assert found.verdict.progress.last_step == 71
    found.carries(r"E0224 19:21:00\.\d+ .*Stopping coordination service")
    found.carries(r"jax_distributed_heartbeat_timeout_seconds: 900")
    assert found.root.onset is not None
    assert found.root.onset.time == "2026-02-24T19:06:00Z", "the beats stopped one timeout before"
    step = found.carries(r"^ *8: .*completed step: 71, seconds: ([\d.]+), TFLOP/s/device: ([\d.]+), MFU: ([\d.]+)%")
    assert numbers(step) == pytest.approx([30.309, 207.973, 8.32], rel=0.02)
    found.carries(r"^ *8: .*Polled error from coordination service")
    for which in ("mean GPU power over the 15 min before the kill", "last GPU power before the kill"):
        assert powers(found, which) == pytest.approx([900] * 5, rel=0.03)


@pytest.mark.long(reason="a simulated run of 24 nodes x 8 GPUs; f2 is the same defence on every landing")
def test_f3_job_a_seven_beats_after_a_restore(tmp_path: Path) -> None:
    found = judge("heartbeat-a", tmp_path)
    defended(found, "10 (chi2875), 16 (chi2901)", "11 (chi2882)")
    progress = found.verdict.progress
    assert (progress.last_step, progress.total_steps, progress.last_checkpoint) == (71, 5000, 0)
    found.carries(r"E0212 19:58:10\..*Stopping coordination service")
    assert found.root.onset is not None
    assert found.root.onset.time == "2026-02-12T19:43:10Z"
    assert powers(found, "last GPU power") == pytest.approx([905] * 5, rel=0.03)
    crash = 1770926290.0
    memory = at(found.made, f"ray_node_mem_used @ {crash - 900:.0f} / 1e9", crash)
    accused_and_head = [memory[h] for h in ("chi2875", "chi2901", "chi2810")]
    assert accused_and_head == pytest.approx([205, 204, 207], abs=4)
    restore = at(found.made, f"max_over_time(ray_node_mem_used[45m] @ {crash:.0f}) / 1e9", crash)
    assert restore["chi2875"] == pytest.approx(249, abs=4)


@pytest.mark.long(reason="a simulated run of 24 nodes x 8 GPUs; f2 is the same defence on every landing")
def test_f3_job_b_a_save_that_came_too_late_to_be_guilty(tmp_path: Path) -> None:
    found = judge("heartbeat-b", tmp_path)
    defended(found, "4 (chi2829), 5 (chi2834), 18 (chi2907)", "6 (chi2835)")
    progress = found.verdict.progress
    assert (progress.last_step, progress.total_steps, progress.last_checkpoint) == (398, 5000, 200)
    found.carries(r"E0212 23:48:08\..*Stopping coordination service")
    assert found.root.onset is not None
    assert found.root.onset.time == "2026-02-12T23:33:08Z"
    found.carries(r"^ *4: .*Polled error")
    found.carries(r"^ *18: .*Polled error")
    assert numbers(found.carries(r"^chi2834 left no log, but its (\d+) GPU processes were there until the kill")) == [8]
    late = numbers(found.carries(r"^heavy writing began only ([\d.]+) s after the beats had stopped"))
    assert late == pytest.approx([12 * 60], abs=30)
    spread = powers(found, "mean GPU power over the 15 min")
    assert max(spread) - min(spread) < 0.05 * max(spread)
    log = (found.made.workspace / f"{found.made.job.name}.log").read_text()
    (seconds,) = {float(s) for s in re.findall(r"completed step: 201, seconds: ([\d.]+)", log)}
    assert seconds == pytest.approx(772, abs=2)
    assert not (found.made.job / "ray_logs" / "chi2834").exists()
    beats_stop = 1770939188.0
    memory = at(found.made, f"ray_node_mem_used @ {beats_stop:.0f} / 1e9", beats_stop)
    hosts = load_scenario("posts/heartbeat-b").world["hosts"]
    assert all(1345 <= memory[h] <= 1400 for h in hosts[:8]), "replica 0 keeps what the save took"
    assert [memory[h] for h in hosts[8:]] == pytest.approx([204] * 16, abs=4)
    save = at(found.made, f"max_over_time(hw_io_pressure_full_pct[3m] @ {beats_stop + 890:.0f})", beats_stop)
    assert save["chi2834"] == pytest.approx(65, abs=5)
    assert "host-memory-leak" not in {c.cause for c in found.verdict.causes}


@pytest.fixture(scope="module")
def restore(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Job]:
    folder = tmp_path_factory.mktemp("restores")
    return functools.cache(lambda name: job_of(make(f"restore-{name}", folder / name)))


def delta(found: Comparison, metric: str) -> tuple[float, float]:
    both = next(d for d in found.deltas if d.metric == metric)
    return both.mean_a, both.mean_b


@pytest.mark.long(reason="two simulated runs of 24 nodes x 8 GPUs; test_compare.py has the same numbers on four nodes")
def test_f4_the_restore_leaks_threads(restore: Callable[[str], Job]) -> None:
    found = compare(restore("7879"), restore("7882"))
    verdict = found.verdict
    assert (verdict.baseline.id, verdict.job.id, verdict.outcome) == ("7879", "7882", "incident")
    (root,) = verdict.roots
    assert (root.cause, root.hosts) == ("restore-thread-leak", [])
    assert root.magnitude is not None
    assert (root.magnitude.from_, root.magnitude.to) == pytest.approx((3295, 3261), rel=0.002)
    assert found.aligned is not None
    low, high = found.aligned.difference.interval()
    assert found.aligned.difference.change == pytest.approx(-0.0103, abs=0.002)
    assert -0.015 < low < high < -0.005, "the interval leaves out that they are equal"
    assert "over 220 common steps" in verdict.summary
    tasks = next(d for d in found.deltas if d.metric == "hw_procs_running")
    assert (tasks.mean_a, tasks.mean_b) == pytest.approx((18, 35), abs=0.6)
    assert tasks.uniform
    assert len(tasks.b) == 24
    assert all(tasks.b[h] - tasks.a[h] == pytest.approx(17, abs=1.5) for h in tasks.b)
    assert delta(found, "hw_gpu_power_watts") == pytest.approx((916, 916), rel=0.01)
    assert delta(found, "hw_rdma_tx_retx_pkts_total") == (0, 0)
    says = [e.says for e in verdict.evidence if e.id in root.evidence]
    assert [s for s in says if "waves" in s] == [
        "7882: communicators were made in 5 waves",
        "7879: communicators were made in 3 waves",
    ]
    assert {r.cause for r in verdict.ruled_out} >= {"rdma-degradation", "fabric-congestion", "gpu-clock-degraded"}


@pytest.mark.long(reason="two simulated runs of 24 nodes x 8 GPUs")
def test_f4_the_patched_restore_does_not(restore: Callable[[str], Job]) -> None:
    found = compare(restore("7879"), restore("patched"))
    assert found.verdict.outcome == "healthy"
    assert found.verdict.causes == []
    assert found.aligned is not None
    assert found.aligned.difference.change == pytest.approx(-0.0015, abs=0.0015)
    assert "or more would have been seen" in found.verdict.summary
    assert delta(found, "hw_procs_running") == pytest.approx((18, 18), abs=0.6)


@pytest.mark.long(reason=FULL_SIZE)
def test_f5_experts_out_of_balance(tmp_path: Path) -> None:
    found = judge("moe-7938", tmp_path)
    assert found.verdict.job.id == "7938"
    assert (found.root.cause, found.root.hosts) == ("moe-routing-shift", [])
    assert found.root.onset is not None
    assert found.root.onset.step == pytest.approx(450, abs=2)
    first, *later = found.phases
    assert first[2] == "full speed"
    assert first[1] == pytest.approx(450, abs=30), "a decline shows some steps after it begins"
    levels = [phase[3] for phase in found.phases]
    assert levels == sorted(levels, reverse=True), "slower and slower"
    assert later[-1][2] == "slow"
    assert levels[-1] / levels[0] - 1 == pytest.approx(-0.07, abs=0.02)
    before, after = (
        numbers(found.carries(rf"tb_learning_moe_lb_loss {w}: median ([\d.]+)"))[0]
        for w in ("at full speed", "when slow")
    )
    assert after > 1.3 * before
    assert numbers(found.carries(r"is ([\d.]+) at the first step of its new level"))[0] > 1.3 * before
    watts = [e.says for e in found.verdict.evidence if e.id in found.root.evidence and e.says.startswith("GPU power")]
    assert watts
    for text in watts:
        assert [float(n) for n in re.findall(r"\d+(?:\.\d+)?", text)] == pytest.approx([916, 916], abs=10)
    system = {"rdma-degradation", "fabric-congestion", "cpu-contention", "gpu-thermal-throttle", "gpu-power-cap"}
    assert found.ruled_out >= system | HARDWARE | {"gpu-clock-degraded", "input-stall"}
    assert [a.do for a in found.verdict.actions] == ["inspect-routing"]


@pytest.mark.long(reason=FULL_SIZE)
def test_f6_every_gpu_spins(tmp_path: Path) -> None:
    found = judge("hang-7877", tmp_path)
    assert found.verdict.job.id == "7877"
    assert (found.root.cause, found.root.hosts) == ("collective-hang", [])
    assert [c.cause for c in found.verdict.causes if c.role == "mechanism"] == ["user-cancel"]
    assert found.verdict.progress.last_step == 3840
    assert found.verdict.progress.last_checkpoint == 3800
    assert found.made.hours == pytest.approx(35.5, abs=0.6), "35 h of work and the silence after it"
    last, silent = numbers(found.carries(r"^last completed step (\d+) at .* then none for (\d+) s"))
    assert last == 3840
    assert silent == pytest.approx(2400, abs=10)
    watts = numbers(
        found.carries(r"^GPU power ([\d.]+)\.\.([\d.]+) W during the silence, ([\d.]+)\.\.([\d.]+) W before")
    )
    assert watts == pytest.approx([300, 300, 900, 900], rel=0.02)
    assert numbers(found.carries(r"^GPU utilisation ([\d.]+)\.\.([\d.]+) % meanwhile")) == [100, 100]
    assert numbers(found.carries(r"^RDMA traffic ([\d.]+)\.\.([\d.]+) bytes/s per host during the silence")) == [0, 0]
    assert found.ruled_out >= {"node-death", "dataloader-hang", "oom-host", "rdma-link-failure"}
    assert [a.do for a in found.verdict.actions] == ["restart-job"], "the same nodes again"
