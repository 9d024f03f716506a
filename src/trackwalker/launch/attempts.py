"""The next attempt of a run under Slurm: the same job once more, or, when Slurm has forgotten it, a new one like it."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.job.run import RunRecord
from trackwalker.job.trust import distrust, make_folder
from trackwalker.job.whole import write_whole
from trackwalker.launch.slurm.client import Slurm
from trackwalker.node.stages.order import load_order

OPTIONS = "sbatch.json"  # in the submission folder: how the job was queued
_OWN = ("order.json", "run.", "job.sh", OPTIONS, "stop-", "time-limit-")  # of one job; the rest serves the next as well


@dataclass(frozen=True)
class Next:
    """An attempt that Slurm has taken."""

    id: str
    job_dir: Path
    log: Path
    requeued: bool  # the same job; otherwise a new one


def keep_options(folder: Path, options: Sequence[str]) -> None:
    """Write down how a job is queued, so that it can be queued again."""
    write_whole(folder / OPTIONS, json.dumps(list(options)))


def next_attempt(
    job: Job, record: RunRecord, attempt: Mapping[str, Any], exclude: Sequence[str], only: str, slurm: Slurm
) -> Next:
    """Queue it: with the nodes left out that were decided on, or on the same nodes again."""
    if job.dir is None:
        raise UsageError(f"job {job.id} has no directory, so there is nothing to go on from")
    if why := distrust(job.dir / "run.json", job.dir.parent):
        raise UsageError(f"job {job.id} is not started again: {why}")
    known = record.model_copy(update={"attempts": [*record.attempts, dict(attempt)]})
    if slurm.requeue(job.id, record.name, exclude, only):
        known.save(job.dir / "run.json")
        return Next(job.id, job.dir, job.dir.parent / f"{job.dir.name}.log", True)
    return _anew(job.dir, known, exclude, only, slurm)


def _anew(job_dir: Path, record: RunRecord, exclude: Sequence[str], only: str, slurm: Slurm) -> Next:
    old = Path(record.submission)
    if why := _not_ours(old, job_dir.parent):
        raise UsageError(f"job {record.id} is not started again: {why}")
    try:
        options = [str(word) for word in json.loads((old / OPTIONS).read_text(encoding="utf-8"))]
        order, script = load_order(old / "order.json"), (old / "job.sh").read_text(encoding="utf-8")
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UsageError(f"job {record.id} cannot go on: {old} is gone or damaged; 'resubmit' asks for it anew") from e
    folder = old.with_name(f"{old.name.rpartition('_')[0]}_{secrets.token_hex(3)}")
    # Where the trainer wrote is where its checkpoints are: a new job directory would have none.
    again = dataclasses.replace(
        order,
        output=order.output if order.output is None else order.output or str(job_dir),
        argv=[word.replace(str(old), str(folder)) for word in order.argv],
    )
    next_record = record.model_copy(update={"id": "", "submission": str(folder), "resumed_from": record.id})
    try:
        make_folder(folder)
        for path in old.iterdir():
            if path.is_file() and not path.is_symlink() and not path.name.startswith(_OWN):
                os.link(path, folder / path.name)
        write_whole(folder / "order.json", json.dumps(dataclasses.asdict(again), default=str), mode=0o600)
        next_record.save(folder / "run.json")
        write_whole(folder / "job.sh", script.replace(str(old), str(folder)))
        moved = [word.replace(str(old), str(folder)) if word.startswith("--chdir=") else word for word in options]
        words = _with_nodes(moved, exclude, only)
        keep_options(folder, words)
        queued = slurm.submit(folder / "job.sh", words)
    except OSError as e:
        shutil.rmtree(folder, ignore_errors=True)
        raise UsageError(f"cannot write {folder}: {e.strerror}") from e
    except UsageError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    record.model_copy(update={"continued_by": queued.id}).save(job_dir / "run.json")
    next_dir = job_dir.parent / f"{queued.id}-{record.name}"
    make_folder(next_dir)
    if not (next_dir / "run.json").exists():
        next_record.model_copy(update={"id": queued.id}).save(next_dir / "run.json")
    return Next(queued.id, next_dir, job_dir.parent / f"{next_dir.name}.log", False)


def _not_ours(submission: Path, workspace: Path) -> str:
    """Why what a record points at may not be run; every file of it counts, the next attempt gets them all."""
    try:
        return next((why for path in [submission, *submission.iterdir()] if (why := _foreign(path, workspace))), "")
    except OSError:
        return f"{submission} is gone or cannot be read; 'resubmit' asks for it anew"


def _foreign(path: Path, workspace: Path) -> str:
    # The link to the job directory is ours and leads nowhere that is run.
    return "" if path.name == "job" and path.is_symlink() else distrust(path, workspace)


def _with_nodes(options: Sequence[str], exclude: Sequence[str], only: str) -> list[str]:
    """The options with further nodes left out, or with the nodes that it has to run on."""
    kept = [
        word for word in options if not word.startswith("--exclude=") and not (only and word.startswith("--nodelist="))
    ]
    before = [word.partition("=")[2] for word in options if word.startswith("--exclude=")]
    left_out = ",".join([*before, *exclude])
    return [*kept, *([f"--exclude={left_out}"] if left_out else []), *([f"--nodelist={only}"] if only else [])]
