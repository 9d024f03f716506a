"""How a run ended, in upstream's words and with the real exit code."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Optional

from trackwalker.node.agent.output import label
from trackwalker.node.agent.peers import RankEnd as RankEnd
from trackwalker.node.agent.ranks import Rank
from trackwalker.node.agent.ranks import describe_exit as describe_exit
from trackwalker.node.agent.spec import AgentSpec
from trackwalker.node.collectors.kernel_log import KernelLine
from trackwalker.node.sensors.commands import ask

TIMED_OUT = 124  # as timeout(1) has it
_AS_CANCELLED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # how parsers read these codes in a summary


# Why the scheduler ends this job, in its own word: every end it makes is the same SIGTERM here.
_ASK_S = 3.0  # ranks are ending meanwhile; whoever does not answer by then is not waited for
TIME_LIMIT = "CANCELLED DUE TO TIME LIMIT"
NODE_FAILURE = "CANCELLED DUE TO NODE FAILURE"
SCRIPT_KILLED = "FAILED: the batch script was killed"
PLAIN = "CANCELLED (scancel / SIGTERM)"
# As slurmstepd writes them into the log, which readers know.
_REASONS = {
    "TIMEOUT": TIME_LIMIT,
    "TimeLimit": TIME_LIMIT,
    "NodeDown": NODE_FAILURE,
    "JobLaunchFailure": SCRIPT_KILLED,
    "DEADLINE": TIME_LIMIT,
    "NODE_FAIL": NODE_FAILURE,
    "PREEMPTED": "CANCELLED DUE TO PREEMPTION",
    "PENDING": "CANCELLED DUE TO JOB REQUEUE",
    "REQUEUED": "CANCELLED DUE TO JOB REQUEUE",
}
# The code a shell would see, as `trackwalker wait` gives it; whatever is not here ends with its signal's.
CODES = {TIME_LIMIT: 124, NODE_FAILURE: 1, SCRIPT_KILLED: 137}


# Upstream's closing block of a job log, which other tools parse.
def summary_block(spec: AgentSpec, seconds: int, code: int, reason: str) -> str:
    """JOB SUMMARY with job, model, nodes, wall time and status."""
    status = "SUCCESS (exit 0)" if code == 0 else f"FAILED (exit {code})" + (f" — {reason}" if reason else "")
    rows = [
        f"  Job:    {spec.job_id} ({spec.job_name})",
        f"  Model:  {spec.model}",
        f"  Nodes:  {spec.nodes}",
        f"  Wall:   {wall(seconds)}",
        f"  Status: {status}",
    ]
    return "\n".join([" JOB SUMMARY ".center(65, "="), *rows, "=" * 65]) + "\n"


def wall(seconds: int) -> str:
    """A duration as the summary prints it: 7s, 3m 4s, 1h 2m 3s."""
    hours, rest = divmod(seconds, 3600)
    minutes, secs = divmod(rest, 60)
    if hours:
        return f"{hours}h {minutes}m {secs}s"
    return f"{minutes}m {secs}s" if minutes else f"{secs}s"


def why_ended(env: Optional[Mapping[str, str]] = None) -> str:
    """Slurm's reason, or PLAIN for a cancel; empty when nobody answers, and where there is no Slurm."""
    job = (os.environ if env is None else env).get("SLURM_JOB_ID", "")
    if not job.isdigit():
        return ""
    answer = ask(["scontrol", "show", "job", "-o", job], _ASK_S, env)
    attempt = int((os.environ if env is None else env).get("SLURM_RESTART_COUNT") or 0)
    return reason_of(answer.output, attempt) if answer.code == 0 else ""


def reason_of(answer: str, attempt: int = 0) -> str:
    """The reason in `scontrol show job -o`, which calls a job that is just being ended COMPLETING, however it ends."""
    said = dict(re.findall(r"\b(JobState|Reason|PreemptTime|Restarts)=(\S+)", answer))
    if said.get("PreemptTime", "None") not in ("None", "(null)", "N/A", "Unknown"):
        return _REASONS["PREEMPTED"]
    if said.get("Restarts", "0").isdigit() and int(said.get("Restarts", "0")) > attempt:
        return _REASONS["REQUEUED"]
    states = re.split(r"[,+]", said.get("JobState", ""))
    # A job that Slurm ends without a reason was cancelled, also in its last minute; one that runs was only signalled.
    plain = PLAIN if {"CANCELLED", "COMPLETING"} & set(states) else ""
    return next((_REASONS[word] for word in [*states, said.get("Reason", "")] if word in _REASONS), plain)


@dataclass(frozen=True)
class Course:
    """What happened to the run, as far as the first node knows."""

    ends: list[RankEnd]
    first_bad: RankEnd | None
    stopped_by: int | None  # a signal that reached the agent
    warned: bool  # the scheduler had said that the time limit is near
    timed_out: bool  # the stage's own limit
    missing: list[str]  # nodes that never reported
    seconds: int
    last_step: int | None = None  # that rank 0 completed
    word: str = ""  # why the scheduler ended the job, as it says itself


@dataclass(frozen=True)
class Outcome:
    """The exit code, why, and the last lines of the log."""

    code: int
    reason: str
    text: str
    first: RankEnd | None = None  # the failure that it is laid to
    unseen: bool = False  # nobody of ours can say how it ended


def judge(spec: AgentSpec, course: Course) -> Outcome:
    """The job's exit code and its closing lines; of several failures the first one is the cause."""
    lines = [
        f"{label(end.rank, spec.world)}NODE_EXIT host={end.host} exit={end.exit}"
        for end in sorted(course.ends, key=lambda end: (end.ended, end.rank))
        if end.exit
    ]
    lines += [f"NODE_LOST host={host}: its agent never said how its ranks ended" for host in course.missing]
    bad = first_failure(course)
    if bad is not None and course.missing and bad.host not in course.missing:
        bad = _lost(spec, course, bad)
    if bad is not None:
        code, reason = bad.exit if bad.exit not in _AS_CANCELLED else 1, f"Training FAILED (exit={bad.exit})"
        reason += f", lost {', '.join(course.missing)}" if course.missing else ""
        # The exit code stays what it was; whether the work was done is what the next hours depend on.
        if spec.steps is not None and course.last_step is not None and course.last_step + 1 >= spec.steps:
            reason += f" after all {spec.steps} steps were completed"
        lines.append(f"FIRST_FAILURE rank={bad.rank} host={bad.host} exit={bad.exit} cause={bad.cause}")
        lines.append(f"== Training FAILED (exit={bad.exit}, {course.seconds}s) ==")
    elif course.timed_out:
        code, reason = TIMED_OUT, f"Training TIMEOUT ({course.seconds}s/{spec.limit_s or 0:.0f}s)"
        lines += [f"== {reason} ==", '  Hint: STAGE_TIMEOUTS="train:<seconds>" to adjust.']
    elif course.stopped_by is not None:
        code, reason = cancelled(course.stopped_by, course.word, course.warned)
    elif course.missing:
        code, reason = 1, f"Training FAILED (lost {', '.join(course.missing)})"
        lines.append(f"== Training FAILED (exit=1, {course.seconds}s) ==")
    elif spec.attached:
        return Outcome(0, "how the command ended was not seen", "", unseen=True)
    else:
        code, reason = 0, ""
        lines.append(f"== Training END ({course.seconds}s) ==")
    text = "".join(f"{line}\n" for line in lines) + summary_block(spec, course.seconds, code, reason)
    return Outcome(code, reason, text, bad)


def _lost(spec: AgentSpec, course: Course, survivor: RankEnd) -> RankEnd:
    """A node is gone: whoever ended badly and still could say so lost a peer. The exit code stays what was seen."""
    host = course.missing[0]
    known = {end.host for end in course.ends}
    rank = next((r for r in range(spec.world) if r not in {end.rank for end in course.ends}), survivor.rank)
    cause = f"its node is lost, {len(known)} other{'s' if len(known) > 1 else ''} reported how they ended"
    return RankEnd(rank, host, survivor.exit, survivor.ended, cause)


def cancelled(signal_number: int, word: str, warned: bool) -> tuple[int, str]:
    """Exit code and reason of a job that was told to end: the scheduler's word, else the signal's."""
    reason = word or (TIME_LIMIT if warned else PLAIN)
    return CODES.get(reason, 128 + signal_number), reason


def first_failure(course: Course) -> RankEnd | None:
    """The failure that came before all others, now that every node has told.

    Ranks fall within milliseconds of each other, and the word of another node takes longer than that: what ended the
    run was perhaps not the first. Whoever was told to end is no candidate.
    """
    bad = course.first_bad
    if bad is None and (course.timed_out or course.stopped_by is not None):
        return None
    ends = [end for end in course.ends if end.exit]
    if bad is not None:
        ends = [bad, *(end for end in ends if end.exit not in _AS_CANCELLED and end.ended < bad.ended)]
    return _first_of(ends)


def _first_of(ends: list[RankEnd]) -> RankEnd | None:
    """Who ended first; of those that fell within a moment, whoever was killed.

    An error may be the reaction to a peer that is gone, and on a busy machine it is written down first; SIGKILL is
    nobody's reaction.
    """
    first = min(ends, key=lambda end: (end.ended, end.rank), default=None)
    near = [e for e in ends if first and e.exit == 128 + signal.SIGKILL and e.ended - first.ended < _HASTY_S]
    return min(near, key=lambda end: (end.ended, end.rank), default=first)


# A scheduler that cancels a job tells the ranks too, and they may be gone before it tells us: a bad exit is judged a
# moment later, one by a signal that schedulers send after a longer one.
_HASTY_S = 0.2
_TOLD_S = 1.0
_CORE_S = 10.0  # so long a rank that was already writing its core is waited for, whoever ended before it was written
_TOLD = (128 + signal.SIGTERM, 128 + signal.SIGINT)


def end_of(rank: Rank) -> RankEnd:
    """How a rank ended, for others to read."""
    code = rank.exit or 0
    return RankEnd(rank.spec.rank, rank.spec.host, code, rank.failed if rank.ended else 0.0, describe_exit(code))


class Suspects:
    """Bad exits that are still to be judged."""

    def __init__(self, ended: list[Rank]) -> None:
        self.waiting = [r for r in ended if r.exit]

    def guilty(self, now: float, ranks: list[Rank]) -> Rank | None:
        """The first of them to fail, once it is old enough to be judged; the others ended because of it."""
        if not self.waiting:
            return None
        chosen = _first_of([end_of(r) for r in self.waiting])
        first = next(r for r in self.waiting if chosen and r.spec.rank == chosen.rank)
        crashed = any(r.exit is None and r.failed < first.failed for r in ranks)
        if crashed and now - (first.ended or 0.0) < _CORE_S:
            return None
        if now - (first.ended or 0.0) < (_TOLD_S if first.exit in _TOLD else _HASTY_S):
            return None
        self.waiting.clear()
        return first


_KILLED = re.compile(r"Kill(?:ed)? process (\d+)\b")


def kernel_kill(lines: Iterable[KernelLine], pids: Iterable[int], since: float) -> str | None:
    """The kernel's own words about the first of these processes that it killed, None when it killed none of them."""
    wanted = set(pids)
    for line in lines:
        match = _KILLED.search(line.text) if line.kind == "oom" and line.time >= since else None
        if match and int(match[1]) in wanted:
            return line.text
    return None
