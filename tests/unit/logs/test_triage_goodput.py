"""Where the time went, what remains, how fast against a reference; which steps are masked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from triage_logs import ending, header, steps, triage_text
from typer.testing import CliRunner

from trackwalker.cli.app import app
from trackwalker.diagnose.triage import Triage, triage
from trackwalker.job.layout import Job

CKPT = {"enable_checkpointing": True, "checkpoint_period": 20}
DEVICES = "".join(f"{r}: \tUsing (GB) 153.4 / 267.7 (57.3%) on rocm:{d}\n" for r in range(4) for d in range(8))


def timed(seconds: list[float] | np.ndarray, first: int = 0, nodes: int = 1) -> str:
    return "".join(steps(first + n, nodes, first + n, float(s)) for n, s in enumerate(seconds))


def parts(found: Triage) -> dict[str, float]:
    return {p.what: p.seconds for p in found.goodput.parts}


def saved(*at: int) -> str:
    return "".join(f"0: Saved a checkpoint at step {n}\n" for n in at)


def test_the_parts_add_up_to_the_wall_time(tmp_path: Path) -> None:
    seconds = np.full(60, 10.0)
    seconds[0], seconds[21], seconds[41] = 110.0, 70.0, 50.0  # compile, two saves
    text = header(**CKPT) + DEVICES + timed(seconds) + saved(20, 40)
    text += "2: [coredump] Write complete: 812 MB after 90s\n2: CUDA out of memory\n" + ending(wall="0h 20m 0s")
    found = triage_text(tmp_path, text)
    assert parts(found) == {
        "train": 410.0,  # steps 0..40
        "set-up": 12.0,
        "compile": 100.0,
        "checkpoint": 100.0,
        "lost work": 190.0,  # 41..59
        "start-up and teardown": 1200.0 - 12 - 800 - 90,
        "teardown": 90.0,
    }
    assert sum(parts(found).values()) == pytest.approx(1200.0)
    assert found.goodput.goodput == pytest.approx(410 / 1200, abs=1e-3)
    assert (found.goodput.gpus, found.goodput.gpus_from) == (32, "the memory banner of the log")
    lost = next(p for p in found.goodput.parts if p.what == "lost work")
    assert lost.gpu_hours == pytest.approx(190 * 32 / 3600, abs=0.01)
    assert found.progress.steps_lost == 19


def test_a_run_lasts_as_long_as_its_steps_whatever_its_summary_says(tmp_path: Path) -> None:
    found = triage_text(tmp_path, header(steps=60) + timed(np.full(60, 30.0)) + ending(0, wall="0h 20m 0s"))
    assert found.goodput.wall_s == 1800.0
    assert sum(part.share or 0.0 for part in found.goodput.parts) <= 1.001


@pytest.mark.parametrize(
    ("log", "known"), [("", False), (saved(40), True), ("0: Config param enable_checkpointing: False\n", True)]
)
def test_what_a_failed_run_lost_is_not_known_where_nothing_tells_what_was_saved(
    tmp_path: Path, log: str, known: bool
) -> None:
    found = triage_text(tmp_path, header(steps=90) + log + timed(np.full(60, 10.0)) + log + ending())
    assert found.goodput.lost_known is known


def test_a_short_run_is_not_judged_by_its_goodput(tmp_path: Path) -> None:
    short = triage_text(tmp_path, header(steps=30) + timed(np.full(30, 10.0)) + ending(0, wall="0h 20m 0s"))
    assert short.goodput.hardly_trained
    long = triage_text(tmp_path, header(steps=90) + timed(np.full(90, 10.0)) + ending(0, wall="0h 20m 0s"))
    assert not long.goodput.hardly_trained


def test_a_finished_run_lost_nothing(tmp_path: Path) -> None:
    found = triage_text(tmp_path, header(steps=60, **CKPT) + timed(np.full(60, 10.0)) + saved(40) + ending(0))
    assert "lost work" not in parts(found)
    assert parts(found)["train"] == 600.0


def test_without_wall_time_there_is_no_goodput(tmp_path: Path) -> None:
    found = triage_text(tmp_path, header(**CKPT) + timed(np.full(30, 10.0)))
    assert found.goodput.goodput is None
    assert found.goodput.gpus is None
    assert all(p.share is None and p.gpu_hours is None for p in found.goodput.parts)


def test_a_stall_is_idle_time(tmp_path: Path) -> None:
    found = triage_text(tmp_path, header(**CKPT) + timed(np.full(30, 10.0)) + ending(143, "x", "2h 0m 0s"))
    assert found.primary is not None
    assert found.primary.id == "hang"
    assert parts(found)["stalled"] == 7200 - 300 - 12


def test_a_cut_log_still_has_its_stages(tmp_path: Path) -> None:
    cut = "== Training FAILED (exit=137, 900s) ==\n"
    found = triage_text(tmp_path, header() + timed(np.full(30, 10.0)) + cut)
    assert found.progress.wall_s == 912.0
    assert found.progress.gap_s == 600.0


def test_a_journal_times_start_and_end(tmp_path: Path) -> None:
    job = tmp_path / "77-JAX-toy"
    job.mkdir()
    log = tmp_path / "77-JAX-toy.log"
    log.write_text(header(steps=30) + timed(np.full(30, 10.0)) + ending(0, wall="0h 8m 0s"))
    lines = [{"v": 1, "t": 1100.0 + 10 * n, "phase": "train", "step": n, "rank": 0, "seconds": 10.0} for n in range(30)]
    (job / "progress.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    events = [{"v": 1, "t": 1450.0, "kind": "run-end"}, {"v": 1, "t": "late", "kind": "stop"}]
    (job / "events.jsonl").write_text("".join(json.dumps(r) + "\n" for r in events))
    assert parts(triage(Job("77", log, job))) == {"train": 300.0, "set-up": 12.0, "start-up": 108.0, "teardown": 60.0}


def test_a_slowdown_is_no_training(tmp_path: Path) -> None:
    slow = np.r_[np.full(100, 10.0), np.full(100, 15.0)]
    found = triage_text(tmp_path, header(steps=200) + timed(slow) + ending(0, wall="1h 0m 0s"))
    assert found.pattern.name == "constant-drop"
    assert parts(found)["slowdown"] == pytest.approx(500.0)
    assert parts(found)["train"] == pytest.approx(2000.0)


def test_tgs_degradation_is_said_even_when_all_went_well(tmp_path: Path) -> None:
    """FC-25: also a drop that recovered before the end, and one below 10 %."""
    shape = np.r_[np.full(80, 10.0), np.full(60, 10.7), np.full(80, 10.0)]
    noise = 1 + 0.004 * np.random.default_rng(1).standard_normal(len(shape))
    found = triage_text(tmp_path, header(steps=220) + timed(shape * noise) + ending(0, wall="1h 0m 0s"))
    assert found.status == "completed"
    assert found.primary is not None
    assert (found.primary.id, found.primary.fc, found.primary.tier) == ("tgs-degradation", "FC-25", 7)
    assert found.pattern.from_step == pytest.approx(80, abs=2)
    failed = triage_text(tmp_path, header(steps=300) + timed(shape * noise) + "0: CUDA out of memory\n" + ending())
    assert failed.primary is not None
    assert failed.primary.id == "oom-gpu"
    assert [f.role for f in failed.failures if f.id == "tgs-degradation"] == ["contributing"]


def test_the_remaining_time_counts_saves(tmp_path: Path) -> None:
    seconds = np.full(100, 10.0)
    seconds[[21, 41, 61, 81]] = 110.0
    found = triage_text(tmp_path, header(steps=200, **CKPT) + timed(seconds) + saved(20, 40, 60, 80))
    assert found.progress.step_time_s == 10.0
    assert found.progress.remaining_s == pytest.approx(100 * 10 + 5 * 100)


def test_a_due_save_is_not_a_proven_one(tmp_path: Path) -> None:
    found = triage_text(tmp_path, header(**CKPT) + timed(np.full(50, 10.0)) + saved(20))
    assert (found.progress.last_checkpoint, found.progress.due_checkpoint) == (20, 40)
    assert found.progress.steps_lost == 29


def test_nothing_was_saved(tmp_path: Path) -> None:
    found = triage_text(tmp_path, header(enable_checkpointing=False) + timed(np.full(50, 10.0)) + ending())
    assert found.progress.steps_lost == 50
    assert found.goodput.goodput == 0.0


@pytest.mark.parametrize("reason", ["saves", "profiler", "recompiles"])
def test_known_interruptions_are_masked(tmp_path: Path, reason: str) -> None:
    seconds = list(np.full(150, 10.0) * (1 + 0.005 * np.random.default_rng(2).standard_normal(150)))
    text = header(
        steps=150,
        **(
            {"profiler": "xplane", "skip_first_n_steps_for_profiler": 30, "profiler_steps": 5}
            if reason == "profiler"
            else {}
        ),
    )
    if reason == "saves":
        for at in (50, 51, 100, 101):  # no period in the config: the lines that say "saved" are enough
            seconds[at] = 60.0
        text += timed(seconds[:50]) + saved(49) + timed(seconds[50:], 50) + saved(99)
    elif reason == "profiler":
        for at in range(30, 37):
            seconds[at] = 16.0
        text += timed(seconds)
    else:
        text += timed(seconds[:60])
        for at in (60, 61, 62):
            text += "0: I0211 16:00:49.0 7 compiler.cc:9] Compiling module jit_train_step\n" + timed([90.0], at)
        text += timed(seconds[63:], 63)
    found = triage_text(tmp_path, text + ending(0, wall="1h 0m 0s"))
    assert found.index.steps.step.tolist() == list(range(150))
    assert found.pattern.name == "constant", found.pattern
    assert found.progress.step_time_s == pytest.approx(10.0, abs=0.05)
    if reason == "recompiles":
        assert parts(found)["compile"] == pytest.approx(240.0, abs=1.0)
        assert found.progress.recompiled == 3


def run_of(folder: Path, number: int, level: float, **config: object) -> Job:
    shape = level * (1 + 0.004 * np.random.default_rng(number).standard_normal(120))
    log = folder / f"{number}-JAX-toy.log"
    log.write_text(header(steps=120, per_device_batch_size=8, **config) + timed(shape) + ending(0, wall="1h 0m 0s"))
    return Job(str(number), log, None)


def test_slow_from_the_start_needs_a_reference(tmp_path: Path) -> None:
    good, bad, odd = run_of(tmp_path, 1, 10.0), run_of(tmp_path, 2, 10.3), run_of(tmp_path, 3, 10.0, quantization="fp8")
    speed = triage(good).speed
    assert triage(bad).pattern.name == "constant"  # alone it looks well
    found = triage(bad, speed)
    assert found.pattern.name == "slow-from-start"
    assert found.pattern.change == pytest.approx(10 / 10.3 - 1, abs=0.004)
    assert found.primary is not None
    assert found.primary.id == "tgs-degradation"
    same = triage(run_of(tmp_path, 4, 10.01), speed)
    assert same.pattern.name == "constant"
    assert same.compared is not None
    assert not same.compared.slower
    other = triage(run_of(tmp_path, 5, 12.0, quantization="int8"), triage(odd).speed)
    assert other.compared is not None
    assert "not comparable: quantization int8 against fp8" in other.compared.says
    assert other.pattern.name == "constant"


def test_the_command_compares(tmp_path: Path) -> None:
    run_of(tmp_path, 1, 10.0), run_of(tmp_path, 2, 10.5)

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["triage", *arguments, "-w", str(tmp_path)])
        return result.exit_code, result.output

    code, text = run("2", "--reference", "1", "--json")
    found = json.loads(text)
    assert (code, found["throughput"]["name"], found["reference"]["reference"]) == (0, "slow-from-start", "job 1")
    code, text = run("2", "--reference", "4096.5", "--json")
    assert json.loads(text)["throughput"]["name"] == "slow-from-start"
    for shown in (run("2", "--reference", "1")[1], run("2", "--reference", "1", "--md")[1]):
        assert "slow" in shown
        assert "goodput" in shown.lower()
    result = CliRunner().invoke(app, ["triage", "2", "--reference", "nosuchjob", "-w", str(tmp_path)])
    assert result.exit_code != 0
    assert CliRunner().invoke(app, ["triage", "--all", "--reference", "1", "-w", str(tmp_path)]).exit_code != 0
