"""How a job stands when its scheduler cannot say: then the job's own log may."""

from __future__ import annotations

from dataclasses import replace

from trackwalker.errors import TrackwalkerError
from trackwalker.job.layout import Job
from trackwalker.launch.job_state import Standing, standing

_LARGEST_LOG = 64 << 20
# The status that a log alone proves: state, exit code, and the phrase for people.
_ENDS = {
    "completed": ("completed", 0, "completed"),
    "completed-short": ("completed", 0, "ended before its last step"),
    "soft-success": ("completed", 0, "completed, and failed while shutting down"),
    "cancelled": ("cancelled", 143, "was cancelled"),
    "failed": ("failed", 1, "failed"),
}
# What the log of another's job may say where no scheduler can be asked: the record's word, as triage has it.
_OPEN = {"indeterminate": "does not tell how it ended: it may still run elsewhere", "hanging": "hangs, by its log"}
UNDECIDED = frozenset({"unknown", "indeterminate"})  # nobody knows how it stands


def standing_now(job: Job) -> Standing:
    """How a job stands by its scheduler; where that does not answer or has forgotten it, how the log says it ended."""
    seen = standing(job)
    if seen.state not in ("unknown", "forgotten") or job.log is None:
        return seen
    return from_log(job, seen) or seen


def by_small_log(job: Job, seen: Standing) -> Standing:
    """The same for one of many jobs: a log that takes seconds to read is not read."""
    try:
        small = job.log is not None and job.log.stat().st_size < _LARGEST_LOG
    except OSError:
        small = False
    return (from_log(job, seen) or seen) if small and seen.state in ("unknown", "forgotten") else seen


def from_log(job: Job, seen: Standing) -> Standing | None:
    """How the record has it; None where its log tells nothing that the scheduler's word lacks."""
    from trackwalker.record.read import read_record  # reading logs is heavy, and most jobs are answered before

    try:
        read = read_record(job, "not asked")
    except (TrackwalkerError, OSError):
        return None
    if read.status in _OPEN and read.run is None and seen.state == "unknown":
        return replace(seen, state=read.status, meaning=_OPEN[read.status])
    if (end := _ENDS.get(read.status)) is None:
        return None
    state, code, phrase = end
    summary = read.facts.summary
    if state == "failed" and summary is not None and summary.exit:
        code = summary.exit
    why = f"by its log; {seen.reason}" if seen.reason else "by its log"
    return replace(seen, state=state, ended=True, exit=code, meaning=phrase, reason=why, stuck=False)
