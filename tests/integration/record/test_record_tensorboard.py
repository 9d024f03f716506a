"""A trainer that says its steps only in TensorBoard's event files, recorded with `--tensorboard DIR`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tb_writer import EventWriter

from trackwalker.job.resolve import resolve
from trackwalker.record.read import read_record
from trackwalker.telemetry.store import open_database

pytest.importorskip("tensorboardX", reason="tensorboardX writes the event files: pip install tensorboardX")
pytestmark = [pytest.mark.usefixtures("prometheus")]
STEPS = 40
TRAIN = """
import sys, time
from tensorboardX import SummaryWriter
writer = SummaryWriter(sys.argv[1], flush_secs=1)
print("training", flush=True)
for step in range(1, int(sys.argv[2]) + 1):
    time.sleep(0.25)
    writer.add_scalar("train/loss", 5.0 / step, step)
writer.close()
"""


def recorded(where: Path, *options: str, steps: int = STEPS) -> tuple[Path, str]:
    """The job directory of a run, and what was said at its end."""
    (where / "train.py").write_text(TRAIN)
    argv = [sys.executable, "-m", "trackwalker", "record", "--workspace", str(where / "jobs"), *options, "--"]
    argv += [sys.executable, str(where / "train.py"), str(where / "runs"), str(steps)]
    done = subprocess.run(argv, cwd=where, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (job,) = [path for path in (where / "jobs").iterdir() if path.is_dir() and path.name.startswith("local_")]
    return job, done.stderr


def steps_of(job: Path) -> list[int]:
    timeline = read_record(resolve(str(job), job.parent)).timeline
    return [] if timeline is None else [int(step) for step in timeline.steps]


def test_steps_and_losses_come_from_its_event_files_and_from_no_earlier_run(tmp_path: Path) -> None:
    before = time.time() - 3600  # the folder is one that runs share, as such folders are
    earlier = EventWriter(tmp_path / "runs", f"events.out.tfevents.{before:.0f}.box")
    for step in range(1, 200):
        earlier.step(step, before + step, train__loss=9.0)
    job, said = recorded(tmp_path, "--tensorboard", str(tmp_path / "runs"))
    assert steps_of(job) == list(range(2, STEPS + 1)), "how long the first one took no event file says"
    assert "trackwalker: healthy" in said
    with open_database(job / "prometheus") as telemetry:
        begin, end = telemetry.range()
        assert {"tb_step", "tb_train_loss"} <= telemetry.metrics()
        ((_, _, losses),) = telemetry.raw("tb_train_loss", begin, end)
        assert float(losses[-1]) == pytest.approx(5.0 / STEPS)
        assert 9.0 not in losses


def test_without_it_nobody_knows_the_steps(tmp_path: Path) -> None:
    job, _ = recorded(tmp_path, steps=5)
    assert steps_of(job) == []
