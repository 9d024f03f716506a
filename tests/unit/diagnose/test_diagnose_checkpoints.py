"""The last checkpoint that can be restored: what ranks say against what the folder holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from triage_logs import ending, header, steps

from trackwalker.diagnose.triage import triage
from trackwalker.job.layout import Job
from trackwalker.record.checkpoints import OnDisk


@pytest.mark.parametrize(
    ("said", "whole", "torn", "until", "last"),
    [
        ({100, 200}, set(), set(), 250, 200),  # no folder: the log is believed
        ({100, 200}, {100}, {200}, 250, 100),  # the save of 200 was told of when it began
        ({100, 200}, {0, 100}, set(), 250, 100),  # and left no trace
        ({100}, {100, 200}, set(), 250, 200),  # the log was cut before it told of 200
        ({100}, {100, 300}, set(), 250, 100),  # a later run of the same folder wrote 300
        (set(), {1200}, set(), None, 1200),  # a run that ended before its first step
        (set(), set(), {100}, 120, None),
    ],
)
def test_the_last_whole_checkpoint(
    said: set[int], whole: set[int], torn: set[int], until: int | None, last: int
) -> None:
    assert OnDisk(frozenset(whole), frozenset(torn)).last(said, until) == last


def job_with(workspace: Path, log: str, *folders: str) -> Job:
    path = workspace / "77-JAX-toy.log"
    path.write_text(log)
    (workspace / "77-JAX-toy").mkdir()
    for name in folders:
        (workspace / "toy" / "run1" / "checkpoints" / name).mkdir(parents=True)
    return Job("77", path, workspace / "77-JAX-toy")


SAVED = "0: Saved a checkpoint at step 20.\n"


def test_triage_counts_the_steps_since_the_last_whole_one(tmp_path: Path) -> None:
    told = header(tensorboard_dir="/outputs/toy/run1/tensorboard/", checkpoint_period=20, enable_checkpointing=True)
    log = told + steps(20) + SAVED + steps(29, first=21) + ending(1)
    (tmp_path / "toy" / "run1" / "tensorboard").mkdir(parents=True)
    job = job_with(tmp_path, log, "0", "20.orbax-checkpoint-tmp-17", "notes")
    assert (triage(job).progress.last_checkpoint, triage(job).progress.steps_lost) == (0, 29)


def test_without_a_folder_the_log_is_believed(tmp_path: Path) -> None:
    assert triage(job_with(tmp_path, header() + steps(20) + SAVED + ending(1))).progress.last_checkpoint == 20


def test_a_model_named_like_a_path_finds_nothing(tmp_path: Path) -> None:
    log = header().replace("NNODES", "MODEL_NAME=../..\nNNODES") + steps(5)
    assert triage(job_with(tmp_path, log, "3")).progress.last_checkpoint is None
