"""What Slurm says of a job, in our words: walltime, preemption, scancel and node failure are different endings."""

from __future__ import annotations

import contextlib
import pwd
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

State = Literal[
    "pending",
    "launch-failed",
    "running",
    "suspended",
    "completing",
    "completed",
    "failed",
    "cancelled",
    "timeout",
    "preempted",
    "node-fail",
    "boot-fail",
    "oom",
    "deadline",
    "revoked",
    "forgotten",
    "unknown",
]
STATES: tuple[State, ...] = get_args(State)

# Slurm's base states, then the flags it may add to one or show instead (both are words of one list since 23.11).
_BASE: dict[str, State] = {
    "PENDING": "pending",
    "RUNNING": "running",
    "SUSPENDED": "suspended",
    "COMPLETED": "completed",
    "CANCELLED": "cancelled",
    "FAILED": "failed",
    "TIMEOUT": "timeout",
    "NODE_FAIL": "node-fail",
    "PREEMPTED": "preempted",
    "BOOT_FAIL": "boot-fail",
    "DEADLINE": "deadline",
    "OUT_OF_MEMORY": "oom",
}
RAW = {state: word for word, state in _BASE.items()}
_FLAGS: dict[str, State] = {
    "LAUNCH_FAILED": "launch-failed",
    "REVOKED": "revoked",  # the job of a federation runs on another cluster
    "COMPLETING": "completing",
    "STAGE_OUT": "completing",
    "SIGNALING": "running",
    "CONFIGURING": "running",  # the nodes are ours and being prepared
    "RESIZING": "running",
    "STOPPED": "suspended",
    "REQUEUED": "pending",
    "REQUEUE_FED": "pending",
    "REQUEUE_HOLD": "pending",
    "SPECIAL_EXIT": "pending",
    "RESV_DEL_HOLD": "pending",
    "POWER_UP_NODE": "pending",
    "RECONFIG_FAIL": "failed",
    "UPDATE_DB": "completing",
    "EXPEDITING": "pending",
}
_ENDED: frozenset[State] = frozenset(_BASE.values()) - {"pending", "running", "suspended"} | {"revoked", "forgotten"}
PROLOG = "Prolog error"  # Slurm's reason for a node; the job itself is merely cancelled
_NO_START = 53  # slurmd's own number for "the batch script could not be started", given as if it were a signal
# As timeout(1), a shell and the kernel's memory killer say it; endings without a number of their own give 1.
_EXITS: dict[State, int] = {"completed": 0, "timeout": 124, "cancelled": 143, "preempted": 143, "oom": 137}

_MEANING: dict[State, str] = {
    "pending": "waits in the queue",
    "launch-failed": "a node's prolog failed: Slurm drained that node and holds the job until 'scontrol release'",
    "running": "runs",
    "suspended": "is suspended",
    "completing": "is ending",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "was cancelled",
    "timeout": "reached its time limit",
    "preempted": "had to make room for another job",
    "node-fail": "lost a node",
    "boot-fail": "did not start: a node failed to boot",
    "oom": "ran out of memory",
    "deadline": "passed its deadline before it could finish",
    "revoked": "runs on another cluster of the federation",
    "forgotten": "is over: Slurm no longer remembers how it ended",
    "unknown": "cannot be asked about: Slurm does not answer",
}
_HELD = re.compile(r"held", re.IGNORECASE)
_BY = re.compile(r"CANCELLED by (\d+)")
_SIGNAL_REASON = re.compile(r"RaisedSignal:(\d+)")


# Why a job waits: which of Slurm's reasons pass by themselves, and what to change for the others.
# Reasons that no waiting mends: only the request, the partition or the account can change.
_NEVER: tuple[tuple[str, str], ...] = (
    (r"DependencyNeverSatisfied", "the job it waits for did not end as asked: submit without --dependency"),
    (r"PartitionNodeLimit", "it asks for more or fewer nodes than the partition allows: change -N or -p"),
    (r"PartitionTimeLimit", "it asks for more time than the partition allows: change --time or -p"),
    (r"PartitionConfig", "no node of the partition has what it asks for: change -N, --gpus-per-node, --mem or -p"),
    (r"BadConstraints", "no node satisfies its constraints: change --constraint, --gpus-per-node, --mem or -N"),
    (r"(QOS|Assoc|Association)\w*Max(Node|Cpu|CPU|GRES|Mem|Billing|BB|Energy|Lic\w*|Wall\w*)\w*PerJob\w*",
     "one job may not ask for that much: ask for less, or for another --qos or --account"),
    (r"(QOS|Assoc|Association)\w*MaxWall\w*", "its time limit is above what the QOS or account allows: change --time"),
    (r"QOS(Min\w+|NotAllowed)", "the QOS does not allow this request: change --qos"),
    (r"InvalidAccount|AccountNotAllowed", "the account may not be used here: change --account"),
    (r"InvalidQOS|QOSNotAllowed", "the QOS may not be used here: change --qos"),
    (r"ReservationDeleted", "its reservation is gone: submit without it, or with another --reservation"),
    (r"JobHoldMaxRequeue", "it was requeued too often: see why it fails, then 'scontrol release'"),
    (r"DeadLine", "its deadline cannot be met: change --deadline or --time"),
)  # fmt: skip
_HELP = (
    (r"JobHeldUser", "'scontrol release' lets it go"),
    (r"JobHeldAdmin", "an administrator holds it: only they can release it"),
    (r"launch.failed.requeued.held", "a node could not start it: see its prolog, then 'scontrol release'"),
    (r"PartitionDown|PartitionInactive", "its partition is closed by an administrator: wait, or change -p"),
    (r"ReqNodeNotAvail|Nodes required for job are DOWN", "a node it asked for by name is down or reserved"),
)  # fmt: skip


def never_clears(reason: str) -> bool:
    """Whether waiting is in vain."""
    return any(re.fullmatch(form, reason) for form, _ in _NEVER)


def advice(reason: str) -> str:
    """What to do about it in one phrase; empty for what passes by itself."""
    for form, text in (*_NEVER, *_HELP):
        if re.match(form, reason):
            return text
    return ""


@dataclass(frozen=True)
class JobState:
    """One job as Slurm sees it; `exit_code` and `signal` are the batch script's, None while it has none."""

    id: str
    state: State
    raw: str = ""  # Slurm's own words
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    nodes: str = ""
    restarts: int = 0
    uid: int | None = None
    by: int | None = None  # who cancelled it; only the accounting says so
    name: str = ""
    log: str = ""
    where: str = ""  # the nodes that failed or were lost
    start: float | None = None
    end: float | None = None

    @property
    def ended(self) -> bool:
        """Whether it is over for good; never true of a job that could not be asked about."""
        return self.state in _ENDED

    @property
    def stuck(self) -> bool:
        """Whether it waits for a person, not for nodes."""
        waits = self.state == "pending"
        return self.state == "launch-failed" or (waits and (bool(_HELD.search(self.reason)) or self.hopeless))

    @property
    def hopeless(self) -> bool:
        """Whether it can never start as it was asked for."""
        return self.state == "pending" and never_clears(self.reason)

    @property
    def exit(self) -> int | None:
        """The code a shell would see; None until it has ended, and when nobody knows."""
        if not self.ended or self.state in ("forgotten", "revoked"):
            return None
        if self.state != "failed":  # what the script said while Slurm ended it is only an echo of that
            return _EXITS.get(self.state, 1)
        if self.exit_code:
            return self.exit_code
        return 128 + self.signal if self.signal and self.signal != _NO_START else 1

    @property
    def meaning(self) -> str:
        """One phrase for people: what happened, and how it ended."""
        text = _MEANING[self.state]
        if self.state == "pending":
            text = "can never start" if self.hopeless else "is held" if self.stuck else text
            text += f" again (restart {self.restarts})" if self.restarts else ""
            text = f"{text}: {self.reason}" if self.reason else text
            return f"{text}: {help_}" if (help_ := advice(self.reason)) else text
        if self.state == "failed" and self.signal == _NO_START:
            return "was never started: the node could not open its log or run its script (Slurm's signal 53)"
        place = f" on {self.where}" if self.where else ""
        if self.reason == PROLOG:
            return f"was never started: the prolog failed{place}, and Slurm drained it"
        if self.state == "failed" and (self.exit_code or self.signal):
            how = f"with exit code {self.exit_code}" if self.exit_code else f"by signal {self.signal}"
            return f"{text} {how}{place}"
        if self.state == "cancelled" and self.by is not None and self.by != self.uid and self.uid is not None:
            return f"{text} by {user_of(self.by)}, who is not its owner{place}"
        return f"lost {self.where}" if self.state == "node-fail" and self.where else f"{text}{place}"


def user_of(uid: int) -> str:
    """A user's name as people know it, else the number."""
    with contextlib.suppress(KeyError, OverflowError):
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    return f"uid {uid}"


def term(words: Iterable[str], reason: str = "") -> State:
    """Our word for Slurm's: one state, and perhaps flags, of which the telling one counts."""
    said = [w.upper() for w in words]
    if reason.lower().replace(" ", "_").startswith("launch_failed_requeued_held"):
        return "launch-failed"
    for flag in ("LAUNCH_FAILED", "REVOKED", "COMPLETING", "STAGE_OUT", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"):
        if flag in said:
            return _FLAGS[flag]
    known = [_BASE[w] for w in said if w in _BASE] or [_FLAGS[w] for w in said if w in _FLAGS]
    return known[0] if known else "unknown"


def split_words(text: str) -> list[str]:
    """`CANCELLED by 1000`, `CANCELLED+`, `CANCELLED,COMPLETING` and `RUNNING` as words of Slurm's vocabulary."""
    return [w for w in re.split(r"[\s,+]+", text.strip()) if w in _BASE or w in _FLAGS] or [text.strip()]


def exit_pair(text: str) -> tuple[int | None, int | None]:
    """`exit:signal` as two numbers, None for what it does not say; 0:0 says that all was well."""
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    if not match:
        return None, None
    return int(match[1]), int(match[2]) if match[2] and int(match[2]) else None


def make(job: str, raw: str, reason: str = "", code: str = "", **more: object) -> JobState:
    """A job's state from Slurm's words, its reason and its `exit:signal`."""
    reason = "" if reason in ("None", "(null)") else reason
    state = term(split_words(raw), reason)
    exit_code, signal = exit_pair(code) if state in _ENDED else (None, None)
    by = _BY.search(raw)
    if by and "by" not in more:
        more["by"] = int(by[1])
    raised = _SIGNAL_REASON.search(reason)
    if raised and signal is None:
        signal = int(raised[1])
    return JobState(job, state, raw, reason, exit_code, signal, **more)  # type: ignore[arg-type]
