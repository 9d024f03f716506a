"""A run that ended, put to the owner's policy: started again or not, on which nodes, and why, all in the job's events.

`consider` only decides, `carry_out` does what was decided. Neither does more than the policy says, and a dry run does
nothing but say it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from trackwalker.diagnose.triage import triage
from trackwalker.errors import TrackwalkerError, UsageError
from trackwalker.job.journal import Journal, event_record, read
from trackwalker.job.layout import Job
from trackwalker.job.processes import short_hostname
from trackwalker.job.run import RunRecord, load_run
from trackwalker.job.trust import distrust
from trackwalker.launch.attempts import Next
from trackwalker.launch.job_state import SLURM, Standing, scheduler_of
from trackwalker.launch.resume import Decision as Ruling
from trackwalker.launch.resume import Ending, classify, decide
from trackwalker.launch.slurm.client import Slurm
from trackwalker.logs.formats.nodelist import expand
from trackwalker.record.capsules import read_capsules
from trackwalker.watch.supervise.resume import Weighed, ending_of, history, resume
from trackwalker.watch.supervise.resume_policy import ResumePolicy, load_policy

STAGE = "supervise"
_GONE = ("down", "fail", "not_responding", "no_respond", "drain")

__all__ = ["Decision", "ResumePolicy", "carry_out", "consider", "load_policy"]


@dataclass(frozen=True)
class Decision:
    """What is to be done about a run that ended."""

    job: Job
    resume: bool
    why: str
    failure: str = ""  # class, as docs/how-to/resume.md names them
    cause: str = ""
    line: str = ""  # the evidence
    exclude: list[str] = field(default_factory=list)
    only: str = ""  # the nodes it has to run on; empty: the scheduler chooses
    checkpoint: int | None = None  # the step that the next attempt goes on from, as far as it is known
    attempt: int = 0  # the one that ended
    budget: int = 0
    dry_run: bool = False
    weighed: Weighed | None = None

    def to_dict(self) -> dict[str, Any]:
        """For the job's events and for --json."""
        return {
            "resume": self.resume, "dry_run": self.dry_run, "class": self.failure, "cause": self.cause,
            "why": self.why, "line": self.line, "exclude": self.exclude, "only": self.only,
            "checkpoint": self.checkpoint, "attempt": self.attempt, "budget": self.budget,
        }  # fmt: skip

    def sentence(self) -> str:
        """The same in one line."""
        what = f" ended by {self.failure}{f' ({self.cause})' if self.cause else ''}" if self.failure else ""
        if not self.resume:
            return f"job {self.job.id}: attempt {self.attempt + 1}{what}: no further attempt; {self.why}"
        where = f" without {','.join(self.exclude)}" if self.exclude else ""
        where += f" on {self.only}" if self.only else ""
        start = f" from the checkpoint of step {self.checkpoint}" if self.checkpoint is not None else ""
        would = "dry run, nothing is started: " if self.dry_run else ""
        return f"job {self.job.id}: attempt {self.attempt + 1}{what}: {would}another attempt{where}{start}; {self.why}"


def consider(job: Job, ending: Standing, policy: ResumePolicy | None = None, slurm: Slurm | None = None) -> Decision:
    """Decide about a run that has ended; nothing is changed and nothing is raised for a run that is not ours."""
    policy = policy or ResumePolicy()
    record = load_run(job.run_json)
    refused = _refused(job, record, ending, policy)
    if record is None or refused:
        return Decision(job, False, refused, dry_run=policy.dry_run)
    slurm = slurm or Slurm()
    found = _with_odd_ranks(job, _with_lost_nodes(ending_of(job, ending), ending, slurm))
    budget = min(policy.budget, record.auto_resume or policy.budget)
    earlier, left_out = history(record, ending)
    ruling = decide(found, earlier, budget, left_out, policy.rules())
    reached = last_checkpoint(job)
    ruling = _limited(ruling, policy, _without_progress(record.attempts, reached), _newest(record.attempts, reached))
    return Decision(
        job,
        ruling.resume,
        ruling.why,
        ruling.failure,
        found.cause,
        found.line,
        exclude=ruling.exclude if ruling.resume else [],
        only=_place(ruling, ending, policy, slurm) if ruling.resume else "",
        checkpoint=_newest(record.attempts, reached),
        attempt=max(len(record.attempts), ending.restarts),
        budget=budget,
        dry_run=policy.dry_run,
        weighed=Weighed(job, record, found, ruling, budget),
    )


def carry_out(decision: Decision, ending: Standing, slurm: Slurm | None = None) -> Next | None:
    """Do it, and write it down; None when nothing was to be started."""
    begun, failed = None, ""
    if decision.resume and not decision.dry_run and decision.weighed is not None:
        try:
            begun = resume(decision.weighed, ending, slurm, decision.checkpoint, decision.only)
        except TrackwalkerError as e:
            failed = str(e)
    _write_down(decision, begun, failed)
    if failed:
        raise UsageError(f"{decision.sentence()}; but it could not be started: {failed}")
    return begun


def last_checkpoint(job: Job) -> int | None:
    """The newest step that a checkpoint was committed for: by the ranks' own records, else by the log."""
    steps = [
        int(record["step"])
        for record in (read(job.progress).items if job.progress else [])
        if record.get("phase") == "checkpoint" and record.get("state") == "end"
        and record.get("saved", True) and record.get("committed", True) and isinstance(record.get("step"), int)
    ]  # fmt: skip
    if steps:
        return max(steps)
    with contextlib.suppress(TrackwalkerError):  # no log, or none that can be read
        return triage(job).progress.last_checkpoint
    return None


def _refused(job: Job, record: RunRecord | None, ending: Standing, policy: ResumePolicy) -> str:
    if record is None or scheduler_of(job) != SLURM:
        return "it was not submitted to Slurm by trackwalker"
    if job.run_json is not None and (why := distrust(job.run_json, job.run_json.parents[1])):
        return f"its record is not ours to act on: {why}"
    if record.continued_by:
        return f"it goes on as job {record.continued_by}"
    if not ending.ended:
        return f"it has not ended: it {ending.meaning or ending.state}"
    if policy.jobs == "asked" and not record.auto_resume:
        return "it was not submitted with --auto-resume, and the policy is for jobs that were"
    return ""


def _with_lost_nodes(found: Ending, ending: Standing, slurm: Slurm) -> Ending:
    """Which of the job's nodes Slurm has lost, where it says that it lost one and nobody else could say which."""
    if classify(found) != "node-fail" or found.hosts:
        return found
    with contextlib.suppress(TrackwalkerError):
        mine = set(expand(ending.nodes))
        lost = sorted(n.name for n in slurm.nodes() if n.name in mine and any(word in n.state for word in _GONE))
        return replace(found, hosts=tuple(lost))
    return found


def _with_odd_ranks(job: Job, found: Ending) -> Ending:
    """Whose rank the others waited for, where a hang's stacks tell it: what `nodes: exclude` leaves out then."""
    if classify(found) != "hang":
        return found
    capsules = read_capsules(job.dir)
    named = tuple(dict.fromkeys(one.host for one in capsules[-1].odd if one.host)) if capsules else ()
    return replace(found, hosts=named) if named else found


def _newest(attempts: Sequence[dict[str, Any]], reached: int | None) -> int | None:
    """The checkpoint that the next attempt finds: of this attempt or of one before."""
    return max((s for s in [*(a.get("checkpoint") for a in attempts), reached] if isinstance(s, int)), default=None)


def _without_progress(attempts: Sequence[dict[str, Any]], reached: int | None) -> int:
    """How many attempts in a row, the last included, committed no newer checkpoint than the one before them."""
    steps = [attempt.get("checkpoint") for attempt in attempts] + [reached]
    known = list(accumulate([-1, *(step if isinstance(step, int) else -1 for step in steps)], max))
    count = 0
    while count < len(steps) and known[-1 - count] <= known[-2 - count]:
        count += 1
    return count


def _limited(ruling: Ruling, policy: ResumePolicy, idle: int, reached: int | None) -> Ruling:
    """The limits that hold whatever the failure was."""
    if not ruling.resume:
        return ruling
    if len(ruling.exclude) > policy.most_excluded:
        nodes = ",".join(ruling.exclude)
        return Ruling(False, ruling.failure, f"{nodes} would be left out, and the policy allows {policy.most_excluded}")
    if idle >= policy.without_progress:
        at = "there is none" if reached is None else f"the newest is of step {reached}"
        return Ruling(False, ruling.failure, f"{idle} attempts in a row made no new checkpoint ({at})")
    return ruling


def _place(ruling: Ruling, ending: Standing, policy: ResumePolicy, slurm: Slurm) -> str:
    """The nodes of the next attempt, where the policy names them: the same ones, or spares for those left out."""
    nodes = expand(ending.nodes)
    if ruling.same_nodes:
        return ending.nodes
    kept = [node for node in nodes if node not in ruling.exclude]
    lacking = len(nodes) - len(kept)
    if not policy.spare or not lacking:
        return ""
    with contextlib.suppress(TrackwalkerError):
        idle = {node.name for node in slurm.nodes() if node.state.startswith("idle") and "+" not in node.state}
        free = [node for node in policy.spare if node in idle and node not in ruling.exclude and node not in kept]
        if len(free) >= lacking:
            return ",".join([*kept, *free[:lacking]])
    return ""  # no spare is free: the scheduler finds others, or waits


def _write_down(decision: Decision, begun: Next | None, failed: str) -> None:
    """One event for each decision; a watcher that starts again and decides the same does not repeat itself."""
    if decision.job.events is None or decision.weighed is None:
        return
    data = {**decision.to_dict(), "started": begun.id if begun else None, "failed": failed, "says": decision.sentence()}
    said = (event.get("data") for event in read(decision.job.events).items if event.get("kind") == STAGE)
    if begun is None and data in said:
        return
    with contextlib.suppress(OSError):
        journal = Journal(decision.job.events)
        journal.append(event_record(STAGE, short_hostname(), data, STAGE))
        journal.close()
