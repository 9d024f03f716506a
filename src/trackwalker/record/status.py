"""The status of a run: how it stands or how it ended. One table (docs/why/diagnosis.md) for everybody who says so.

Terminal facts come first: the launcher's summary, all steps done, the scheduler's own word. Words in the log come
after them, and a recording decides only what none of these does. "The evidence ends here" is not "the run ended here".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from trackwalker.logs.facts import LogFacts, Quote
from trackwalker.logs.failures.findings import Finding
from trackwalker.logs.scanning.index import LogIndex
from trackwalker.record.accounting import Accounting

Status = Literal[
    "running",
    "hanging",
    "initialising",
    "completed",
    "completed-short",
    "soft-success",
    "failed",
    "cancelled",
    "unknown-death",
    "indeterminate",
    "not-a-job",
]

CANCELS = frozenset({130, 143})
DIED: Status = "unknown-death"
ENDED_BADLY: frozenset[Status] = frozenset({"failed", "hanging", DIED})
# Lines that tell of a wait, not of what is waited for: who knows that knows more.
WAITS = frozenset({"hung-task", "mount-silent"})
_STILL_WAITS = re.compile(r"has been waiting for .* may be stuck|Waiting for .* threads to join")
_DEATHS = 2  # tiers of findings that end a run by themselves
_OWN_ERRORS = 4  # tiers of failure classes that are errors, not a kill from outside or a silence
_CANCEL_TIER = 5


@dataclass(frozen=True)
class Recording:
    """What the metrics say about the end, where there are any."""

    alive: bool | None  # whether some host still reports training processes at the end
    overdue: bool = False  # no step, and more time than any start takes
    unfinished_start: bool = False


@dataclass(frozen=True)
class Standing:
    """Everything that decides a status."""

    index: LogIndex
    primary: Finding | None
    live: bool
    own: bool  # our agent started it, and would have written a summary
    stalled: bool
    all_done: bool
    last_step: int | None
    total_steps: int | None
    accounting: Accounting
    first_failed: bool = False  # our agent saw a rank fail
    recording: Recording | None = None


def status_of(it: Standing) -> Status:
    """First rule that matches wins; a file's age is never taken for progress."""
    if it.index.facts.summary is not None:
        return _summarised(it, it.index.facts.summary.exit, it.index.facts.summary.reason)
    if it.live:
        return "hanging" if it.stalled else "running" if it.last_step is not None else "initialising"
    if it.all_done:
        return "completed"
    if it.accounting.ended:
        return _ended(it)
    if it.own:
        # Our own agent would have written a summary, unless the scheduler gave it no time: then that says so itself.
        cancel = it.index.facts.cancel
        told = cancel is not None and nothing_after(it.index, cancel) and "NODE FAILURE" not in cancel.text
        return "cancelled" if told else "unknown-death"
    return _seen_from_outside(it)


def _summarised(it: Standing, code: int | None, reason: str) -> Status:
    if code is None:
        return "completed" if it.all_done else "indeterminate"
    if code == 0:
        return "completed" if it.all_done or it.total_steps is None else "completed-short"
    if it.all_done:
        return "soft-success"
    if it.accounting.failure_class in ("node-failure", "oom-host") or "NODE FAILURE" in reason:
        return "failed"  # the SIGTERM was the scheduler's, for a reason
    if it.accounting.state == "FAILED" and code in CANCELS:
        return "failed"  # somebody ended the launcher, not the job
    if "DUE TO " in reason or it.accounting.failure_class in ("walltime", "preempted"):
        return "cancelled"
    # Ranks that were all told to end may have been told so because of a death that another line or log tells of; and
    # the launcher's own limit sends the same signal.
    exits = it.index.facts.exits
    died = it.primary is not None and it.primary.tier <= _DEATHS
    told = bool(exits) and all(e.code == 143 for e in exits) and not died and "TIMEOUT" not in (reason or "")
    return "cancelled" if code in CANCELS or told else "failed"


def _ended(it: Standing) -> Status:
    """No summary, but the scheduler says that it is over (ST-13)."""
    said = it.accounting
    if said.state == "COMPLETED":
        return "completed" if it.total_steps is None else "completed-short"
    if said.failure_class in ("cancelled", "walltime", "preempted"):
        return "cancelled"
    if said.failure_class is None and (it.primary is None or it.primary.id == "hang"):
        return "unknown-death"
    return "failed"


def _seen_from_outside(it: Standing) -> Status:
    """A foreign log without a summary: it may name its end; else only a recording tells running from dead."""
    facts, recording = it.index.facts, it.recording
    failed = it.first_failed or names_failure(it.primary, facts)
    cancel = facts.cancel if nothing_after(it.index, facts.cancel) else None
    # Slurm cancels the rest of a step whose task failed: its own line on that task says which came first.
    if nothing_after(it.index, facts.task_failed) and (cancel is not None or failed):
        return "failed"
    if not failed and cancel is None and nothing_after(it.index, facts.finished):
        return "completed"
    alive = recording.alive if recording is not None else None
    if failed and (facts.exits or not it.stalled or not alive):
        return "failed"
    if cancel is not None or (it.primary is not None and it.primary.tier == _CANCEL_TIER):
        return "cancelled"  # a step that the scheduler cancelled is over, whatever its hosts still report
    if recording is None:
        return "hanging" if it.stalled else "indeterminate"
    if it.last_step is None:
        if recording.overdue and alive:
            return "hanging"
        return "initialising" if recording.unfinished_start else "indeterminate"
    if not it.stalled:
        return "running"
    return "indeterminate" if alive is None else "hanging" if alive else "unknown-death"


def names_failure(primary: Finding | None, facts: LogFacts) -> bool:
    """Whether the log holds the error the run died of, even where the launcher had no time for its summary."""
    if primary is None:
        return False
    harmless = primary.cause == "loss-divergence" or primary.id in WAITS or _STILL_WAITS.search(primary.text)
    if harmless and facts.summary is None and not facts.exits and facts.task_failed is None:
        return False  # a bad loss or a wait ends nothing by itself: the steps go on
    return primary.tier <= _OWN_ERRORS and primary.text != ""


def nothing_after(index: LogIndex, said: Quote | None) -> bool:
    """Whether a line of the scheduler is about the end: a batch script may go on with another step of the job."""
    steps = index.steps
    return said is not None and not (len(steps) and int(steps.line.max()) > said.line)
