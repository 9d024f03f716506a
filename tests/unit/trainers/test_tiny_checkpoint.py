"""The small trainer's checkpoints: committed or not there, and never silently passed over."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from trackwalker.job import journal
from trackwalker.trainers.progress import Progress
from trackwalker.trainers.tiny import checkpoint
from trackwalker.trainers.tiny.checkpoint import MARKER, CheckpointError, Saver

ARRAYS = {"params.embedding": np.arange(6, dtype=np.float32).reshape(2, 3), "count": np.array(4, np.int32)}


def test_round_trip_and_layout(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 4, ARRAYS)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == [
        f"4/{MARKER}",
        "4/items/state.npz",
    ]
    assert json.loads((tmp_path / "4" / MARKER).read_text())["step"] == 4
    loaded = checkpoint.load(tmp_path, 4, ARRAYS)
    assert loaded.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == array.dtype


def test_latest_ignores_what_is_not_committed(tmp_path: Path) -> None:
    assert checkpoint.latest_step(tmp_path / "missing") is None
    for name in ("12.tmp-77", "14", "notes", "-3"):
        (tmp_path / name / "items").mkdir(parents=True)
    (tmp_path / "12.tmp-77" / MARKER).write_text("{}")  # even complete, it was not renamed
    assert checkpoint.latest_step(tmp_path) is None
    checkpoint.save(tmp_path, 8, ARRAYS)
    checkpoint.save(tmp_path, 10, ARRAYS)
    assert checkpoint.latest_step(tmp_path) == 10  # as a number: 8 sorts after 10 as text


def test_save_replaces_an_unfinished_directory(tmp_path: Path) -> None:
    (tmp_path / "4" / "items").mkdir(parents=True)
    (tmp_path / "4" / "leftover").write_text("x")
    checkpoint.save(tmp_path, 4, ARRAYS)
    assert checkpoint.latest_step(tmp_path) == 4
    assert not (tmp_path / "4" / "leftover").exists()


def test_slow_storage_is_slow_before_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, list[str]]] = []

    def sleep(seconds: float) -> None:
        seen.append((seconds, [p.name for p in tmp_path.iterdir()]))

    monkeypatch.setattr(checkpoint.time, "sleep", sleep)
    checkpoint.save(tmp_path, 4, ARRAYS, at_least_s=60)
    [(seconds, names)] = seen
    assert 50 < seconds <= 60
    assert [name.split("-")[0] for name in names] == ["4.tmp"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "missing", "foreign"])
def test_a_damaged_checkpoint_is_one_clear_error(tmp_path: Path, damage: str) -> None:
    checkpoint.save(tmp_path, 4, {**ARRAYS, "big": np.zeros(1000, np.float32)})
    path = tmp_path / "4" / "items" / "state.npz"
    raw = bytearray(path.read_bytes())
    middle = len(raw) // 2
    if damage == "missing":
        path.unlink()
    else:
        changed = {"truncated": raw[:middle], "empty": b"", "foreign": b"hello" * 100}
        raw[middle] ^= 0xFF
        path.write_bytes(changed.get(damage, raw))
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(tmp_path, 4, {**ARRAYS, "big": np.zeros(1000, np.float32)})
    assert "step 4" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 4, ARRAYS)
    with pytest.raises(CheckpointError, match=r"'params.embedding' has shape \(2, 3\), this run needs \(2, 4\)"):
        checkpoint.load(tmp_path, 4, {**ARRAYS, "params.embedding": np.zeros((2, 4))})
    with pytest.raises(CheckpointError, match="'router' is in only one of them"):
        checkpoint.load(tmp_path, 4, {**ARRAYS, "router": np.zeros(1)})


@pytest.mark.parametrize("background", [False, True])
def test_saver_says_and_records(tmp_path: Path, capsys: pytest.CaptureFixture[str], background: bool) -> None:
    progress = Progress(str(tmp_path / "p.jsonl"), 0, "box-r0")
    saver = Saver(tmp_path / "c", progress, 0.0, background=background)
    saver.save(4, ARRAYS)
    saver.save(8, ARRAYS)
    saver.wait()
    assert capsys.readouterr().out == "Saved a checkpoint at step 4\nSaved a checkpoint at step 8\n"
    records = journal.read(tmp_path / "p.jsonl").items
    assert [(r["phase"], r["state"], r["step"]) for r in records] == [
        ("checkpoint", "begin", 4),
        ("checkpoint", "end", 4),
        ("checkpoint", "begin", 8),
        ("checkpoint", "end", 8),
    ]


@pytest.mark.parametrize("background", [False, True])
def test_a_failed_save_is_raised(tmp_path: Path, background: bool) -> None:
    (tmp_path / "c").write_text("a file where the directory should be")
    saver = Saver(tmp_path / "c", Progress("", 0, "h"), 0.0, background=background)

    def save() -> None:
        saver.save(4, ARRAYS)
        saver.wait()

    with pytest.raises(OSError, match="c"):
        save()
