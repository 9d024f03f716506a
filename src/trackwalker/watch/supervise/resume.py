"""Another attempt for a run that ended badly: what triage and the scheduler say of its end, put to the policy."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from trackwalker.diagnose.triage import triage
from trackwalker.errors import NotAJobError, UsageError
from trackwalker.job.journal import read
from trackwalker.job.layout import Job
from trackwalker.job.run import RunRecord, load_run
from trackwalker.job.trust import distrust
from trackwalker.launch import ledger
from trackwalker.launch.attempts import Next, next_attempt
from trackwalker.launch.job_state import SLURM, Standing, scheduler_of
from trackwalker.launch.resume import DEFAULT_BUDGET, Decision, Ending, classify, decide
from trackwalker.launch.slurm.client import Slurm
from trackwalker.node.stages.incidents import Incident

_CHECKED = ("preflight", "health", "pull")


@dataclass(frozen=True)
class Weighed:
    """A run's end, and what is to be done about it."""

    job: Job
    record: RunRecord
    ending: Ending
    decision: Decision
    budget: int

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        decision = self.decision
        return {
            "job": self.job.id,
            "resume": decision.resume,
            "class": decision.failure,
            "cause": self.ending.cause,
            "why": decision.why,
            "exclude": decision.exclude,
            "same_nodes": decision.same_nodes,
            "hosts": list(self.ending.hosts),
            "line": self.ending.line,
            "attempts": len(self.record.attempts) + 1,
            "budget": self.budget,
        }

    def sentence(self) -> str:
        """The same in one line."""
        decision = self.decision
        what = f"{decision.failure} ({self.ending.cause})" if self.ending.cause else decision.failure
        where = f" without {','.join(decision.exclude)}" if decision.exclude else ""
        where += " on the same nodes" if decision.same_nodes else ""
        used = f"attempt {len(self.record.attempts) + 1} of {self.budget + 1}"
        answer = f"another attempt{where}" if decision.resume else "no further attempt"
        return f"job {self.job.id}: {used} ended by {what}: {answer}; {decision.why}"


def weigh(job: Job, seen: Standing, exclude: list[str] | None = None) -> Weighed:
    """Decide about a run that has ended; nothing is changed. `exclude` are further nodes to leave out."""
    record = load_run(job.run_json)
    if record is None or scheduler_of(job) != SLURM:
        raise UsageError(f"job {job.id} was not submitted to Slurm by trackwalker: 'resubmit' asks for a run again")
    if job.run_json is not None and (why := distrust(job.run_json, job.run_json.parents[1])):
        raise UsageError(f"job {job.id} is not started again: {why}")
    if record.continued_by:
        raise UsageError(f"job {job.id} goes on as job {record.continued_by}")
    if not seen.ended:
        raise UsageError(f"job {job.id} has not ended: it {seen.meaning}")
    budget = record.auto_resume or DEFAULT_BUDGET
    ending = ending_of(job, seen)
    earlier, left_out = history(record, seen)
    return Weighed(job, record, ending, decide(ending, earlier, budget, [*left_out, *(exclude or [])]), budget)


def history(record: RunRecord, seen: Standing) -> tuple[list[str], list[str]]:
    """The classes of the attempts before, and the nodes that they left out."""
    earlier = [str(attempt.get("class", "crash")) for attempt in record.attempts]
    # Slurm restarts a job by itself after a node failure or for another job; that is an attempt, too.
    earlier += ["requeued"] * max(0, seen.restarts - len(earlier))
    return earlier, [host for attempt in record.attempts for host in attempt.get("excluded", [])]


def resume(
    weighed: Weighed, seen: Standing, slurm: Slurm | None = None, checkpoint: int | None = None, only: str = ""
) -> Next:
    """Start the next attempt as it was decided, on given nodes or not, and write down why and how far it had come."""
    job, ending, decision = weighed.job, weighed.ending, weighed.decision
    number = max(len(weighed.record.attempts), seen.restarts)
    attempt: dict[str, Any] = {
        "attempt": number,
        "t": time.time(),
        "class": decision.failure,
        "cause": ending.cause,
        "hosts": list(ending.hosts),
        "line": ending.line,
        "excluded": decision.exclude,
        "checkpoint": checkpoint,
    }
    if job.dir is not None and decision.failure == "node":
        found = [
            Incident(time.time(), host, job.id, number, "triage", ending.cause, ending.line) for host in ending.hosts
        ]
        ledger.note(job.dir.parent, found)
    same = only or (seen.nodes if decision.same_nodes else "")
    return next_attempt(job, weighed.record, attempt, decision.exclude, same, slurm or Slurm())


def ending_of(job: Job, seen: Standing) -> Ending:
    """How the last attempt ended, from the scheduler, the log and the journal."""
    try:
        found = triage(job)
    except NotAJobError:
        return Ending(seen.state, "unknown-death", "prolog-kill" if seen.state == "launch-failed" else "")
    primary = found.primary
    cause = primary.cause if primary else ""
    hosts = (primary.hosts or ((primary.host,) if primary.host else ())) if primary else ()
    hosts = hosts or ((found.roles.first_host,) if found.roles.first_host else ())
    ending = Ending(seen.state, found.status, cause, hosts, primary.text if primary else "")
    return _by_nodes(job, ending) or ending


def _by_nodes(job: Job, ending: Ending) -> Ending | None:
    """What the first node wrote down about single nodes is more exact than what the log says of the end."""
    if classify(ending) in ("completed", "cancelled", "node-fail", "preempted"):
        return None
    for event in reversed(read(job.events).items if job.events else []):
        data = event.get("data") or {}
        if event.get("kind") == "attempt-begin":
            return None
        if event.get("kind") == "run-end" and data.get("missing"):
            hosts = tuple(str(host) for host in data["missing"])
            return Ending(ending.state, ending.status, "node-death", hosts, str(data.get("reason", "")))
        if event.get("kind") == "stage-end" and event.get("stage") in _CHECKED and data.get("ok") is False:
            return _by_stage(ending, data)
    return None


def _by_stage(ending: Ending, data: dict[str, Any]) -> Ending | None:
    hosts = tuple(str(host) for host in data.get("hosts", []))
    if not hosts:
        return None
    line = f"{data.get('reason')}: {', '.join(hosts)}"
    if len(hosts) >= int(data.get("nodes", 0)) > 1:
        return Ending(ending.state, ending.status, "config-error", (), f"{line} (every node)")
    cause = "preflight-timeout" if data.get("missing") else "preflight-check"
    return Ending(ending.state, ending.status, cause, hosts, line)
