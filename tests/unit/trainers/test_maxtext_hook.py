"""The hook for MaxText, against a stand-in with MaxText's interface: records beside an untouched output."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from maxtext_standin import METRIC_LOGGER, MODULES, TRAIN, put

from trackwalker.job.journal import read

pytestmark = pytest.mark.starts_processes


def run(root: Path, *arguments: str, **changed: str | None) -> subprocess.CompletedProcess[str]:
    put(root, {**MODULES, **changed})
    env = {**os.environ, "PYTHONPATH": str(root), "TRACKWALKER_PROGRESS": str(root / "progress.jsonl")}
    argv = [sys.executable, "-u", "-m", "trackwalker.trainers.maxtext", *arguments]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_every_step_and_phase_is_recorded_and_the_output_is_maxtexts_own(tmp_path: Path) -> None:
    done = run(tmp_path, "base.yml", "steps=4")
    assert done.returncode == 1, "MaxText's own exit because of the NaN"
    assert done.stdout.splitlines() == ["argv base.yml steps=4"] + [
        f"completed step: {step}, seconds: 0.125" for step in range(4)
    ]
    assert done.stderr == ""
    records = read(tmp_path / "progress.jsonl").items
    steps = [r for r in records if r["phase"] == "train"]
    assert [(r["step"], r["seconds"]) for r in steps] == [(s, 0.125) for s in range(4)]
    assert [r["loss"] for r in steps[:3]] == [2.5] * 3
    assert math.isnan(float(steps[3]["loss"])), "also the step that ends the run"
    waits = [r["data_wait_s"] for r in steps]
    assert all(wait >= step / 50 for step, wait in enumerate(waits)), "each step has its own wait"
    assert waits[0] < 1 / 50 <= waits[1]
    others = [(r["phase"], r.get("state"), r.get("step"), r.get("restored")) for r in records if r["phase"] != "train"]
    assert others == [
        ("init", "begin", None, None),
        ("restore", "begin", None, None),
        ("restore", "end", None, False),
        ("compile", "end", None, None),
        ("init", "end", None, None),
        ("checkpoint", "begin", 0, None),
        ("checkpoint", "end", 0, None),
        ("checkpoint", "begin", 2, None),
        ("checkpoint", "end", 2, None),
        ("eval", "begin", None, None),
        ("eval", "end", None, None),
    ]
    saves = [r for r in records if r["phase"] == "checkpoint" and r["state"] == "end"]
    assert all(r["saved"] and r["committed"] and r["seconds"] >= 0.05 for r in saves)


def test_an_asynchronous_save_is_not_called_complete(tmp_path: Path) -> None:
    run(tmp_path, "async")
    ends = [r for r in read(tmp_path / "progress.jsonl").items if r["phase"] == "checkpoint" and r["state"] == "end"]
    assert [(r["saved"], r["committed"]) for r in ends] == [(True, False)] * 2


@pytest.mark.parametrize("logger", ["", METRIC_LOGGER.replace("write_metrics(", "write_scalars(")])
def test_another_maxtext_is_left_to_its_step_lines(tmp_path: Path, logger: str) -> None:
    train = "print('completed step: 0, seconds: 0.1, loss: 1.0')"
    done = run(tmp_path, **{"common/metric_logger": logger, "trainers/pre_train/train": train})
    assert (done.returncode, done.stdout) == (0, "completed step: 0, seconds: 0.1, loss: 1.0\n")
    assert done.stderr.count("\n") == 1
    assert "read from its step lines" in done.stderr
    assert read(tmp_path / "progress.jsonl").items == [], "a record would stop the agent from reading the lines"


def test_missing_parts_cost_only_what_they_would_tell(tmp_path: Path) -> None:
    train = TRAIN.replace("data_loader, ", "").replace("checkpointing, ", "")
    train = train.replace("    checkpointing.load_state_if_possible(None, None)\n", "")
    lines = [line for line in train.splitlines() if "loader." not in line and "maybe_save" not in line]
    lines = [line for line in lines if "data_loader" not in line]
    gone: dict[str, str | None] = {"common/data_loader": None, "common/checkpointing": None}
    done = run(tmp_path, **gone, **{"trainers/pre_train/train": "\n".join(lines)})
    assert done.stderr == ""
    records = read(tmp_path / "progress.jsonl").items
    assert [r["step"] for r in records if r["phase"] == "train"] == [0, 1, 2, 3]


def test_without_maxtext_one_line_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, **dict.fromkeys(MODULES))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "MaxText is not installed" in done.stderr
