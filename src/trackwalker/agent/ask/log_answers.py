"""Answers that need no verdict: from triage, the scheduler, the end of a log, the performance report."""

from __future__ import annotations

import json
import re

from trackwalker.agent.ask.answer_parts import Quote, Reply
from trackwalker.agent.ask.questions import Asked
from trackwalker.agent.standing_now import UNDECIDED
from trackwalker.agent.tools import list_jobs
from trackwalker.agent.workspace import Workspace
from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.triage import triage as triage_job
from trackwalker.errors import EvidenceError
from trackwalker.job.journal import open_at_last
from trackwalker.launch.job_state import standings
from trackwalker.logs.failures.findings import Finding
from trackwalker.report import words
from trackwalker.report.text import clip, one_line

_LINES, _MOST_LINES = 15, 100
_MOST_ROWS = 12
_COUNT = re.compile(r"\b(\d{1,3}) lines\b")


def jobs_here(asked: Asked, ws: Workspace) -> Reply:
    """The newest jobs with their states."""
    found = list_jobs(ws)
    rows = []
    for row in found.jobs:
        told = [*([row.state] if row.state != "unknown" else []), *([] if row.recorded else ["not recorded"])]
        rows.append(f"{row.id} ({row.name}){' ' if told else ''}{', '.join(told)}")
    more = f" and {found.total - _MOST_ROWS} older ones" if found.total > _MOST_ROWS else ""
    said = f"{found.total} jobs, newest first: {'; '.join(rows[:_MOST_ROWS])}{more}." if rows else "There are no jobs."
    return Reply(
        asked, [said], next=["ask about one of them: triage ID"] if rows else [], facts=[found.model_dump_json()]
    )


def log_end(asked: Asked, ws: Workspace) -> Reply:
    """The last lines of the log, as data."""
    job = ws.job(asked.jobs[0])
    if job.log is None:
        return Reply(asked, [f"Job {job.id} has no log yet."])
    wanted = _COUNT.search(asked.question)
    count = max(1, min(int(wanted[1]), _MOST_LINES) if wanted else _LINES)
    with open_at_last(job.log, count) as file:
        lines = file.read(1 << 18).decode("utf-8", "replace").splitlines()[-count:]
    quotes = [Quote("", clip(one_line(line), 400), "", quoted=True) for line in lines]
    said = f"The last {len(lines)} lines of job {job.id}:" if lines else f"The log of job {job.id} is empty."
    return Reply(asked, [said], quotes, facts=[*lines, str(len(lines))])


def triaged(asked: Asked, ws: Workspace) -> Reply:
    """What happened, from the log alone."""
    found = _triage(asked, ws)
    primary = found.primary
    first = f"Job {found.job.id} {found.summary}."
    return Reply(asked, [first, *_progress(found)[1:]], _lines(primary), _next(found), facts=_facts(found))


def first_failure(asked: Asked, ws: Workspace) -> Reply:
    """Who failed first, and with which words."""
    found = _triage(asked, ws)
    roles, primary = found.roles, found.primary
    who = f"rank {roles.first_rank}" if roles.first_rank is not None else ""
    host = f" on {roles.first_host}" if roles.first_host and who else roles.first_host or ""
    if who or host:
        said = [
            f"{(who + host)[0].upper()}{(who + host)[1:]} failed first" + (f": {primary.cause}." if primary else ".")
        ]
    elif primary is not None:
        said = [f"The log names no rank that failed first; what comes first in it is {primary.cause}."]
    else:
        said = [f"Nothing failed that the log shows: the job is {found.status}."]
    if primary is not None and primary.why:
        said.append(f"{primary.why[0].upper()}{primary.why[1:]}.")
    if primary is not None and primary.proves_not:
        said.append(f"That does not prove {primary.proves_not}.")
    for role, begin in (
        ("consequence", "Its consequences"),
        ("mechanism", "What ended the run"),
        ("contributing", "Also seen"),
    ):
        if others := list(dict.fromkeys(f.cause for f in found.failures if f.role == role)):
            said.append(f"{begin}: {words.names(others, 4)}.")
    return Reply(asked, said, _lines(primary), _next(found), facts=_facts(found))


def how_far(asked: Asked, ws: Workspace) -> Reply:
    """Steps, speed, the last checkpoint, what is lost, what is left."""
    found = _triage(asked, ws)
    return Reply(asked, _progress(found), _lines(found.primary)[:1], _next(found), facts=_facts(found))


def standing_of(asked: Asked, ws: Workspace) -> Reply:
    """How a job stands: the scheduler's word where it was asked, and the log's."""
    job = ws.job(asked.jobs[0])
    (seen,) = standings([job])
    if job.log is None:
        return Reply(asked, [f"Job {job.id} {seen.meaning}; it has no log yet."], facts=[seen.meaning])
    found = _triage(asked, ws)
    known = seen.state not in (*UNDECIDED, "forgotten", "gone") and seen.meaning
    said = [
        f"Job {job.id} {seen.meaning}; its log says: {found.status}."
        if known
        else f"Job {job.id} is {found.status}, by its log."
    ]
    return Reply(
        asked, [*said, *_progress(found)], _lines(found.primary), _next(found), facts=[*_facts(found), seen.meaning]
    )


def performance(asked: Asked, ws: Workspace) -> Reply:
    """How fast the run is, where the time goes, what to fix first."""
    from trackwalker.perf.analysis.report import analyse  # reads traces: other questions shall not wait for that

    job = ws.job(asked.jobs[0])
    report = analyse(job)
    if report.throughput is None and report.trace is None:
        why = report.missing[0].why if report.missing else "it completed no steps"
        raise EvidenceError(f"job {job.id} cannot be analysed: {why}")
    said = [f"Job {job.id}: {report.headline}"]
    used, goodput = report.utilisation, report.goodput
    if used is not None and used.mfu is not None and used.device:
        said.append(f"MFU is {100 * used.mfu:.1f} % of the peak of {used.device}.")
    if goodput is not None and goodput.rows:
        spent = [f"{row.what} {100 * row.share:.1f} %" for row in goodput.rows if row.share]
        said += [f"The wall time went to: {', '.join(spent[:5])}."] if spent else []
    if report.trace is not None:
        said.append(f"A traced step takes {1000 * report.trace.step_s:.4g} ms.")
    said += [f"Not known: {m.what} ({m.why})." for m in report.missing[:2]]
    quotes = [Quote("", f.evidence, f.rule) for f in report.fixes[:3] if f.evidence]
    todo = [f"{f.do} ({f.says})" for f in report.fixes[:3]] or [m.do for m in report.missing[:2]]
    return Reply(asked, said, quotes, todo, facts=[report.to_json()])


def _triage(asked: Asked, ws: Workspace) -> Triage:
    return triage_job(ws.job(asked.jobs[0]))


def _facts(found: Triage) -> list[str]:
    return [json.dumps(found.to_dict(), default=str)]


def _progress(found: Triage) -> list[str]:
    p = found.progress
    if p.last_step is None:
        return [f"Job {found.job.id} completed no step; it came to: {found.phase}."]
    of = f" of {p.total_steps:,}" if p.total_steps else ""
    share = f" ({100 * p.done:.1f} %)" if p.done is not None else ""
    said = [f"Job {found.job.id} came to step {p.last_step:,}{of}{share}; its status is {found.status}."]
    if p.step_time_s is not None:
        tgs = f", {words.number(p.tgs)} tokens/s/device" if p.tgs is not None else ""
        said.append(f"A step takes {words.seconds(p.step_time_s)}{tgs}.")
    if p.last_checkpoint is not None:
        lost = f", so {p.steps_lost:,} steps are not saved" if p.steps_lost else ""
        said.append(f"The last checkpoint is that of step {p.last_checkpoint:,}{lost}.")
    elif p.steps_lost:
        said.append(f"No checkpoint is known, so all {p.steps_lost:,} steps are lost.")
    if p.remaining_s:
        left = "would need" if found.status not in ("running", "initialising") else "needs"
        said.append(f"The rest {left} about {words.duration(p.remaining_s)}.")
    return said


def _lines(finding: Finding | None) -> list[Quote]:
    """The line of the log that the answer rests on."""
    if finding is None or not finding.text:
        return []
    place = f"{finding.file}:{finding.line}" if finding.file else ""
    return [Quote("", clip(one_line(finding.text), 300), place, quoted=True)]


def _next(found: Triage) -> list[str]:
    job = found.job.id
    own = [step.replace("JOB", job) for step in found.next[:3]]
    return own or [f"trackwalker diagnose {job}: the log shows what happened, the metrics show why"]
