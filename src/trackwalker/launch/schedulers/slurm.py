"""Slurm as the scheduler: the submission folder is written, sbatch is called, and nothing waits for us."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from trackwalker.errors import MaybeQueuedError, TrackwalkerError, UsageError
from trackwalker.job.slurm.parse import fields
from trackwalker.job.slurm.states import JobState
from trackwalker.launch.attempts import keep_options
from trackwalker.launch.plan import origin
from trackwalker.launch.slurm.beforehand import NOT_ASKED, Word, ask_beforehand, without_gpus
from trackwalker.launch.slurm.client import Slurm, SlurmDown, SlurmUnreachable, slurm_here
from trackwalker.launch.slurm.options import SubmitOptions
from trackwalker.launch.slurm.script import render_script, sbatch_options
from trackwalker.launch.submission import Submission

_LOOK_S = 0.3


# Which reservation a job goes into: the user's own, the newest one that is open now.
NONE = "none"  # what a user says to go without


def choose_reservation(text: str, user: str, wanted: str | None = None, now: float | None = None) -> str | None:
    """`wanted` if the user named one, nothing for "none", else the newest that names the user and is open now."""
    if wanted is not None:
        return None if wanted.lower() == NONE else wanted
    now = time.time() if now is None else now
    open_now = []
    for line in text.splitlines():
        said = fields(line)
        # '-name' in the list keeps a user out, and 'ann' is not 'annika': the names must be equal.
        if user not in said.get("Users", "").split(","):
            continue
        begin, end = _when(said.get("StartTime", "")), _when(said.get("EndTime", ""))
        if begin is not None and begin <= now and (end is None or now < end):
            open_now.append((begin, said["ReservationName"]))
    return max(open_now)[1] if open_now else None


def _when(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()  # Slurm prints local time
    except ValueError:
        return None


@dataclass(frozen=True)
class Batch:
    """A submission as Slurm is given it."""

    submission: Submission
    options: list[str]
    script: str

    def argv(self) -> list[str]:
        """The sbatch command."""
        return ["sbatch", "--parsable", *self.options, str(self.submission.folder / "job.sh")]


@dataclass(frozen=True)
class Queued:
    """A job that Slurm has taken."""

    id: str
    job_dir: Path
    log: Path


def plan_batch(submission: Submission, options: SubmitOptions, slurm: Slurm | None, python: str) -> Batch:
    """The batch script and the options; a reservation of the user's own is found where none was named.

    Without a Slurm to ask (a plan made on a laptop) there is no reservation either.
    """
    known = slurm.reservations() if slurm is not None and options.reservation is None else ""
    options = replace(options, reservation=choose_reservation(known, origin().user, options.reservation))
    order = submission.order
    words = sbatch_options(options, order.name, order.workspace, submission.folder)
    return Batch(submission, words, render_script(submission.folder, python))


def word_beforehand(batch: Batch, model: str, partition: str | None, slurm: Slurm) -> Word:
    """What Slurm says before it is queued; UsageError for a no that waiting does not mend."""
    if not slurm_here():
        return Word(warning=NOT_ASKED)
    gpus = without_gpus(model, partition, slurm) if batch.submission.order.expected_gpus != 0 else ""
    word = ask_beforehand(batch.options, batch.script, slurm)
    return replace(word, warning="; ".join(filter(None, (word.warning, gpus))))


def submit(batch: Batch, slurm: Slurm) -> Queued:
    """Write the folder and queue the job.

    A refusal leaves nothing behind. An sbatch that did not answer may have queued the job: its folder stays.
    """
    submission = batch.submission
    script = submission.folder / "job.sh"
    try:
        submission.write()
        script.write_text(batch.script)
        keep_options(submission.folder, batch.options)
        job = slurm.submit(script, batch.options)
    except OSError as e:
        shutil.rmtree(submission.folder, ignore_errors=True)
        raise UsageError(f"cannot write {script}: {e.strerror}; choose another --workspace") from e
    except SlurmUnreachable as e:
        if not isinstance(e, SlurmDown):
            raise MaybeQueuedError(
                f"{e}; the job may be queued all the same (squeue --me --name={submission.order.name}), "
                f"so {submission.folder} stays: delete it if it is not"
            ) from e
        shutil.rmtree(submission.folder, ignore_errors=True)
        raise
    except TrackwalkerError:
        shutil.rmtree(submission.folder, ignore_errors=True)
        raise
    job_dir = submission.open_job(job.id)
    return Queued(job.id, job_dir, job_dir.parent / f"{job_dir.name}.log")


def first_look(queued: Queued, slurm: Slurm, seconds: float = 3.0) -> JobState:
    """How the job fares in its first moments: it waits, it runs, or it died before it wrote a line."""
    deadline = time.monotonic() + seconds
    while True:
        state = slurm.state(queued.id)
        if state.ended or time.monotonic() > deadline:
            return state
        if state.state == "pending" and state.reason and state.reason not in ("None", "Prolog"):
            return state  # it waits for something, and says for what
        if state.state != "pending" and _wrote(queued):
            return state  # Slurm calls it running while its prolog still may fail; a line of its own proves more
        time.sleep(_LOOK_S)


def died_silently(queued: Queued, state: JobState) -> bool:
    """Whether the job ended before it wrote a line: a prolog that failed, a log that cannot be opened."""
    return state.ended and not _wrote(queued)


def _wrote(queued: Queued) -> bool:
    return queued.log.exists() and queued.log.stat().st_size > 0
