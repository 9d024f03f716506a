"""A trace on request, the trainer's side: the steps that were asked for, once, and never at the price of the run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from trackwalker.job import journal
from trackwalker.trainers import capture as module
from trackwalker.trainers.capture import Capture
from trackwalker.trainers.maxtext.hook import Hook
from trackwalker.trainers.progress import Progress


class Profiler(ModuleType):
    """Stands in for jax.profiler, whose calls it notes."""

    def __init__(self) -> None:
        super().__init__("jax.profiler")
        self.calls: list[str] = []
        self.broken = False

    def start_trace(self, folder: str, **_: object) -> None:
        if self.broken:
            raise RuntimeError("a profile has already been started")
        self.calls.append(f"start {folder}")

    def stop_trace(self) -> None:
        self.calls.append("stop")


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Profiler:
    made = Profiler()
    monkeypatch.setitem(sys.modules, "jax.profiler", made)
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    return made


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "run.json").write_text("{}")
    return tmp_path


def ask(job: Path, first: int, steps: int, name: str = "a") -> None:
    (job / "capture.json").write_text(json.dumps({"v": 1, "id": name, "from_step": first, "steps": steps}))


def rank(job: Path) -> tuple[Capture, Path]:
    path = job / "ranks" / "0.progress.jsonl"
    return Capture(Progress(str(path), 0, "n1"), str(path), str(job / "tensorboard")), path


def train(capture: Capture, first: int, last: int) -> None:
    for step in range(first, last + 1):
        capture.begin_step(step)
        capture.end_step(step)


def records(path: Path) -> list[dict[str, object]]:
    return [r for r in journal.read(path).items if r["phase"] == "capture"]


def test_the_steps_that_were_asked_for_are_traced_once(job: Path, profiler: Profiler) -> None:
    capture, path = rank(job)
    train(capture, 0, 3)
    assert profiler.calls == []
    ask(job, 6, 2)
    train(capture, 4, 30)
    assert profiler.calls == [f"start {job / 'tensorboard'}", "stop"]
    begin, end = records(path)
    assert (begin["state"], begin["step"], end["state"], end["step"]) == ("begin", 6, "end", 7)
    assert end["request"] == "a"
    ask(job, 35, 1, "b")
    train(capture, 31, 40)
    assert profiler.calls.count("stop") == 2


def test_a_request_that_comes_too_late_is_refused_for_the_other_ranks_sake(job: Path, profiler: Profiler) -> None:
    capture, path = rank(job)
    ask(job, 2, 2)
    train(capture, 3, 9)
    assert profiler.calls == []
    assert [r["error"] for r in records(path)] == [module.LATE]
    ask(job, 12, 1, "again")
    train(capture, 10, 14)
    assert profiler.calls[-1] == "stop"


def test_a_profiler_that_refuses_costs_the_trace_and_not_the_run(job: Path, profiler: Profiler) -> None:
    profiler.broken = True
    capture, path = rank(job)
    ask(job, 0, 2)
    train(capture, 0, 5)
    assert not capture.tracing
    assert "already been started" in str(records(path)[-1]["error"])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": 1}', '{"id": "x", "from_step": "soon", "steps": 1}'])
def test_half_a_request_is_no_request(job: Path, profiler: Profiler, text: str) -> None:
    (job / "capture.json").write_text(text)
    train(rank(job)[0], 0, 3)
    assert profiler.calls == []


def test_without_a_job_directory_nothing_is_looked_for(tmp_path: Path, profiler: Profiler) -> None:
    ask(tmp_path, 0, 1)
    path = tmp_path / "0.jsonl"
    train(Capture(Progress(str(path), 0, "n1"), str(path)), 0, 3)
    train(Capture(Progress("", 0, "n1"), ""), 0, 3)
    assert profiler.calls == []


def test_a_run_that_ends_inside_a_capture_writes_what_it_has(job: Path, profiler: Profiler) -> None:
    capture, path = rank(job)
    ask(job, 0, 100)
    train(capture, 0, 3)
    capture.close()
    assert profiler.calls[-1] == "stop"
    assert records(path)[-1]["state"] == "end"


def test_maxtext_traces_on_request_into_its_own_folder(
    job: Path, profiler: Profiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = job / "ranks" / "0.progress.jsonl"
    monkeypatch.setenv("TRACKWALKER_PROGRESS", str(path))
    hook = Hook(Progress(str(path), 0, "n1"))
    logger = SimpleNamespace(config=SimpleNamespace(tensorboard_dir="/out/tensorboard"))
    ask(job, 3, 2)
    for step in range(8):
        hook.write_metrics(lambda: None, logger, {"scalar": {"perf/step_time_seconds": 1.0}}, step)
    assert profiler.calls == ["start /out/tensorboard", "stop"]
