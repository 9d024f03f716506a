"""What the small trainer reports: MaxText's step line, contained progress, FLOPs, TensorBoard scalars."""

from __future__ import annotations

import builtins
import errno
import io
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from trackwalker.job import journal
from trackwalker.trainers.progress import Progress, warn
from trackwalker.trainers.tiny.config import Config
from trackwalker.trainers.tiny.metrics import TensorBoard, step_scalars, tflops_per_device
from trackwalker.trainers.tiny.runtime import say, step_line

VALUES = {
    "loss": 2.5,
    "grad_norm": 1.0,
    "raw_grad_norm": 3.0,
    "param_norm": 9.0,
    "learning_rate": 1e-3,
    "total_weights": 2048.0,
    "moe_lb_loss": 0.01,
}


def test_a_full_disk_under_the_output_does_not_stop_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in ("stdout", "stderr"):
        full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0)
        monkeypatch.setattr(sys, stream, io.TextIOWrapper(full, write_through=True))  # as under `python -u`
    for _ in range(2):
        say("completed step: 1")
        warn("no room")


def test_step_line() -> None:
    line = step_line(7, 0.345, 0.0123, 2034.567, 262144, 10.123, 2.5)
    assert line == (
        "completed step: 7, seconds: 0.345, TFLOP/s/device: 0.012, MFU: 0.49%, "
        "Tokens/s/device: 2034.567, total_weights: 262144, loss: 10.123"
    )


def test_step_line_without_peak_and_with_nan() -> None:
    assert step_line(0, 1, 0.5, 2, 8, math.nan, 0) == (
        "completed step: 0, seconds: 1.000, TFLOP/s/device: 0.500, Tokens/s/device: 2.000, total_weights: 8, loss: nan"
    )


def test_progress_records(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    progress = Progress(str(path), 2, "box-r2")
    progress.record("train", step=3, loss=math.nan)
    progress.close()
    [record] = journal.read(path).items
    assert record["t"] > 1e9
    assert math.isnan(float(record["loss"]))
    assert {k: record[k] for k in ("rank", "host", "phase", "step")} == {
        "rank": 2,
        "host": "box-r2",
        "phase": "train",
        "step": 3,
    }


def test_no_progress_path_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    Progress("", 0, "h").record("train")
    assert capsys.readouterr().err == ""


def test_progress_that_cannot_be_opened_is_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    progress = Progress(str(tmp_path / "file" / "p.jsonl"), 0, "h")
    progress.record("train")
    assert capsys.readouterr().err.count("warning: progress is not recorded") == 1


def test_progress_on_a_full_disk_warns_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = Progress(str(tmp_path / "p.jsonl"), 0, "h")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        progress.record("train", step=1)
        progress.record("train", step=2)
    progress.record("train", step=3)  # the disk has room again
    assert capsys.readouterr().err.count("\n") == 1
    assert [r["step"] for r in journal.read(tmp_path / "p.jsonl").items] == [3]


def test_flops_by_hand() -> None:
    config = Config(
        vocab_size=10,
        base_emb_dim=4,
        base_num_query_heads=2,
        base_num_decoder_layers=3,
        base_mlp_dim=6,
        per_device_batch_size=2,
        max_target_length=5,
    )
    weights = 3 * (4 * 4 * 4 + 3 * 4 * 6) + 4 * 10
    attention = 3 * 4 * 2 * 5 * 5 * 4 / 2
    assert tflops_per_device(config) * 1e12 == pytest.approx(3 * (2 * weights * 10 + attention))


def test_experts_count_only_those_in_use() -> None:
    dense, sparse = Config(), Config(num_experts=8, num_experts_per_tok=1)
    router = 3 * 2 * 128 * 8 * dense.base_num_decoder_layers * 4 * 128
    assert (tflops_per_device(sparse) - tflops_per_device(dense)) * 1e12 == pytest.approx(router)


def test_scalars_have_maxtexts_tags() -> None:
    scalars = step_scalars(Config(), VALUES, 0.5)
    assert set(scalars) == {
        "learning/loss",
        "learning/grad_norm",
        "learning/raw_grad_norm",
        "learning/param_norm",
        "learning/current_learning_rate",
        "learning/total_weights",
        "perf/step_time_seconds",
        "perf/per_device_tflops",
        "perf/per_device_tflops_per_sec",
        "perf/per_device_tokens",
        "perf/per_device_tokens_per_sec",
    }
    assert scalars["perf/per_device_tokens_per_sec"] == 2 * scalars["perf/per_device_tokens"] == 1024
    moe = step_scalars(Config(num_experts=4), VALUES, 0.5)
    assert set(moe) - set(scalars) == {"learning/moe_lb_loss"}


def test_tensorboard_missing_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("tensorboardX"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    board = TensorBoard(tmp_path)
    board.write(0, {"learning/loss": 1.0}, flush=True)
    board.close()
    assert capsys.readouterr().err.count("tensorboardX is not installed") == 1


def test_tensorboard_directory_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").write_text("")
    board = TensorBoard(tmp_path / "file")
    board.write(0, {"learning/loss": 1.0}, flush=True)
    board.close()
    assert capsys.readouterr().err.count("TensorBoard files are not written") == 1
