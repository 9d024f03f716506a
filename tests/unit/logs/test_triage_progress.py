"""Progress numbers, throughput patterns, other trainers' step lines, the command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from triage_logs import ending, header, steps, triage_text
from typer.testing import CliRunner

from trackwalker.cli.app import app
from trackwalker.diagnose.triage import triage
from trackwalker.job.layout import Job
from trackwalker.record.masks import REASONS, Masks
from trackwalker.record.pattern import Pattern, pattern_of
from trackwalker.record.phases import find_phases
from trackwalker.record.timeline import Timeline


def test_the_formulas(tmp_path: Path) -> None:
    text = header(steps=1000, enable_checkpointing=True, checkpoint_period=40)
    text += "0: restoring from this run's directory step 99\n" + steps(199, first=100)
    text += "1: Saved a checkpoint at step 160\n0: NODE_EXIT host=node001 exit=1\n" + ending(wall="0h 30m 0s")
    p = triage_text(tmp_path, text).progress
    assert (p.start, p.first_step, p.last_step, p.total_steps) == ("restored from step 99", 100, 199, 1000)
    assert (p.steps_this_run, p.done) == (100, 0.2)
    assert (p.step_time_s, p.training_s, p.tgs) == (10.0, 1000.0, 4096.0)
    assert p.gap_s == 1800 - 1000 - 12
    assert (p.checkpoint_period, p.last_checkpoint, p.steps_lost) == (40, 160, 39)
    assert p.remaining_s == (999 - 199) * 10


def test_the_journal_is_ahead_of_the_log(tmp_path: Path) -> None:
    job = tmp_path / "77-JAX-toy"
    job.mkdir()
    log = tmp_path / "77-JAX-toy.log"
    log.write_text(header() + steps(20))
    (job / "progress.jsonl").write_text('{"v":1,"t":1.0,"phase":"train","step":25,"rank":0,"seconds":10.0}\n')
    found = triage(Job("77", log, job))
    assert (found.progress.last_step, found.progress.done) == (25, 0.26)


def test_a_rank_that_stopped_early_is_named(tmp_path: Path) -> None:
    text = header() + steps(10) + steps(40, nodes=3, first=11)
    assert triage_text(tmp_path, text).progress.behind == {3: 10}


def test_a_log_of_many_chunks(tmp_path: Path) -> None:
    """Bulk reading: one rank in full, the others' last steps, also of one that stopped in the middle."""
    text = header(nodes=12, steps=2000) + steps(700, nodes=12, label="{rank:02d}: ")
    text += steps(1499, nodes=11, first=701, label="{rank:02d}: ") + "03: torch.OutOfMemoryError: CUDA out of memory\n"
    found = triage_text(tmp_path, text)
    assert found.index.size > 2 << 20
    assert found.index.lines == text.count("\n")
    assert found.index.steps.step.tolist() == list(range(1500))
    assert found.progress.training_s == pytest.approx(15000.0)
    assert found.index.steps.last_by_rank == {**dict.fromkeys(range(11), 1499), 11: 700}
    assert found.progress.behind == {11: 700}
    assert found.primary is not None
    assert (found.primary.line, found.primary.rank) == (text.count("\n"), 3)
    assert np.all(np.diff(found.index.steps.line) > 0)


def test_cut_in_the_last_step_line(tmp_path: Path) -> None:
    found = triage_text(tmp_path, header() + steps(9) + "0: completed step: 10, secon")
    assert found.progress.last_step == 9
    assert found.status == "indeterminate"  # where the evidence ends the run need not have ended


def noisy(level: np.ndarray, seed: int = 0) -> np.ndarray:
    return level * (1 + 0.01 * np.random.default_rng(seed).standard_normal(len(level)))


def shape_of(seconds: np.ndarray, masked: np.ndarray | None = None) -> Pattern:
    count = len(seconds)
    timeline = Timeline(np.arange(count), np.cumsum(seconds), seconds, np.full(count, np.nan), True, "log")
    none = np.zeros(count, np.bool_)
    marks = Masks({r: none if r != "checkpoint" or masked is None else masked for r in REASONS}, none, count)
    return pattern_of(timeline, marks, find_phases(timeline, marks, False))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("constant", np.full(300, 10.0)),
        ("constant-drop", np.r_[np.full(150, 10.0), np.full(150, 12.0)]),
        ("phased", np.r_[np.full(80, 10.0), np.full(60, 12.0), np.full(80, 10.0), np.full(80, 13.0)]),
        ("gradual", np.linspace(10.0, 13.0, 300)),
        ("periodic", np.where(np.arange(300) % 50 == 30, 30.0, 10.0)),
        ("blip", np.where(np.arange(300) == 130, 40.0, 10.0)),
    ],
)
def test_patterns(name: str, shape: np.ndarray) -> None:
    found = {shape_of(noisy(shape, seed)).name for seed in range(5)}
    assert found == {name}


def test_saves_are_masked() -> None:
    shape = np.where(np.arange(300) % 40 <= 1, 60.0, 10.0)
    assert shape_of(noisy(shape), np.arange(300) % 40 <= 2).name == "constant"


def test_a_slow_phase_of_triage_is_one_of_the_record(tmp_path: Path) -> None:
    text = header(steps=300) + steps(99) + steps(199, first=100, seconds=14.0) + steps(299, first=200)
    found = triage_text(tmp_path, text + ending(0))
    assert [(p.first_step, p.last_step) for p in found.record.phases if p.slow] == [(100, 199)]
    assert (found.pattern.name, found.pattern.from_step, found.pattern.to_step) == ("phased", 100, 199)


def _bar(n: int, total: int, seconds: float = 1.5) -> str:
    return f"{100 * n // total:3d}%|{'█' * (10 * n // total):10}| {n}/{total} [00:{n % 60:02d}<22:01,  {seconds}s/it]\n"


@pytest.mark.parametrize("label", ["", "0: "])
@pytest.mark.parametrize("redrawn", ["", "\r"])
def test_a_bar_tells_step_and_time_of_losses_without_a_number(tmp_path: Path, label: str, redrawn: str) -> None:
    text = label + _bar(5000, 5000)  # of a download
    for n in range(1, 401):
        text += label + redrawn + _bar(n, 1000, 1.5 if n < 200 else 3.0)
        if n % 10 == 0:
            text += f"{label}{{'loss': {3.0 - n / 500}, 'grad_norm': 1.2, 'epoch': {n / 320:.2f}}}\n"
            text += label + _bar(n, 1000)  # drawn again
        if n == 200:
            text += "".join(label + _bar(m, 63) for m in range(1, 64))  # an evaluation
    steps = triage_text(tmp_path, text).index.steps
    assert (steps.dialect, steps.total, steps.last) == ("hugging-face-bar", 1000, 400)
    assert steps.step.tolist() == list(range(1, 401))
    assert (steps.seconds[0], steps.seconds[-1], steps.losses[400]) == (1.5, 3.0, 2.2)


def test_a_bar_without_losses_counts_no_steps(tmp_path: Path) -> None:
    assert len(triage_text(tmp_path, "".join(_bar(n, 100) for n in range(1, 101))).index.steps) == 0


@pytest.mark.parametrize(
    ("dialect", "line", "total"),
    [
        ("megatron", " iteration {n:8d}/     500 | consumed samples: 1 | elapsed time per iteration (ms): 2500.0 | learning rate: 1E-4 | lm loss: 2.5E+00 |", 500),  # noqa: E501
        ("megatron", "[default7]: iteration {n:8d}/     500 | consumed samples: 1 | elapsed time per iteration (s): 2.50 | lm loss: 2.5E+00 |", 500),  # noqa: E501
        ("torchtitan", "[rank0]:[titan] 2025-01-01 10:00:00,123 - root - INFO - step: {n:2d}  loss:  7.8950  memory: 30.19GiB(31.77%)  tps: 7,200  mfu: 41.2%", None),  # noqa: E501
        ("tqdm", "train:   2% {n}/500 [05:00<48:31,  2.50s/it, loss=2.5]", 500),
        ("tqdm-fast", "train:   2% {n}/500 [05:00<48:31,  0.40it/s, loss=2.5]", 500),
        ("lightning", "Epoch 0:  12%|█▏ | {n}/500 [00:12<01:30, 0.40it/s, v_num=0, train_loss=2.500]", 500),
        ("hugging-face", "{{'loss': 2.5, 'grad_norm': 1.1, 'learning_rate': 5e-05, 'epoch': 0.{n}}}", None),
    ],
)  # fmt: skip
def test_other_trainers(tmp_path: Path, dialect: str, line: str, total: int | None) -> None:
    text = "".join(line.format(n=n) + "\n" for n in range(1, 31)) + "RuntimeError: CUDA out of memory. Tried\n"
    found = triage_text(tmp_path, text)
    assert found.index.steps.dialect == dialect
    assert len(found.index.steps) == 30
    assert found.progress.total_steps == total
    assert found.primary is not None
    assert found.primary.cause == "oom-gpu"
    if dialect not in ("torchtitan", "hugging-face"):
        assert found.progress.last_step == 30
        assert found.progress.step_time_s == pytest.approx(2.5)


def test_r41_kubernetes_ranks_in_files_of_their_own(tmp_path: Path) -> None:
    job = tmp_path / "k8s-20260211-160000-ab12-JAX-toy"
    job.mkdir()
    log = tmp_path / (job.name + ".log")
    log.write_text(header() + steps(20, nodes=1, label="") + ending(wall="0h 5m 0s"))
    (job / "rank-1.log").write_text(steps(20, nodes=1, label=""))
    (job / "rank-3.log").write_text(steps(12, nodes=1, label="") + "torch.OutOfMemoryError: CUDA out of memory\n")
    found = triage(Job("k8s-20260211-160000-ab12", log, job))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.rank, found.primary.file) == ("oom-gpu", 3, "rank-3.log")
    assert found.progress.behind == {3: 12}


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["triage", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.output


def test_the_command(tmp_path: Path) -> None:
    for number, last in ((71, 99), (72, 20)):
        tail = ending(0) if last == 99 else "2: CUDA out of memory\n" + ending(wall="0h 5m 0s")
        (tmp_path / f"{number}-JAX-toy.log").write_text(header() + steps(last) + tail)
    (tmp_path / "73-JAX-empty.log").write_text("")
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    one = json.loads(run("72", "-w", str(tmp_path), "--json"))
    assert one["schema"] == "trackwalker.triage/1"
    assert (one["primary"]["cause"], one["primary"]["role"], one["first_failing"]["rank"]) == ("oom-gpu", "primary", 2)
    many = json.loads(run("--all", "-w", str(tmp_path), "--json"))
    assert len(many["jobs"]) == 3
    table = run("--all", "-w", str(tmp_path))
    assert "GPU out of memory" in table
    assert "completed" in table
    assert "not readable" in table
    assert "# Triage" in run("72", "--md", "-w", str(tmp_path))
    assert "OOM" not in run("71", "-w", str(tmp_path))
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


SHARED = Path(__file__).parents[4] / "shared" / "data"


@pytest.mark.skipif(not (SHARED / "reallogs").is_dir(), reason="the labelled real logs are not here")
def test_real_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "bench"))
    import reallogs

    rows = reallogs.score(SHARED / "reallogs")
    assert sum(found in accepted for _, accepted, found in rows) >= 0.9 * len(rows)


@pytest.mark.skipif(not (SHARED / "samples").is_dir(), reason="the sample jobs are not here")
@pytest.mark.parametrize(
    ("name", "status", "cause"),
    [
        ("healthy", "completed", None),
        ("collective-hang", "cancelled", "collective-hang"),
        ("heartbeat-false-positive", "failed", "heartbeat-false-positive"),
    ],
)
def test_samples(tmp_path: Path, name: str, status: str, cause: str | None) -> None:
    log = next((SHARED / "samples" / name / "outputs").glob("*.log"))
    found = triage(Job("1", Path(shutil.copy(log, tmp_path)), None))
    assert found.status == status
    assert (found.primary.cause if found.primary else None) == cause
