"""What Slurm and this machine have in common as executors: jobs with a directory in the workspace."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trackwalker.diagnose.triage import Triage, triage
from trackwalker.errors import TrackwalkerError
from trackwalker.job.journal import read
from trackwalker.job.layout import NAME_FORM, Job
from trackwalker.job.processes import all_pids, read_bytes
from trackwalker.launch.job_state import find_job
from trackwalker.launch.request.words import parse_model_spec
from trackwalker.perf.analysis.report import Options, analyse
from trackwalker.perf.analysis.result import PerfReport
from trackwalker.perf.formats.find import find_files
from trackwalker.sweep.executors.protocol import Look
from trackwalker.sweep.model import Result, Status, Trial
from trackwalker.sweep.plan import Setup
from trackwalker.sweep.policy import Policy, Signal, load_policy, status_of
from trackwalker.watch.detect.confirm import Second, is_hang, second_of
from trackwalker.watch.detect.rules import detect
from trackwalker.watch.incident import Condition
from trackwalker.watch.jobs import Watched

_HERE_S, _ELSEWHERE_S = 5.0, 90.0  # an sbatch of another machine cannot be seen, but gives up after a minute


# Is a running job of a sweep still moving? By the rules of `watch`: its own pace, its phase, and a second signal.
_CONFIRM_EVERY_S = 15.0
_ODD_S = 30.0  # until a job whose files could not be understood is looked at again
# As the failure policy names them; an evaluation or a missing batch belongs to training.
_PHASES = {"init": "init", "restore": "init", "compile": "compile", "checkpoint": "checkpoint"}


# From a job that has ended to a result: how it ended by triage, how fast it was by perf, what explains that.
_GOOD = frozenset({"completed", "soft-success"})
# What only the scheduler knows of an end.
_STATES: dict[str, tuple[Status, str]] = {
    "oom": ("oom", "oom-host"),
    "node-fail": ("node-fault", "node-failure"),
    "boot-fail": ("node-fault", "node-failure"),
    "launch-failed": ("node-fault", "launch-failed"),
    "preempted": ("cancelled", "preempted"),
    "cancelled": ("cancelled", "cancelled"),
    "timeout": ("failed", "walltime"),
    "deadline": ("failed", "walltime"),
}
_CERTAIN = frozenset({"oom", "node-fail", "boot-fail", "launch-failed", "preempted"})  # whatever the log says
_TRIAGE_PHASES = {"training": "train", "teardown": "train", "compile": "compile"}
_PER_HOUR = 3600.0


def measure(job: Job, trial: Trial, state: str, says: str, gpu: str | None = None) -> Result:
    """What came of a job; `state` and `says` are its scheduler's. It never raises: what cannot be read is said."""
    policy = load_policy()
    try:
        seen = triage(job)
    except TrackwalkerError as e:
        status, cause = _STATES.get(state, ("failed", state))
        return Result(trial.key, status, job.id, why=f"{says}; {e}" if says else str(e), cause=cause,
                      hosts=_lone(trial, ()), minutes=_minutes(job))  # fmt: skip
    if seen.status in _GOOD:
        return _good(job, trial, seen, policy, gpu)
    return _bad(job, trial, seen, state, says)


def _good(job: Job, trial: Trial, seen: Triage, policy: Policy, gpu: str | None) -> Result:
    try:
        traced = bool(find_files(job, seen.index.facts.setting("tensorboard_dir")).traces)
        report = analyse(job, Options(gpu=gpu, with_traces=traced))
    except TrackwalkerError as e:
        return Result(trial.key, "failed", job.id, why=f"it ran, but its speed cannot be read: {e}", cause="no-figure",
                      minutes=_minutes(job))  # fmt: skip
    speed = report.throughput
    steady = speed.tgs if speed is not None else None
    if speed is None or steady is None or steady.n < policy.least_steps or _only_first_steps(report):
        had = steady.n if steady is not None else 0
        why = f"it ran, but only {had} steady steps are left to judge its speed by: give more --steps"
        return Result(trial.key, "failed", job.id, why=why, cause="no-figure", minutes=_minutes(job))
    return Result(
        trial.key,
        "ok",
        job.id,
        score=steady.mean,
        low=steady.low,
        high=steady.high,
        step_s=speed.step_s,
        steps=steady.n,
        mfu=report.utilisation.mfu if report.utilisation else None,
        comm_s=_in_collectives(report),
        memory_gb=peak_memory(seen),
        signals=signals(job, seen, policy.signals),
        minutes=_minutes(job),
    )


def _in_collectives(report: PerfReport) -> float | None:
    """Seconds of a step in collectives, where the trial took a trace; no trainer writes that down step by step."""
    known = [row.seconds for row in report.trace.collectives if row.seconds is not None] if report.trace else []
    return sum(known) if known else None


def _only_first_steps(report: PerfReport) -> bool:
    """Perf judges a run of few steps by its labelled ones; a sweep never compares warm-up or compilation."""
    return report.throughput is not None and any(
        note.startswith("nearly every step is labelled") for note in report.throughput.notes
    )


def _bad(job: Job, trial: Trial, seen: Triage, state: str, says: str) -> Result:
    primary = seen.primary
    cause = primary.id if primary is not None else ""
    status: Status = status_of(cause, primary.cause) if primary is not None else "failed"
    why = f"{seen.summary}" if not primary else f"{primary.text or primary.why or seen.summary}"
    if state in _CERTAIN or (state in _STATES and (status == "failed" or cause in ("", "cancelled"))):
        status, cause = _STATES[state]
        why = f"{says}: {why}" if says else why
    elif status == "failed" and seen.status == "completed-short":
        cause, why = "completed-short", "it ended well, but before its last step"
    named = tuple(primary.hosts or ((primary.host,) if primary.host else ())) if primary is not None else ()
    hosts = _lone(trial, named or ((seen.roles.first_host,) if seen.roles.first_host else ()))
    if status == "node-fault" and len(trial.nodes) > 1 and not hosts:
        status = "failed"  # all nodes alike: not one node's doing
    return Result(trial.key, status, job.id, why=why, cause=cause, hosts=hosts, phase=_phase(seen),
                  memory_gb=peak_memory(seen), minutes=_minutes(job))  # fmt: skip


def _lone(trial: Trial, named: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes of this trial that are named, where that is not all of several."""
    if len(trial.nodes) == 1:
        return trial.nodes
    found = tuple(node for node in trial.nodes if node in named)
    return found if len(found) < len(trial.nodes) else ()


def _phase(seen: Triage) -> str:
    return _TRIAGE_PHASES.get(seen.phase, "first-step" if seen.phase.startswith("before the first step") else "init")


def _minutes(job: Job) -> float:
    """From the first event of the job to its last, as its agents wrote them down; 0 where they did not."""
    times = [
        float(e["t"]) for e in (read(job.events).items if job.events else []) if isinstance(e.get("t"), (int, float))
    ]
    return (max(times) - min(times)) / 60.0 if times else 0.0


def peak_memory(seen: Triage) -> float | None:
    """The most device memory that any rank printed, in GB."""
    memory = seen.index.facts.memory
    return memory[-1].used if memory else None


def signals(job: Job, seen: Triage, wanted: Mapping[str, Signal]) -> dict[str, dict[str, float]]:
    """Host -> signal -> its steady value, where the job was recorded; a database that cannot be read costs no more."""
    first, last = seen.record.table.first_end, seen.record.table.last_end
    if job.database is None or first is None or last is None or last - first < 1.0:
        return {}
    from trackwalker.telemetry.store import open_database  # a server is started: only where there is a database

    begin = first + 0.2 * (last - first)  # what the first steps did explains nothing
    found: dict[str, dict[str, float]] = {}
    try:
        with open_database(job.database) as telemetry:
            there = telemetry.metrics()
            for name, signal in wanted.items():
                if signal.metric not in there:
                    continue
                query = _query(signal, last - begin, last)
                for host, value in telemetry.by_host(query, last).items():
                    found.setdefault(host, {})[name] = round(value, 4)
    except (TrackwalkerError, OSError, ValueError):
        return found
    return found


def _query(signal: Signal, seconds: float, end: float) -> str:
    window = f"{signal.metric}[{max(round(seconds), 1)}s] @ {end:.3f}"
    if signal.of == "mean":
        return f"avg by (host) (avg_over_time({window}))"
    if signal.of == "max":
        return f"max by (host) (max_over_time({window}))"
    scale = f" * {_PER_HOUR:.0f}" if signal.of == "rate" else ""
    return f"sum by (host) (rate({window})){scale}"


@dataclass(frozen=True)
class Hang:
    """A job that no longer moves."""

    phase: str
    says: str


class Monitor:
    """Follows one running job."""

    def __init__(self, job: Job, confirm: Callable[[Job], Second] = second_of) -> None:
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
