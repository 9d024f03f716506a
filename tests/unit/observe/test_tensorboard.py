"""TensorBoard beside a run: found where the trainer writes, and its absence is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackwalker.job.run import RunRecord, Setting
from trackwalker.observe import tensorboard
from trackwalker.observe.tensorboard import Board, event_folder


def test_without_the_package_one_line_says_so_and_nothing_else_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard.importlib.util, "find_spec", lambda name: None)
    said: list[str] = []
    board = Board(tmp_path, tmp_path / "log", said.append)
    board.tick()
    board.stop()
    assert said == [tensorboard.MISSING]
    assert list(tmp_path.iterdir()) == []


def test_before_the_first_event_file_it_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "installed", lambda: True)
    said: list[str] = []
    (tmp_path / "tiny" / "tensorboard").mkdir(parents=True)
    board = Board(tmp_path, tmp_path / "log", said.append)
    board.tick()
    board.stop()
    assert said == []


def test_event_files_are_looked_for_where_the_run_says_then_in_the_job_directory(tmp_path: Path) -> None:
    job, shared = tmp_path / "1-JAX-x", tmp_path / "x" / "run-a" / "tensorboard"
    inside = job / "other" / "tensorboard"
    for folder in (shared, inside):
        folder.mkdir(parents=True)
    assert event_folder(job) is None
    (inside / "events.out.tfevents.1").touch()
    assert event_folder(job) == inside
    config = {
        "base_output_directory": Setting(value=str(tmp_path / "x"), source="layout"),
        "run_name": Setting(value="run-a", source="command line"),
    }
    record = {"id": "1", "name": "JAX-x", "model": "x", "scheduler": "local", "trainer": "tiny", "created": 0.0}
    RunRecord(**record, argv=[], command=[], workspace=str(tmp_path), config=config).save(job / "run.json")
    assert event_folder(job) == inside, "nothing is written there yet"
    (shared / "events.out.tfevents.2").touch()
    assert event_folder(job) == shared
