"""How a job ended: one answer for everybody who says so (status, jobs, wait, watch, triage, diagnose, the ledger).

The scheduler's own word comes first, then what the job's agent wrote down, then Slurm's and srun's lines in the log. A
scheduler that does not answer ends nothing. Of a job that ran more than once, only the last attempt speaks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trackwalker.job.dialects import needles
from trackwalker.job.journal import read
from trackwalker.job.layout import Job
from trackwalker.job.slurm.states import JobState, State
from trackwalker.job.whole import read_part

_TAIL = 1 << 17  # bytes of a log: the end is told at its end
_DUE = re.compile(
    rb"\*\*\* (?:JOB|STEP) [^\n]{0,200}? CANCELLED AT \S+[^\n]*? DUE TO "
    rb"(TIME LIMIT|NODE FAILURE|PREEMPTION|JOB REQUEUE)"
)
_CANCELLED = re.compile(rb"\*\*\* (?:JOB|STEP) [^\n]{0,200}? CANCELLED AT ")
_NEAR = re.compile(rb"^TIME_LIMIT_NEAR: Slurm ends job ", re.MULTILINE)  # our batch script's, told by Slurm
_NODE_LOST = re.compile(rb"srun: error: Node failure on ([\w.-]+)")
_MEMORY = re.compile(
    rb"slurmstepd[^\n]*: error: Detected \d+ oom[-_]kill event|srun: error: ([\w.-]+): [^\n]*: Out Of Memory"
)
# A task that ended by itself: not with the SIGTERM (143) or the interrupt (130) that end all of them.
_TASK = re.compile(
    rb"^srun: error: ([\w.-]+): tasks? [\d,-]+: (?:Exited with exit code (?!(?:0|130|143)\s)(\d+)|"
    rb"(Killed|Aborted|Bus error|Segmentation fault|Illegal instruction|Floating point exception))",
    re.MULTILINE,
)
_WORDS: dict[str, State] = {
    "TIME LIMIT": "timeout",
    "NODE FAILURE": "node-fail",
    "PREEMPTION": "preempted",
    "JOB REQUEUE": "pending",
}
_BY_SIGNAL = {
    "Killed": 137, "Aborted": 134, "Bus error": 135, "Segmentation fault": 139, "Illegal instruction": 132,
    "Floating point exception": 136,
}  # fmt: skip
_CANCEL_CODES = (130, 143)


@dataclass(frozen=True)
class Told:
    """What the last attempt left behind about its own end."""

    code: int | None = None  # of the agent's record of the end
    reason: str = ""
    word: State | None = None  # the scheduler's, in the record or the log: why it ended the job
    near: bool = False  # Slurm had said that the time limit is near
    cancelled: bool = False  # Slurm's line about a cancel that gives no reason
    memory: bool = False  # the kernel killed for want of memory
    task: tuple[str, int] | None = None  # the first task that ended badly by itself: host and code
    lost: tuple[str, ...] = ()  # nodes that srun or the agents say are gone


def told_by(job: Job) -> Told:
    """Read it: the journal's last attempt and the end of the log."""
    events = last_attempt(read(job.events).items if job.events else [])
    out = of_events(events)
    log = of_log(tail_of(job.log)) if job.log is not None else Told()
    return replace(
        out,
        word=out.word or log.word,
        near=log.near,
        cancelled=out.cancelled or log.cancelled,
        memory=out.memory or log.memory,
        task=out.task or log.task,
        lost=tuple(dict.fromkeys((*out.lost, *log.lost, *_silent_agents(job, events)))),
    )


def last_attempt(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events since the last attempt began."""
    begins = [at for at, event in enumerate(events) if event.get("kind") == "attempt-begin"]
    return events[begins[-1] :] if begins else events


def of_events(events: list[dict[str, Any]]) -> Told:
    """The agent's own record of the end, and what the kernel told it."""
    first = {str(event.get("rank")) for event in events if event.get("kind") == "first-failure"}
    killed = {str(event.get("rank")) for event in events if event.get("kind") == "kernel-kill"}
    out = Told(memory=bool(first & killed))
    for event in reversed(events):
        if event.get("kind") == "run-end":
            data: dict[str, Any] = event.get("data") or {}
            reason, missing = str(data.get("reason", "")), data.get("missing")
            lost = tuple(str(host) for host in missing) if isinstance(missing, list) else ()
            code = None if "exit" in data and data["exit"] is None else _exit_code(data.get("exit", 1))
            return replace(out, code=code, reason=reason, word=word_of(reason), lost=lost)
    return out


def _exit_code(said: Any) -> int:
    """The code that a record gives; what is no code counts as a failure without one of its own."""
    return said if type(said) is int and -255 <= said <= 255 else 1


def of_log(tail: bytes) -> Told:
    """Slurm's and srun's lines; what stands before the last requeue is another attempt's."""
    dues = list(_DUE.finditer(tail))
    again = [m.end() for m in dues if m[1] == b"JOB REQUEUE" and _went_on(tail, m.end())]
    tail = tail[again[-1] :] if again else tail
    dues = list(_DUE.finditer(tail))
    last_step = max((tail.rfind(needle) for needle in needles()), default=-1)
    cancel = _CANCELLED.search(tail)
    lost = tuple(dict.fromkeys(m[1].decode() for m in _NODE_LOST.finditer(tail)))
    memory = _MEMORY.search(tail, max(last_step, 0))
    since = tail.rfind(b"\n", 0, last_step) + 1 if last_step > 0 else 0
    until = cancel.start() if cancel is not None else len(tail)  # who was asked to end may end badly
    tasks = list(_TASK.finditer(tail, since, until))
    word = _WORDS[dues[-1][1].decode()] if dues else "node-fail" if lost else None
    return Told(
        word=word,
        near=_NEAR.search(tail) is not None,
        cancelled=cancel is not None,
        memory=memory is not None,
        task=_task(tasks),
        lost=lost,
    )


def _task(found: list[re.Match[bytes]]) -> tuple[str, int] | None:
    """Host and code; srun prints tasks in the order it hears of them, so of several nobody is accused."""
    if not found:
        return None
    code = int(found[0][2]) if found[0][2] else _BY_SIGNAL[found[0][3].decode()]
    return (found[0][1].decode() if len({m[1] for m in found}) == 1 else "", code)


def word_of(reason: str) -> State | None:
    """The scheduler's word in a summary's reason: `CANCELLED DUE TO TIME LIMIT`."""
    named = re.search(r"DUE TO (TIME LIMIT|NODE FAILURE|PREEMPTION|JOB REQUEUE)", reason)
    if named:
        return _WORDS[named[1]]
    return "timeout" if reason == "CANCELLED (time limit)" else None


def decide(asked: JobState | None, told: Told) -> JobState:
    """The one answer, from the scheduler's word (None: there was nobody to ask) and what the job left behind."""
    seen = asked or JobState("", "forgotten")
    if not seen.ended and seen.state != "unknown":
        return seen
    if seen.state == "failed" and told.memory:
        return replace(seen, state="oom")
    if seen.state == "failed" and told.task and not seen.where:
        return replace(seen, where=told.task[0])
    if seen.state == "completed" and told.task and told.code is None:
        # The script went on after its step had failed, and ended well itself.
        return replace(seen, state="failed", exit_code=told.task[1], where=told.task[0])
    if seen.state == "node-fail":
        return replace(seen, where=",".join(told.lost) or seen.where)
    if seen.state not in ("forgotten", "unknown"):
        return seen
    return _by_itself(seen, told) or seen


def _by_itself(seen: JobState, told: Told) -> JobState | None:
    """Nobody else knows: the job's own record, then its log."""
    if told.code is not None:
        state: State = "completed" if told.code == 0 else told.word or ("oom" if told.memory else "failed")
        if state == "failed" and (told.reason.startswith("CANCELLED") or told.code in _CANCEL_CODES):
            state = "cancelled"
        where = ",".join(told.lost) if state == "node-fail" else ""
        return (
            None
            if state == "pending"
            else replace(seen, state=state, exit_code=told.code, reason=told.reason, where=where)
        )
    if seen.state == "unknown":
        return None  # a line in a log is no proof that the job is not running again
    if told.task and told.word is None:
        return replace(seen, state="oom" if told.memory else "failed", exit_code=told.task[1], where=told.task[0])
    if told.word not in (None, "pending"):
        where = ",".join(told.lost) if told.word == "node-fail" else ""
        return replace(seen, state=told.word, where=where) if told.word else None
    if told.cancelled:
        return replace(seen, state="cancelled")
    return replace(seen, state="timeout") if told.near else None


def _went_on(tail: bytes, at: int) -> bool:
    """Whether a trainer or a launcher spoke after a requeue: the job ran again."""
    rest = tail[at:]
    return b"JOB_ID=" in rest or any(needle in rest for needle in needles())


def _silent_agents(job: Job, events: list[dict[str, Any]]) -> tuple[str, ...]:
    """Nodes whose agents said nothing at the end although others did: the first node's loss is told by nobody else."""
    if job.dir is None or not events or any(event.get("kind") == "run-end" for event in events):
        return ()
    begin: dict[str, Any] = next((e for e in events if e.get("kind") == "attempt-begin"), {})
    attempt = job.dir / "agent" / f"attempt-{int((begin.get('data') or {}).get('attempt', 0))}"
    try:
        spoke = {int(path.stem) for path in (attempt / "ended").glob("*.json") if path.stem.isdigit()}
    except OSError:
        return ()
    head = str(begin.get("node") or "")
    return (head,) if spoke and head else ()


def tail_of(log: Path) -> bytes:
    """The end of a log, nothing of one that cannot be read."""
    return read_part(log, _TAIL, end=True)
