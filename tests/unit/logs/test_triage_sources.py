"""Where steps are read from: journal, worker files, event file, log; rotated, renamed and requeued logs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from event_files import record, write_events
from triage_logs import ending, header, steps

from trackwalker.diagnose.triage import Triage, triage
from trackwalker.job.layout import Job
from trackwalker.job.processes import read_stat
from trackwalker.job.resolve import resolve
from trackwalker.logs.formats.tfevents import read_events


def job_in(folder: Path, text: str, name: str = "77-JAX-toy") -> Job:
    (folder / name).mkdir(exist_ok=True)
    (folder / f"{name}.log").write_text(text)
    return Job("77", folder / f"{name}.log", folder / name)


def worker(job: Job, host: str, text: str, rank: int = 0, nested: bool = False) -> None:
    assert job.dir is not None
    folder = job.dir / "ray_logs" / host / ("session_2026/logs" if nested else "")
    folder.mkdir(parents=True, exist_ok=True)
    front = f"[Node {rank} @ {host}] Launching training subprocess: python3 train.py\n"
    (folder / f"worker-{rank:02d}ab-01000000-{4000 + rank}.out").write_text(front + text)


def sources(found: Triage) -> tuple[str | None, dict[str, int]]:
    return found.progress.source, found.progress.sources


@pytest.mark.parametrize("nested", [False, True])
def test_the_log_stops_while_the_worker_file_goes_on(tmp_path: Path, nested: bool) -> None:
    """F-7: the Slurm log ends at step 33 of 100, the workers' own files show all."""
    job = job_in(tmp_path, header() + steps(33))
    for rank in range(4):
        worker(job, f"node{rank + 1:03d}", steps(99, nodes=1, label=""), rank, nested)
    found = triage(job)
    assert found.status == "completed"
    assert sources(found) == ("worker logs", {"worker logs": 99, "log": 33})
    assert found.progress.disagreement == "step 99 by the worker logs, 33 by the log"
    assert found.progress.training_s == pytest.approx(1000.0)
    assert found.progress.behind == {}


def test_an_error_that_only_a_worker_wrote_is_found(tmp_path: Path) -> None:
    job = job_in(tmp_path, header() + steps(33))
    worker(job, "node001", steps(40, nodes=1, label=""), 0)
    worker(job, "node003", steps(40, nodes=1, label="") + "torch.OutOfMemoryError: CUDA out of memory\n", 2)
    found = triage(job)
    assert found.primary is not None
    assert (found.primary.cause, found.primary.rank, found.primary.host) == ("oom-gpu", 2, "node003")
    assert found.primary.file.startswith("worker-02")
    assert found.progress.last_step == 40


def test_worker_files_that_agree_are_not_read_in_full(tmp_path: Path) -> None:
    job = job_in(tmp_path, header() + steps(99) + ending(0))
    worker(job, "node001", steps(99, nodes=1, label=""))
    found = triage(job)
    assert sources(found) == ("worker logs", {"worker logs": 99, "log": 99})
    assert found.progress.disagreement == ""
    assert found.index.files == ["77-JAX-toy.log"]


def test_the_event_file_knows_when(tmp_path: Path) -> None:
    job = job_in(tmp_path, header() + steps(60) + ending(143, "CANCELLED (scancel / SIGTERM)", "0h 12m 0s"))
    assert job.dir is not None
    write_events(job.dir / "toy_run" / "tensorboard", range(55))
    found = triage(job)
    assert sources(found) == ("log", {"event file": 54, "log": 60})
    assert found.progress.disagreement == ""  # a late event file is its nature
    write_events(job.dir / "toy_run" / "tensorboard", range(81))
    found = triage(job)
    assert sources(found) == ("event file", {"event file": 80, "log": 60})
    assert found.progress.disagreement == "step 80 by the event file, 60 by the log"


def test_an_event_file_can_be_cut_or_damaged(tmp_path: Path) -> None:
    path = write_events(tmp_path, range(10))
    whole = path.read_bytes()
    for cut in (0, 3, 11, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        read_events([path])
    path.write_bytes(whole[:500] + b"\xff" * 40 + whole[540:])
    read_events([path])
    path.write_bytes(whole + record(10, 1.7e9 + 110, "perf/step_time_seconds", 10.0)[:-9])
    found = read_events([path])
    assert found is not None
    assert found.step.tolist() == list(range(10))
    assert np.diff(found.written) == pytest.approx(10.0)
    assert read_events([tmp_path / "gone"]) is None


def test_the_middle_of_a_long_event_file_is_stepped_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackwalker.logs.formats.tfevents._FRONT", 2000)
    monkeypatch.setattr("trackwalker.logs.formats.tfevents._BACK", 4000)
    path = write_events(tmp_path, range(200))
    found = read_events([path])
    assert found is not None
    assert (found.step[0], found.step[-1]) == (0, 199)
    assert 10 < len(found.step) < 60


def test_d29_a_checkpointing_run_keeps_its_event_file_elsewhere(tmp_path: Path) -> None:
    """Several jobs share that folder: ours is the one whose step times are ours."""
    text = header(tensorboard_dir="/outputs/toy/toy_run/tensorboard/", enable_checkpointing=True) + steps(60)
    job = job_in(tmp_path, text)
    shared = tmp_path / "toy" / "toy_run" / "tensorboard"
    write_events(shared, range(71), begin=time.time() - 5000)
    assert triage(job).progress.last_step == 70
    write_events(shared, range(400), begin=time.time() - 900, host="node002", seconds=7.0)  # the next job's
    assert triage(job).progress.last_step == 60
    write_events(shared, range(90), begin=time.time() - 800, host="elsewhere9")
    assert triage(job).progress.last_step == 60


def journal_lines(job: Job, *records: dict[str, object]) -> None:
    assert job.dir is not None
    (job.dir / "progress.jsonl").write_text("".join(json.dumps({"v": 1, **r}) + "\n" for r in records))


def trained(job: Job, end: float) -> None:
    """Steps 0..20 of 10 s, the last of which ended at a time."""
    times = [(n, end - 10.0 * (20 - n)) for n in range(21)]
    journal_lines(job, *({"t": t, "phase": "train", "step": n, "rank": 0, "seconds": 10.0} for n, t in times))


def test_the_journal_comes_first(tmp_path: Path) -> None:
    job = job_in(tmp_path, header() + steps(20))
    train = [
        {"t": 100.0 + 10 * n, "phase": "train", "step": n, "rank": r, "seconds": 10.0 + r}
        for n in range(26)
        for r in range(2)
    ]
    journal_lines(
        job,
        {"t": 60.0, "phase": "init", "state": "begin", "rank": 0},
        {"t": 80.0, "phase": "init", "state": "end", "rank": 0, "seconds": 20.0},
        {"t": 82.0, "phase": "init", "state": "end", "rank": 1, "seconds": 22.0},
        {"t": 90.0, "phase": "compile", "state": "end", "rank": 0, "seconds": 8.0},
        *train,
        {"t": "soon", "phase": "train", "step": "x"},
    )
    found = triage(job)
    assert sources(found) == ("progress.jsonl", {"progress.jsonl": 25, "log": 20})
    assert found.progress.training_s == pytest.approx(260.0)
    assert found.goodput.seconds("init") == 22.0
    assert found.goodput.seconds("compile") == 8.0


@pytest.mark.parametrize(("silent", "status"), [(5.0, "running"), (400.0, "hanging")])
def test_a_live_run_is_judged_by_its_journal(tmp_path: Path, silent: float, status: str) -> None:
    """The ranks live (here: this very process); the log says nothing about time, the journal does."""
    job = job_in(tmp_path, header() + steps(20))
    assert job.dir is not None
    (job.dir / "agent").mkdir()
    me = read_stat(os.getpid())
    assert me is not None
    (job.dir / "agent" / "state.json").write_text(
        json.dumps({"agent": {"pid": me.pid, "start": me.start}, "ranks": []})
    )
    trained(job, time.time() - silent)
    found = triage(job)
    assert found.status == status
    assert found.progress.expected_step is not None
    assert 0 <= found.progress.expected_step - 20 - int(silent / 10) <= 3
    assert found.progress.remaining_s == pytest.approx(79 * 10.0)
    if status == "hanging":
        assert found.primary is not None
        assert found.primary.id == "hang"


def test_a_stop_long_after_the_last_step_ended_a_hang(tmp_path: Path) -> None:
    job = job_in(tmp_path, header() + steps(20) + ending(143, "x", "0h 12m 0s"))
    assert job.dir is not None
    journal_lines(
        job, *({"t": 1000.0 + 10 * n, "phase": "train", "step": n, "rank": 0, "seconds": 10.0} for n in range(21))
    )
    for stop, cause in ((1210.0, None), (1600.0, "collective-hang")):
        (job.dir / "events.jsonl").write_text(json.dumps({"v": 1, "t": stop, "kind": "stop"}) + "\n")
        found = triage(job)
        assert (found.primary.cause if found.primary else None) == cause


def test_a_log_renamed_by_the_throughput_tagger(tmp_path: Path) -> None:
    """Resolved by id, read as ever: the tag stands in the log's name, the directory kept its own."""
    job_in(tmp_path, header() + steps(20) + "1: CUDA out of memory\n" + ending(wall="0h 5m 0s"))
    (tmp_path / "77-JAX-toy.log").rename(tmp_path / "77-JAX-toy-FP8-4N-pdbs6-TGS_3293.123.log")
    (tmp_path / "77-JAX-toy" / "log").symlink_to("../77-JAX-toy.log")  # dangles since the rename
    for name in ("77", str(tmp_path / "77-JAX-toy"), str(tmp_path / "77-JAX-toy-FP8-4N-pdbs6-TGS_3293.123.log")):
        job = resolve(name, tmp_path)
        assert (job.id, job.dir) == ("77", tmp_path / "77-JAX-toy")
        found = triage(job)
        assert found.primary is not None
        assert (found.primary.cause, found.primary.rank) == ("oom-gpu", 1)


def test_a_rotated_log_is_one_log(tmp_path: Path) -> None:
    text = (header() + steps(20) + "2: CUDA out of memory\n" + steps(60, first=21) + steps(70, first=61)).splitlines(
        True
    )
    a, b = len(text) // 3, 2 * len(text) // 3
    job = job_in(tmp_path, "".join(text[b:]) + "3: torch.OutOfMemoryError: CUDA out of memory\n" + ending())
    (tmp_path / "77-JAX-toy.log.1").write_text("".join(text[a:b]))
    (tmp_path / "77-JAX-toy.log.2").write_text("".join(text[:a]))
    found = triage(job)
    assert found.index.steps.step.tolist() == list(range(71))
    assert np.all(np.diff(found.index.steps.line) > 0)
    assert (found.progress.total_steps, found.progress.attempts) == (100, 1)
    assert found.progress.training_s == pytest.approx(710.0)
    assert found.index.facts.hosts == [f"node{n:03d}" for n in range(1, 5)]


def test_what_a_rotated_part_outlived_is_a_note(tmp_path: Path) -> None:
    job = job_in(tmp_path, steps(60, first=21) + "1: kernel: Out of memory: Killed process 4242 (python3)\n" + ending())
    (tmp_path / "77-JAX-toy.log.1").write_text(header() + steps(20) + "2: CUDA out of memory\n")
    found = triage(job)
    assert found.primary is not None
    assert found.primary.cause == "oom-host"
    note = next(f for f in found.roles.findings if f.id == "oom-gpu")
    assert (note.role, note.file, note.line) == ("note", "77-JAX-toy.log.1", (header() + steps(20)).count("\n") + 1)


def test_a_requeued_job_appends_to_its_log(tmp_path: Path) -> None:
    """The summary and the error of the first launch say nothing about the second."""
    first = header(enable_checkpointing=True, checkpoint_period=20) + steps(45) + "0: Saved a checkpoint at step 40\n"
    first += "2: CUDA out of memory\n2: NODE_EXIT host=node003 exit=1\n" + ending(wall="0h 9m 0s")
    second = header() + "0: restoring from this run's directory step 40\n" + steps(60, first=41)
    found = triage(job_in(tmp_path, first + second))
    assert found.primary is None
    assert found.status == "indeterminate"  # no summary of this launch, no scheduler to ask
    assert [(a.first_step, a.last_step, a.ended_by) for a in found.attempts] == [(0, 45, "oom-gpu"), (41, 60, "")]
    p = found.progress
    assert (p.attempts, p.steps_repeated, p.last_step, p.last_checkpoint) == (2, 5, 60, 40)
    assert found.goodput.seconds("lost work") == pytest.approx(50.0)
    assert found.goodput.goodput is None  # the wall time of the first launch is gone with its summary
    third = header() + "1: NODE_EXIT host=node002 exit=137\n" + ending(wall="0h 1m 0s")
    found = triage(job_in(tmp_path, first + second + third))
    assert found.status == "failed"
    assert found.roles.first_rank == 1
    assert found.progress.gap_s is None


def test_a_restart_inside_one_launch(tmp_path: Path) -> None:
    text = header() + steps(45) + "0: restarting workers\n" + steps(70, first=41) + ending(143, "x", "0h 20m 0s")
    found = triage(job_in(tmp_path, text))
    assert (found.progress.attempts, found.progress.steps_repeated) == (2, 5)
    assert found.status == "cancelled"


def test_epochs_of_a_progress_bar_are_no_restarts(tmp_path: Path) -> None:
    bar = "train:   2% {n}/30 [05:00<48:31,  2.50s/it, loss=2.5]\n"
    text = "".join(bar.format(n=n) for _ in range(3) for n in range(1, 31))
    assert triage(job_in(tmp_path, text)).progress.attempts == 1


def test_damaged_journals_and_event_files_never_stop_a_triage(tmp_path: Path) -> None:
    """Bytes turned over at random, from a fixed seed: some answer always comes."""
    job = job_in(tmp_path, header() + steps(40))
    assert job.dir is not None
    events = write_events(job.dir / "run" / "tensorboard", range(30))
    trained(job, 1200.0)
    journal = job.dir / "progress.jsonl"
    whole, lines = events.read_bytes(), journal.read_bytes()
    rng = np.random.default_rng(7)
    for _ in range(12):
        for path, data in ((events, whole), (journal, lines)):
            broken = bytearray(data)
            for at in rng.integers(0, len(data), 20):
                broken[at] = int(rng.integers(0, 256))
            path.write_bytes(bytes(broken))
        assert triage(job).progress.last_step is not None
    journal.write_text(
        '{"v":1,"t":1e999,"phase":"train","step":1e999,"rank":0,"seconds":1}\n{"v":1,"t":[],"phase":{}}\n'
    )
    assert triage(job).progress.last_step == 40
