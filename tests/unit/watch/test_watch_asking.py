"""What the watcher asks others: schedulers, agents, a diagnosis; and what it makes of their silence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from watched_job import T0, SimJob

from trackwalker.cli.app import app
from trackwalker.errors import TrackwalkerError
from trackwalker.job.layout import Job
from trackwalker.job.processes import read_stat
from trackwalker.job.slurm.parse import jobs_of_squeue
from trackwalker.job.slurm.states import JobState
from trackwalker.launch.slurm.client import SlurmUnreachable
from trackwalker.watch.asking import Asker, Background
from trackwalker.watch.delivery.telling import ending
from trackwalker.watch.detect.confirm import Reading, judge, second_signal, take
from trackwalker.watch.detect.logtail import LogTail
from trackwalker.watch.detect.verdicts import Diagnoses, same
from trackwalker.watch.jobs import Watched

DATA = Path(__file__).parents[2] / "data" / "slurm"
RECORDED = jobs_of_squeue((DATA / "squeue-24.11.json").read_text())


class SaidSlurm:
    """A Slurm that says what the test says."""

    def __init__(self) -> None:
        self.jobs: list[JobState] | None = []
        self.asked_for: list[str] = []

    def queue(self) -> list[JobState]:
        if self.jobs is None:
            raise SlurmUnreachable("squeue did not answer within 15 s")
        return self.jobs

    def cancelled_by(self, seen: list[JobState]) -> list[JobState]:
        return seen

    def closer(self, seen: JobState) -> JobState:
        return seen

    def state(self, job: str) -> JobState:
        self.asked_for.append(job)
        return JobState(job, "timeout")


def asked(tmp_path: Path, job_id: str, slurm: SaidSlurm) -> tuple[Asker, dict[str, Watched]]:
    job = SimJob(tmp_path, job_id)
    watched = {job_id: Watched(Job(job_id, job.log, job.dir))}
    return Asker(Background(0), slurm), watched  # type: ignore[arg-type]


def ask(asker: Asker, watched: dict[str, Watched], now: float) -> None:
    asker.begin(watched.values(), now)
    asker.take(watched, now)
    asker.take(watched, now)  # what the first answers made it ask


@pytest.mark.parametrize("recorded", [s for s in RECORDED if s.ended], ids=lambda s: f"{s.id}-{s.state}")
def test_every_recorded_end_of_slurm_is_told_in_its_own_words(tmp_path: Path, recorded: JobState) -> None:
    slurm = SaidSlurm()
    slurm.jobs = [JobState(**{**vars(recorded), "name": "JAX-x"})]
    asker, watched = asked(tmp_path, recorded.id, slurm)
    ask(asker, watched, T0)
    seen = watched[recorded.id].standing
    assert seen is not None
    told = ending(seen, T0, 0)
    assert (told.facts["state"], told.once) == (recorded.state, True)
    fine = ("completed", "cancelled")
    assert (told.severity == "info") == (recorded.state in fine)


def test_the_recorded_answers_hold_a_job_that_ran_out_of_memory() -> None:
    assert "oom" in {s.state for s in RECORDED}


def test_a_controller_that_does_not_answer_leaves_every_job_as_it_was(tmp_path: Path) -> None:
    slurm = SaidSlurm()
    slurm.jobs = [JobState("5", "running", name="JAX-x")]
    asker, watched = asked(tmp_path, "5", slurm)
    ask(asker, watched, T0)
    slurm.jobs = None
    for now in range(16, 600, 16):
        ask(asker, watched, T0 + now)
    seen = watched["5"].standing
    assert seen is not None
    assert (seen.state, seen.ended) == ("running", False)
    assert asker.slurm_silent_since == T0 + 16


def test_a_job_that_the_controller_has_forgotten_is_looked_up_elsewhere(tmp_path: Path) -> None:
    slurm = SaidSlurm()
    asker, watched = asked(tmp_path, "5", slurm)
    ask(asker, watched, T0)
    assert slurm.asked_for == ["5"]
    assert watched["5"].standing is not None
    assert watched["5"].standing.state == "timeout"


def reading(at: float, **fields: Any) -> Reading:
    return Reading(at, **fields)


def gpus(power: float, busy: float) -> dict[str, Any]:
    names = [("n1", str(i)) for i in range(8)]
    return {
        "power": dict.fromkeys(names, power),
        "power_limit": dict.fromkeys(names, 1000.0),
        "busy": dict.fromkeys(names, busy),
    }


@pytest.mark.parametrize(
    ("first", "last", "hang", "words"),
    [
        (reading(0), reading(3, stopped={2}), True, "rank 2: the process is stopped"),
        (reading(0), reading(3, gone={1}), True, "rank 1: the process is gone"),
        (reading(0), reading(3, **gpus(300, 100)), True, "100 % utilisation at 30 % of their power limit"),
        (reading(0), reading(3, **gpus(900, 100)), False, "draw 90 % of their power limit"),
        (reading(0, bytes={"n1": 0}), reading(3, bytes={"n1": 3e9}, **gpus(500, 60)), False, "still flow over RDMA"),
        (reading(0, bytes={"n1": 5}), reading(3, bytes={"n1": 5}, **gpus(500, 60)), True, "no traffic over RDMA"),
        (reading(0, cpu={"a": 1, "b": 1}), reading(3, cpu={"a": 1.1, "b": 1.1}), True, "no rank uses CPU time"),
        (reading(0, cpu={"a": 0, "b": 0}), reading(3, cpu={"a": 3, "b": 3}), False, "2 of 2 ranks are using CPU"),
        (
            reading(0, cpu={"a": 0, "b": 0, "c": 0}),
            reading(3, cpu={"a": 3, "b": 0, "c": 0}),
            True,
            "a works, the others",
        ),
        (reading(0), reading(3, **gpus(500, 60)), None, "does not tell"),
    ],
)
def test_the_second_signal_is_judged_by_the_plainest_that_there_is(
    first: Reading, last: Reading, hang: bool | None, words: str
) -> None:
    second = judge(first, last)
    assert second.hang is hang
    assert words in second.says


def test_an_agents_page_is_read_for_what_tells_a_hang() -> None:
    found = Reading(0.0)
    page = (
        'hw_rank_stopped{host="b-r2",rank="2"} 1\nhw_rank_stopped{host="b-r1",rank="1"} 0\n'
        'hw_cpu_seconds_total{host="b-r2"} 12.5\nhw_rdma_tx_bytes_total{device="mlx5_0",port="1",host="n1"} 100\n'
        'hw_rdma_rx_bytes_total{device="mlx5_0",port="1",host="n1"} 50\n'
        'hw_gpu_power_watts{gpu="0",host="n1"} nonsense\n'
    )
    take(found, page)
    assert (found.stopped, found.cpu, found.bytes, found.power) == ({2}, {"b-r2": 12.5}, {"n1": 150.0}, {})


def test_where_nobody_can_be_asked_there_is_neither_yes_nor_no(tmp_path: Path) -> None:
    assert second_signal(None, "5").hang is None
    assert second_signal(tmp_path, "5").hang is None


@pytest.mark.starts_processes
def test_a_stopped_process_of_this_machine_is_seen_without_an_agent(tmp_path: Path) -> None:
    rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        (tmp_path / "agent").mkdir()
        (tmp_path / "agent" / "state.json").write_text(json.dumps({"ranks": [{"rank": 3, "main": rank.pid}]}))
        rank.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 20
        while (second := second_signal(tmp_path, "5", sleep=lambda s: None)).ranks != (3,):
            assert time.monotonic() < deadline, second
        assert second.hang
    finally:
        rank.kill()
        rank.wait()


def test_a_logs_steps_get_their_times_and_a_torn_line_waits(tmp_path: Path) -> None:
    log = tmp_path / "5-JAX-x.log"
    lines = "".join(f"{r}: completed step: {s}, seconds: 10.0, loss: 2.5\n" for s in range(3) for r in range(2))
    log.write_text(f"Config param eval_interval: 30\n{lines}1: completed st")
    os.utime(log, (T0, T0))
    tail = LogTail(log)
    first = tail.new(T0 + 5)
    assert [(r["rank"], r["step"], r["t"] - T0) for r in first] == [
        (0, 0, -20), (1, 0, -20), (0, 1, -10), (1, 1, -10), (0, 2, 0), (1, 2, 0),
    ]  # fmt: skip
    assert tail.periods == (30,)
    with log.open("a") as out:
        out.write("ep: 3, seconds: 10.0, loss: nan\n==== JOB SUMMARY ====\n")
    assert tail.new(T0 + 30) == [{"rank": 1, "phase": "train", "step": 3, "seconds": 10.0, "loss": "nan", "t": T0 + 30}]
    assert tail.ended


VERDICT = {
    "outcome": "incident", "status": "hanging", "summary": "s", "actions": [{"do": "look"}],
    "causes": [{"role": "root", "cause": "collective-hang", "hosts": ["n1"], "confidence": 0.9}],
}  # fmt: skip


def until_done(diagnoses: Diagnoses) -> list[tuple[str, dict[str, Any] | None]]:
    deadline, done = time.monotonic() + 30, list[tuple[str, dict[str, Any] | None]]()
    while not done:
        assert time.monotonic() < deadline
        done = diagnoses.step()
        time.sleep(0.02)
    return done


@pytest.mark.starts_processes
def test_a_diagnosis_runs_beside_the_loop_and_one_without_end_is_ended(tmp_path: Path) -> None:
    quick = Diagnoses(tmp_path, [sys.executable, "-c", f"print({json.dumps(json.dumps(VERDICT))})"])
    quick.ask("i", tmp_path)
    ((name, verdict),) = until_done(quick)
    assert name == "i"
    assert verdict is not None
    assert verdict["roots"] == [{"cause": "collective-hang", "hosts": ["n1"], "confidence": 0.9}]
    assert same(verdict, {**verdict, "roots": [{"cause": "collective-hang", "hosts": ["n1"], "confidence": 0.5}]})
    assert not same(verdict, None)
    endless = Diagnoses(tmp_path, [sys.executable, "-c", "import time; time.sleep(600)"], limit_s=0.3)
    endless.ask("j", tmp_path)
    assert until_done(endless) == [("j", None)]
    assert endless.idle


@pytest.mark.parametrize("words", [["watch"], ["watch", "8308", "--all"], ["watch", "test"], ["watch", "8308"]])
def test_a_wrong_request_is_one_line(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(TrackwalkerError) as refused:
        app([*words, "--workspace", str(tmp_path)], standalone_mode=False)
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


def test_one_look_reports_every_job_of_the_workspace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = SimJob(tmp_path / "outputs", "local_20260101_000001_ab", ranks=2)
    (job.dir / "agent").mkdir()
    me = read_stat(os.getpid())
    assert me is not None
    (job.dir / "agent" / "state.json").write_text(
        json.dumps({"agent": {"pid": me.pid, "start": me.start}, "ranks": []})
    )
    record = json.loads((job.dir / "run.json").read_text())
    (job.dir / "run.json").write_text(json.dumps({**record, "scheduler": "local"}))
    job.steps(time.time() - 30, 1.0, 30)
    words = ["watch", "--all", "--once", "--json", "--workspace", str(tmp_path / "outputs")]
    assert app(words, standalone_mode=False) == 0
    said = json.loads(capsys.readouterr().out)
    (found,) = said["jobs"]
    assert (said["schema"], found["state"], found["step"], found["incidents"]) == (
        "trackwalker.watch/1",
        "running",
        29,
        [],
    )
