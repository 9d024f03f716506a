"""How a job of the workspace stands, and how to end it, whichever scheduler runs it.

The scheduler is asked first: only it knows of a job that waits, or that died before it could write. Where it cannot be
asked the answer is `unknown`; where it has forgotten, the job's own record of its end counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackwalker.errors import EvidenceError, MissingToolError, NotAJobError, TrackwalkerError, UsageError
from trackwalker.job.ending import decide, last_attempt, of_events, told_by
from trackwalker.job.journal import read
from trackwalker.job.layout import NAME_FORM, Job
from trackwalker.job.processes import alive, live_members, process_of, session_members, short_hostname
from trackwalker.job.resolve import list_jobs, resolve
from trackwalker.job.run import load_run
from trackwalker.job.shorthand import nth, position, without_part
from trackwalker.job.slurm.states import JobState, State
from trackwalker.job.trust import distrust
from trackwalker.job.whole import read_whole
from trackwalker.launch.kubernetes.client import delete_argv, kubectl, logs_argv, observe, refusal
from trackwalker.launch.kubernetes.state import Seen
from trackwalker.launch.schedulers import scheduler_named
from trackwalker.launch.slurm.client import Slurm, slurm_here

LOCAL, SLURM, KUBERNETES = "local", "slurm", "kubernetes"
_POD_ENDS: dict[str, State] = {
    "time-limit": "timeout",
    "preempted": "preempted",
    "node-lost": "node-fail",
    "out-of-memory": "oom",
}
_POD_STUCK = frozenset({"image", "config", "refused"})  # they wait for a person, not for nodes
_NOT_ASKED = "was not asked about"
_SKEW_S = 900.0  # clocks of login nodes, file servers and controllers


@dataclass(frozen=True)
class Standing:
    """Where a job is between submission and its end; `exit` is a shell's code, None until there is one."""

    state: str
    ended: bool
    exit: int | None = None
    meaning: str = ""  # one phrase for people
    reason: str = ""  # the scheduler's word
    nodes: str = ""
    restarts: int = 0
    stuck: bool = False  # it waits for a person
    hosts: tuple[str, ...] = ()  # the nodes that failed or were lost
    end: float | None = None  # when, by the scheduler's clock


def find_job(name: str, workspace: Path) -> Job:
    """The job that `name` means, also one that has not written a line yet."""
    if (before := position(name)) is not None:
        return nth(submitted(workspace), before, workspace)
    name = name if "/" in name else without_part(name)
    # The whole id first: the prefix of another job must not stand for one that has no log yet.
    places = [Path(name)] if "/" in name else sorted(workspace.glob("*-*"))
    for place in places:
        match = NAME_FORM.match(place.name)
        if match and (match["id"] == name or "/" in name) and os.path.isfile(place / "run.json"):
            try:
                return resolve(str(place.absolute()), workspace)
            except NotAJobError:
                return Job(match["id"], None, place.absolute())
    return resolve(name, workspace)


def scheduler_of(job: Job) -> str:
    """Which scheduler runs it: by its record, else (an upstream job) by the form of its id."""
    record = load_run(job.run_json)
    if record is not None:
        return KUBERNETES if record.scheduler in ("k8s", KUBERNETES) else record.scheduler
    if job.id.isdigit():
        return SLURM
    return KUBERNETES if job.id.startswith("k8s-") else LOCAL


def submitted(workspace: Path, skipped: list[str] | None = None) -> list[Job]:
    """Every job of a workspace, newest first, with those that wait and have no log yet."""
    written = list_jobs(workspace, skipped)
    known = {job.id for job in written}
    waiting = []
    for record in workspace.glob("*-*/run.json"):
        match = NAME_FORM.match(record.parent.name)
        if match and match["id"] not in known:
            waiting.append(Job(match["id"], None, record.parent.absolute()))
    return [*sorted(waiting, key=lambda job: job.id, reverse=True), *written]


def standings(jobs: list[Job], slurm: Slurm | None = None) -> list[Standing]:
    """How each of many jobs is doing: Slurm is asked once for all of them, and not where every end is written down.

    A job without a record of ours is read from its files only: it may be of another cluster, or of last year.
    """
    ours = {job.id: _own_scheduler(job) for job in jobs}
    # One that ended well has said so itself; of every other the scheduler may know better how it ended.
    asked_about = (SLURM, "") if slurm is not None or slurm_here() else (SLURM,)
    doubtful = {job.id for job in jobs if ours[job.id] in asked_about and job.id.isdigit() and _code(job) != 0}
    return [_among_many(job, ours[job.id], found) for found in [_answers(doubtful, slurm)] for job in jobs]


def _own_scheduler(job: Job) -> str:
    """The scheduler of a job of ours; empty for another's, and for one whose record is damaged."""
    with contextlib.suppress(EvidenceError):
        return scheduler_of(job) if load_run(job.run_json) else ""
    return ""


def _answers(jobs: set[str], slurm: Slurm | None) -> dict[str, JobState] | None:
    """What Slurm says of these jobs, in two questions however many they are; None when it does not answer."""
    if not jobs:
        return {}
    asked = slurm or Slurm()
    try:
        queue = {seen.id: seen for seen in asked.queue()}
    except (TrackwalkerError, ValueError):
        return None
    found = {**asked.remembered(sorted(jobs - queue.keys())), **queue}
    closer = asked.cancelled_by([asked.closer(found[job]) for job in jobs & found.keys()])
    return {**found, **{seen.id: seen for seen in closer}}


def _among_many(job: Job, scheduler: str, found: dict[str, JobState] | None) -> Standing:
    if scheduler == LOCAL:
        return _local(job)
    if scheduler not in (SLURM, "") or not job.id.isdigit() or (not scheduler and found is None):
        return _recorded(job) or Standing("unknown", False, meaning=_NOT_ASKED)
    if found is None:
        return of_slurm(job, JobState(job.id, "unknown", reason="Slurm does not answer"))
    seen = of_slurm(job, found.get(job.id) or JobState(job.id, "forgotten"))
    if not scheduler and seen.state == "forgotten":  # it may be another cluster's
        return Standing("unknown", False, meaning="is not known to this Slurm")
    return seen


def _code(job: Job) -> int | None:
    return of_events(last_attempt(read(job.events).items if job.events else [])).code


def standing(job: Job, slurm: Slurm | None = None) -> Standing:
    """How the job is doing."""
    where = scheduler_of(job)
    if where == LOCAL:
        return _local(job)
    if where == SLURM:
        return of_slurm(job, (slurm or Slurm()).state(job.id))
    if where == KUBERNETES:
        found = _kubernetes(job)
        return (_recorded(job) or found) if found.state == "gone" else found
    other = scheduler_named(where)
    return (other.state(job) if other else None) or _recorded(job) or Standing("unknown", False, meaning=_NOT_ASKED)


def cancel(job: Job, slurm: Slurm | None = None) -> Standing:
    """Ask the job to end and return how it stood before; a job that is not of this workspace is refused."""
    if job.dir is None:
        raise UsageError(f"job {job.id} has no directory in this workspace, so it is not ours: not cancelled")
    before = standing(job, slurm)
    if before.ended:
        return before
    where = scheduler_of(job)
    if where == SLURM:
        (slurm or Slurm()).cancel(job.id, _name(job), job.dir.stat().st_uid)
    elif where == KUBERNETES:
        cluster = _in_cluster(job)
        answer = kubectl(delete_argv(cluster["namespace"], job.id, cluster["kind"] == "JobSet"))
        if answer.code != 0:
            raise refusal(f"job {job.id} was not cancelled", answer)
    elif (other := scheduler_named(where)) is not None:
        other.cancel(job)
    else:
        _end_local(job, before)
    return before


def pod_logs(job: Job, seen: Standing, follow: bool, lines: int) -> list[str] | None:
    """The command that prints what the job's pods said, for a log that this machine does not see; None without pods."""
    if scheduler_of(job) != KUBERNETES or seen.state in ("pending", "gone", "unknown"):
        return None
    return logs_argv(_in_cluster(job)["namespace"], job.id, follow, lines)


def of_slurm(job: Job, seen: JobState) -> Standing:
    """How a job stands by what Slurm said of its number, which may be another job's by now."""
    other = seen.name if (seen.name or seen.log) and not _same(seen, job) else ""
    if other:
        seen = JobState(job.id, "forgotten")
    if seen.ended or seen.state == "unknown":
        seen = decide(seen, told_by(job))
    if other and seen.state == "forgotten":
        return Standing("forgotten", True, meaning=f"is over: Slurm's job {job.id} is now '{other}'")
    stuck, hosts = seen.stuck, tuple(filter(None, seen.where.split(",")))
    return Standing(
        seen.state, seen.ended, seen.exit, seen.meaning, seen.reason, seen.nodes, seen.restarts, stuck, hosts,
        seen.end if seen.ended else None,
    )  # fmt: skip


def _kubernetes(job: Job) -> Standing:
    where = _in_cluster(job)
    try:
        seen = observe(where["namespace"], job.id, where["kind"] == "JobSet")
    except MissingToolError as e:
        return Standing("unknown", False, meaning="cannot be asked about from here", reason=str(e))
    return of_pods(seen)


def of_pods(seen: Seen) -> Standing:
    """How a Kubernetes job stands, in the words that every scheduler's ends have."""
    if seen.state == "failed" and seen.reason in _POD_ENDS:
        end = JobState("", _POD_ENDS[seen.reason], where=seen.node)
        hosts = (seen.node,) if end.state == "node-fail" and seen.node else ()
        meaning = f"{end.meaning}: {seen.detail}" if seen.detail else end.meaning
        return Standing(end.state, True, end.exit, meaning, seen.reason, seen.node, seen.restarts, hosts=hosts)
    ended = seen.state in ("completed", "failed", "gone")
    code = 0 if seen.state == "completed" else (seen.exit_code or 1) if seen.state == "failed" else None
    meaning = f"{seen.state}: {seen.detail}" if seen.detail else seen.state
    stuck = seen.state == "pending" and seen.reason in _POD_STUCK
    return Standing(seen.state, ended, code, meaning, seen.reason, seen.node, seen.restarts, stuck)


def _local(job: Job) -> Standing:
    if live_members(_agent_state(job)):
        return Standing("running", False, meaning="runs", nodes=_machine(job) or "")
    recorded = _recorded(job)
    if recorded is not None:
        return recorded
    machine = _machine(job)
    if machine and machine not in (socket.gethostname(), short_hostname()):
        return Standing("unknown", False, meaning=f"cannot be asked about from here: it runs on {machine}")
    return Standing("lost", True, meaning="is over: its processes are gone and nobody wrote down how it ended")


def _recorded(job: Job) -> Standing | None:
    """The end of the run as its agent wrote it down; of several attempts the last counts."""
    seen = decide(None, of_events(last_attempt(read(job.events).items if job.events else [])))
    if seen.state == "forgotten":
        return None
    return Standing(
        seen.state, True, seen.exit, seen.meaning, seen.reason, hosts=tuple(filter(None, seen.where.split(",")))
    )


def _end_local(job: Job, before: Standing) -> None:
    if before.state == "unknown":
        raise UsageError(f"job {job.id} {before.meaning}: cancel it there")
    if job.state is not None and job.dir is not None and (why := distrust(job.state, job.dir.parent)):
        raise UsageError(f"job {job.id} is not cancelled: {why}, and it says whom to signal")
    state = _agent_state(job)
    agent, ranks = process_of(state.get("agent")), state.get("ranks")
    try:
        if agent and alive(*agent):
            os.kill(agent[0], signal.SIGTERM)
            return
        # The agent died and nobody started another: what it would have told the ranks, we tell them.
        for rank in map(process_of, ranks if isinstance(ranks, list) else []):
            if rank and alive(*rank):
                for pid in session_members(rank[0]):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        raise UsageError(f"job {job.id} belongs to another user: not cancelled") from None


def _agent_state(job: Job) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        said = json.loads(read_whole(job.state)) if job.state else {}
        return said if isinstance(said, dict) else {}
    return {}


def _machine(job: Job) -> str | None:
    record = load_run(job.run_json)
    if record is None:
        return None
    return record.ranks[0].node if record.ranks else record.origin.machine if record.origin else None


def _name(job: Job) -> str:
    record = load_run(job.run_json)
    return record.name if record else job.name


def _same(seen: JobState, job: Job) -> bool:
    """Whether Slurm's job of this number is the one whose files these are, not a later one or another cluster's."""
    if load_run(job.run_json) is not None:
        return seen.name == _name(job)
    told = Path(seen.log.replace("%j", job.id).replace("%A", job.id))
    if seen.log and job.log is not None and (told.absolute() == job.log.absolute() or same_file(told, job.log)):
        return True
    # A finished job's directory may carry a throughput tag behind its name; a script may be called otherwise.
    return job.name.startswith(seen.name) or _written_then(seen, job)


def same_file(a: Path, b: Path) -> bool:
    """Whether two paths are one file."""
    try:
        return a.samefile(b)
    except OSError:
        return False


def _written_then(seen: JobState, job: Job) -> bool:
    """Whether the log was last written while such a job ran, or as it ended."""
    if job.log is None or seen.start is None:
        return False
    written = job.log.stat().st_mtime
    return seen.start - _SKEW_S <= written and (not seen.ended or written <= (seen.end or written) + _SKEW_S)


def _in_cluster(job: Job) -> dict[str, str]:
    """Namespace and kind of what was created; upstream's jobs do not say."""
    record = load_run(job.run_json)
    return {"namespace": "default", "kind": "Job", **(record.kubernetes if record else {})}
