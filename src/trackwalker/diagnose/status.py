"""The status of a run: how it stands or how it ended, by the rules of docs/diagnosis.md."""

from __future__ import annotations

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.symptoms import Symptoms
from trackwalker.diagnose.verdict import Status
from trackwalker.logs.facts import Quote

_CANCEL_CODES = (130, 143)
_DEATHS = 2  # tiers of findings that end a run by themselves


def status_of(case: Case, symptoms: Symptoms) -> Status:
    """First rule that matches wins; a file's age is never taken for progress."""
    log, total, all_done = case.log, case.total_steps, case.all_done
    last = int(case.timeline.steps[-1]) if case.timeline is not None and len(case.timeline) else None
    if log.summary is not None:
        code = log.summary.exit
        if code is None:
            return "completed" if all_done else "indeterminate"
        if code == 0:
            return "completed" if all_done or total is None else "completed-short"
        if all_done:
            return "soft-success"
        ended_itself = "TIMEOUT" in (log.summary.reason or "")  # the launcher's own limit sends the same signal
        # Ranks that were all told to end may have been told so because of a death that another line or log tells of.
        died = case.triage.primary is not None and case.triage.primary.tier <= _DEATHS
        told = bool(log.exits) and all(e.code == 143 for e in log.exits) and not died
        if code in _CANCEL_CODES or (told and not ended_itself):
            return "cancelled"
        return "failed"
    if all_done and not case.live:
        return "completed"
    if case.live:
        if symptoms.stall is not None:
            return "hanging"
        return "running" if last is not None else "initialising"
    if case.run is not None:
        return "unknown-death"  # our own agent would have written a summary
    return _seen_from_outside(case, symptoms, last)


def _seen_from_outside(case: Case, symptoms: Symptoms, last: int | None) -> Status:
    """A foreign log without a summary: only a recording tells running, hung and dead apart."""
    facts, failed = case.triage.index.facts, "failed" in symptoms.names
    cancel = facts.cancel if _nothing_after(case, facts.cancel) else None
    # Slurm cancels the rest of a step whose task failed: its own line on that task says which came first.
    if _nothing_after(case, facts.task_failed) and (cancel is not None or failed):
        return "failed"
    if not failed and cancel is None and _nothing_after(case, facts.finished):
        return "completed"
    if failed and (case.log.exits or symptoms.stall is None or not _alive(case)):
        return "failed"
    if cancel is not None:
        return "cancelled"  # a step that the scheduler cancelled is over, whatever its hosts still report
    if case.telemetry is None or case.end is None:
        return "indeterminate"
    if last is None:
        if "overdue" in symptoms.names and _alive(case):
            return "hanging"
        return "initialising" if "unfinished-start" in symptoms.names else "indeterminate"
    if symptoms.stall is None:
        return "running"
    alive = _alive(case)
    return "indeterminate" if alive is None else "hanging" if alive else "unknown-death"


def _nothing_after(case: Case, said: Quote | None) -> bool:
    """Whether a line of the scheduler is about the end: a batch script may go on with another step of the job."""
    steps = case.triage.index.steps
    return said is not None and not (len(steps) and int(steps.line.max()) > said.line)


def _alive(case: Case) -> bool | None:
    """Whether some host still reports training processes at the end; None where nothing tells."""
    if case.telemetry is None or case.end is None:
        return None
    reporting = "hw_gpu_user_processes" if "hw_gpu_user_processes" in case.telemetry.metrics() else "hw_gpu_power_watts"
    if reporting not in case.telemetry.metrics():
        return None
    query = f"max by (host) (last_over_time({reporting}[120s] @ {case.end:.3f}))"
    return any(v > 0 for v in case.telemetry.by_host(query, case.end).values())
