"""`trackwalker perf` as a user calls it: on traces whose truth is known, and on a real run that is asked for one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import end_runs
from tiny_settings import PACED
from trace_maker import Recipe, write_ranks
from triage_logs import ending, header, steps
from typer.testing import CliRunner

from trackwalker.cli.app import app
from trackwalker.errors import EvidenceError, UsageError

CONFIG = {"per_device_batch_size": 10, "max_target_length": 4096, "gradient_accumulation_steps": 1}
EPOCH_S = 1_700_000_000  # when the made traces begin
SMALL = Recipe(gpus=4, steps=4, layers=2, kernels=3)


def call(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def code(*words: str) -> int:
    return int(app(list(words), standalone_mode=False) or 0)


def make_job(workspace: Path, number: int, seconds: float = 10.0, **config: object) -> Path:
    workspace.mkdir(exist_ok=True)
    directory = workspace / f"{number}-JAX-toy"
    directory.mkdir()
    log = workspace / f"{number}-JAX-toy.log"
    log.write_text(header(2, steps=40, **{**CONFIG, **config}) + steps(39, 2, seconds=seconds) + ending(0))
    (directory / "log").symlink_to(Path("..") / log.name)
    return directory


def profile(folder: Path) -> Path:
    made = folder / "tensorboard" / "plugins" / "profile" / "2023_11_14_22_13_20"
    made.mkdir(parents=True)
    return made


def as_json(*words: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(call(*words, "--json"))
    return made


def test_all_ranks_of_a_job_are_read_and_the_straggler_is_named(tmp_path: Path, unchanged: list[Path]) -> None:
    job = make_job(tmp_path, 71)
    truth, files = write_ranks(
        Recipe(gpus=4, steps=4, layers=2, kernels=3, slow={2: 1.5}), profile(job), gpus_per_host=2
    )
    unchanged.append(tmp_path)
    found = as_json("perf", str(job))
    trace = found["trace"]
    assert found["schema"] == "trackwalker.perf/1"
    assert len(trace["files"]) == len(files) == 4
    assert len(trace["devices"]) == 4
    assert sum(b["seconds"] for b in trace["buckets"]) == pytest.approx(trace["step_s"], rel=1e-9)
    expected = {name: sum(truth.truth(r)[name] for r in range(4)) for name in ("compute", "exposed_comm")}
    got = {b["name"]: b["seconds"] for b in trace["buckets"]}
    assert got["compute"] / got["exposed_comm"] == pytest.approx(
        expected["compute"] / expected["exposed_comm"], rel=0.05
    )
    assert trace["stragglers"][0]["device"] == "host1.proc0 gpu 0"
    assert {f["rule"] for f in found["fixes"]} >= {"straggler", "exposed-communication"}
    assert trace["collectives"][0]["busbw_gb_s"] > 0
    assert found["program"]["collectives"]
    assert found["throughput"]["seconds"]["mean"] == pytest.approx(10.0)
    text, markdown = call("perf", str(job)), call("perf", str(job), "--md")
    for words in ("exposed communication", "step"):
        assert words in text
        assert words in markdown


def test_nothing_is_written_unless_asked_and_what_is_saved_can_be_compared(tmp_path: Path) -> None:
    job = make_job(tmp_path, 71)
    call("perf", str(job))
    assert not (job / "perf.json").exists()
    call("perf", "71", "-w", str(tmp_path), "--save", "--price", "2")
    assert json.loads((job / "perf.json").read_text())["schema"] == "trackwalker.perf/1"
    assert (job / "perf.md").read_text().startswith("# Performance of job 71")
    again = as_json("perf", "diff", str(job / "perf.json"), str(job))
    assert not again["speed"]["certain"]
    (job / "perf.json").write_text("{}")
    with pytest.raises(EvidenceError, match="no report of trackwalker perf"):
        call("perf", "diff", str(job / "perf.json"), str(job))


def test_a_slower_kernel_shows_in_the_waterfall_and_closes_the_gate(tmp_path: Path) -> None:
    a, b = make_job(tmp_path, 71), make_job(tmp_path, 72, seconds=11.0)
    write_ranks(SMALL, profile(a))
    write_ranks(Recipe(**{**vars(SMALL), "kernel_us": 50}), profile(b))
    found = as_json("perf", "diff", str(a), str(b))
    worst = max(found["waterfall"], key=lambda row: row["delta_s"])
    assert worst["name"] == "compute"
    assert sum(row["delta_s"] for row in found["waterfall"]) == pytest.approx(found["step_delta_s"], abs=1e-12)
    assert found["ops"][0]["time_effect_s"] > 0
    assert found["ops"][0]["count_effect_s"] == pytest.approx(0.0)
    assert found["speed"]["change"] == pytest.approx(10 / 11 - 1, abs=1e-3)
    assert code("perf", "diff", str(a), str(b), "--fail-over", "2") == 1
    assert code("perf", "diff", str(b), str(a), "--fail-over", "2") == 0
    assert "Waterfall" in call("perf", "diff", str(a), str(b), "--md")


def test_one_operation_is_found_by_any_part_of_its_names(tmp_path: Path) -> None:
    job = make_job(tmp_path, 71)
    write_ranks(SMALL, profile(job))
    found = as_json("perf", "drill", str(job), "--op", "all-gather")
    assert found["schema"] == "trackwalker.perf-drill/1"
    assert found["rows"]
    assert all(
        "all-gather" in " ".join((r["name"], r["op"], r["path"])).lower().replace("allgather", "all-gather")
        for r in found["rows"]
    )
    assert "EXECUTIONS" in call("perf", "drill", str(job), "--op", "all-gather")
    with pytest.raises(UsageError, match="the dearest are"):
        call("perf", "drill", str(job), "--op", "no such thing")


def test_all_ranks_become_one_file_for_perfetto(tmp_path: Path) -> None:
    job, out = make_job(tmp_path, 74), tmp_path / "job.perfetto-trace"
    write_ranks(SMALL, profile(job))
    words = ["perf", "merge", str(job), "--out", str(out)]
    assert "4 ranks, kernels of 0, 2" in call(*words, "--rank", "0", "--rank", "2")
    held = out.read_bytes()
    assert all(f"rank {rank}: ".encode() in held for rank in range(4))
    with pytest.raises(UsageError, match="ranks 0 to 3"):
        code(*words, "--rank", "9")
    with pytest.raises(UsageError, match="cannot write"):
        code(*words[:-1], str(tmp_path / "nowhere" / "x"))


def test_traces_in_a_shared_folder_are_told_apart_by_their_own_clock(tmp_path: Path) -> None:
    job = make_job(tmp_path, 71, tensorboard_dir="/outputs/shared/run/tensorboard/")
    shared = tmp_path / "shared" / "run"
    shared.mkdir(parents=True)
    write_ranks(SMALL, profile(shared))

    def dated(begin: float) -> None:
        rows = [{"v": 1, "t": begin + n, "rank": 0, "phase": "train", "step": n, "seconds": 1.0} for n in range(40)]
        (job / "progress.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))

    dated(EPOCH_S - 20)
    assert as_json("perf", str(job))["trace"] is not None
    dated(EPOCH_S + 90_000)
    other = as_json("perf", str(job))
    assert other["trace"] is None
    assert any("other jobs'" in m["why"] for m in other["missing"])


def test_a_cut_or_foreign_trace_costs_itself_only(tmp_path: Path) -> None:
    job = make_job(tmp_path, 71)
    _, files = write_ranks(SMALL, profile(job), gpus_per_host=2)
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[: len(whole) // 2])
    (files[0].parent / "junk.xplane.pb").write_bytes(b"not a trace at all")
    found = as_json("perf", str(job))
    assert found["trace"] is not None
    assert found["throughput"] is not None
    assert any("junk" in m["what"] + m["why"] for m in found["missing"])
    assert any("breaks off" in m["why"] or "cut" in m["why"] or files[1].name in m["why"] for m in found["missing"])
    assert all(m["why"] and m["do"] for m in found["missing"])


def test_a_trace_alone_is_a_report_without_a_log(tmp_path: Path) -> None:
    _, files = write_ranks(SMALL, tmp_path)
    found = as_json("perf", str(files[0]))
    assert found["throughput"] is None
    assert found["trace"]["steps"] == 4
    with pytest.raises(UsageError):
        call("perf", str(files[0]), "--save")


def test_what_cannot_be_asked_is_said_in_one_line(tmp_path: Path) -> None:
    job = make_job(tmp_path, 71)
    with pytest.raises(EvidenceError, match="not in the table of peaks"):
        call("perf", str(job), "--gpu", "Quantum9")
    with pytest.raises(EvidenceError, match="no such file"):
        call("perf", str(job), "--trace", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="not started by trackwalker"):
        call("perf", "capture", str(job))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """The directory of a real run of two ranks that goes on until it was asked to end."""
    command = [sys.executable, "-m", "trackwalker", "run", "tiny", "-n", "2", "-w", str(tmp_path), "--"]
    command += [*PACED, "steps=100000", "enable_checkpointing=false"]
    cli = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        assert cli.stdout is not None
        words = re.match(r"job (\S+)", cli.stdout.readline())
        assert words is not None
        yield next(tmp_path.glob(f"{words[1]}-*/"))
    finally:
        cli.kill()
        cli.wait()
        cli.stdout and cli.stdout.close()
        end_runs(tmp_path)


@pytest.mark.timeout(240)
def test_a_running_job_traces_the_steps_it_is_asked_for_on_every_rank(running: Path) -> None:
    pytest.importorskip("jax")
    got = as_json("perf", "capture", str(running), "--steps", "3", "--timeout", "150")
    assert got["complete"]
    assert got["ranks"] == [0, 1]
    assert not (running / "capture.json").exists()
    found = as_json("perf", str(running))
    trace = found["trace"]
    assert trace is not None, found["missing"]
    assert len(trace["files"]) == 2
    assert trace["steps"] >= 2
    assert sum(b["share"] for b in trace["buckets"]) == pytest.approx(1.0)
    assert any(c["kind"] == "all-reduce" for c in trace["collectives"])
    assert found["throughput"]["source"] in ("progress.jsonl", "event file")  # whichever was written last
    traced = set(range(got["first_step"], got["last_step"] + 1))
    assert traced <= set(found["throughput"]["labels"]["profiler"])
    # how many digits it prints depends on how fast this machine is just now; what follows from them is a unit test's
    assert found["flops"]["agrees"] in ("the trainer counts the same", "the trainer prints too few digits to compare")
    assert found["job"]["status"] in ("running", "initialising")
