"""What Slurm and this machine have in common as executors: jobs with a directory in the workspace."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trackwalker.errors import TrackwalkerError
from trackwalker.job.layout import NAME_FORM, Job
from trackwalker.job.processes import all_pids, read_bytes
from trackwalker.launch.request import parse_model_spec
from trackwalker.launch.standing import find_job
from trackwalker.sweep.executors import Look
from trackwalker.sweep.measure import measure
from trackwalker.sweep.model import Result, Trial
from trackwalker.sweep.plan import Setup
from trackwalker.watch.confirm import Second, is_hang, second_signal
from trackwalker.watch.detect import detect
from trackwalker.watch.incident import Condition
from trackwalker.watch.jobs import Watched

_HERE_S, _ELSEWHERE_S = 5.0, 90.0  # an sbatch of another machine cannot be seen, but gives up after a minute


# Is a running job of a sweep still moving? By the rules of `watch`: its own pace, its phase, and a second signal.
_CONFIRM_EVERY_S = 15.0
_ODD_S = 30.0  # until a job whose files could not be understood is looked at again
# As the failure policy names them; an evaluation or a missing batch belongs to training.
_PHASES = {"init": "init", "restore": "init", "compile": "compile", "checkpoint": "checkpoint"}


@dataclass(frozen=True)
class Hang:
    """A job that no longer moves."""

    phase: str
    says: str


def _second(job: Job) -> Second:
    return second_signal(job.dir, job.id)


class Monitor:
    """Follows one running job."""

    def __init__(self, job: Job, confirm: Callable[[Job], Second] = _second) -> None:
        self._watched = Watched(job)
        self._confirm = confirm
        self._asked = 0.0

    @property
    def step(self) -> int | None:
        """The last completed step."""
        return self._watched.signs.course.last_step

    def look(self, now: float | None = None) -> Hang | None:
        """Take in what is new; a hang is told only when a second signal does not speak against it."""
        now = time.time() if now is None else now
        watched = self._watched
        if now < watched.look_at:
            return None
        try:
            watched.read(now)
            silent = next((c for c in detect(watched.signs, now, {}) if _is_silence(c)), None)
        except (TrackwalkerError, ValueError, KeyError, TypeError, OSError):
            watched.look_at = now + _ODD_S  # odd files of one job; the scheduler still tells of its end
            return None
        if silent is None or watched.ended_at is not None:
            return None
        return self._sure(silent, now)

    def _sure(self, silent: Condition, now: float) -> Hang | None:
        says = silent.title
        if silent.kind != "data-stall":  # there the trainer itself says that its batch is overdue
            if now - self._asked < _CONFIRM_EVERY_S:
                return None
            self._asked = now
            second = self._confirm(self._watched.job)
            if not is_hang(second, silent.silent_s, silent.limit_s):
                return None
            says = f"{says}; {second.says}"
        return Hang(self._phase(now), says)

    def _phase(self, now: float) -> str:
        course = self._watched.signs.course
        quiet = course.quiet(now)
        if quiet is not None and quiet.phase in _PHASES:
            return _PHASES[quiet.phase]
        return "first-step" if course.last_step is None else "train"


def _is_silence(condition: Condition) -> bool:
    return condition.kind in ("hang", "data-stall") or (condition.kind == "checkpoint" and condition.subject == "stuck")


class JobExecutor:
    """Runs trials as jobs of a workspace."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.workspace = Path(setup.workspace)
        self._monitors: dict[str, Monitor] = {}

    def now(self) -> float:
        """The time."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def settle_s(self, host: str) -> float:
        """How long a tag must be absent before its job is asked for again."""
        return _HERE_S if host == socket.gethostname() else _ELSEWHERE_S

    def _job(self, job: str) -> Job | None:
        """The job in the workspace; None before it has a directory."""
        try:
            return find_job(job, self.workspace)
        except TrackwalkerError:
            return None

    def _written(self, tag: str) -> str | None:
        """The id of the job that carries the tag, by the directory or the log that it has in the workspace."""
        for place in sorted(self.workspace.glob(f"*-{tag}")) + sorted(self.workspace.glob(f"*-{tag}.log")):
            if match := NAME_FORM.match(place.name):
                return str(match["id"])
        return None

    def _moving(self, job: str) -> Look:
        """A running job: whether it still moves."""
        found = self._job(job)
        if found is None or found.dir is None:
            return Look("running")
        if job not in self._monitors:
            try:
                self._monitors[job] = Monitor(found)
            except TrackwalkerError:
                return Look("running")
        hang = self._monitors[job].look()
        step = self._monitors[job].step
        return Look("running", hang=hang.says, phase=hang.phase, step=step) if hang else Look("running", step=step)

    def _measured(self, trial: Trial, job: str, state: str, says: str) -> Result:
        self._monitors.pop(job, None)
        found = self._job(job) or Job(job, None, None)
        try:
            return measure(found, trial, state, says, self.setup.gpu)
        except Exception as e:  # one job's odd files must not cost the sweep, now and at every resume
            why = f"what it left cannot be read: {type(e).__name__}: {e}"
            return Result(trial.key, "failed", job, why=why, cause="unreadable")


def spec_of(trial: Trial, tag: str) -> str:
    """The model with the tag in the job's name and, as alias, in its own checkpoint folder: trials share nothing."""
    spec = parse_model_spec(trial.model)
    named = f"{spec.tag}-{tag}" if spec.tag else tag
    return f"{spec.model}:{named}:{named}"


def words_of(trial: Trial) -> list[str]:
    """The trial's settings as they stand behind `--`."""
    return [f"{k}={v}" for k, v in trial.config.items()] + [f"_env_{k}={v}" for k, v in trial.env.items()]


def processes_with(mark: str) -> Iterator[int]:
    """Processes of this machine one of whose words ends in the mark."""
    ending = mark.encode() + b"\0"
    for pid in all_pids():
        if pid != os.getpid() and ending in (read_bytes(f"/proc/{pid}/cmdline") or b""):
            yield pid
