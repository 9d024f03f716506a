"""The tools an agent reads a workspace with: each a plain function, read-only, with a small typed answer.

`trackwalker mcp` serves them and `trackwalker ask` calls them; both through `toolbox.py`, which redacts and audits.
Their docstrings are what a model reads, so they say when to use a tool and what to do next.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field

from trackwalker.agent import answers as a
from trackwalker.agent.skills.skill_pages import all_books
from trackwalker.agent.standing_now import by_small_log
from trackwalker.agent.verdicts import Detail, advice, cited, verdict_answer
from trackwalker.agent.workspace import Workspace, owned
from trackwalker.diagnose.causes.playbook import Playbook
from trackwalker.diagnose.triage import triage as triage_job
from trackwalker.diagnose.verdict import Evidence
from trackwalker.diagnose.views.asked import Asked, answer
from trackwalker.errors import EvidenceError, UsageError
from trackwalker.job.layout import Job
from trackwalker.job.run import load_run
from trackwalker.launch.job_state import standings
from trackwalker.logs.failures import findings

JobId = Annotated[str, Field(description="Job id, the beginning of one, or a job's name; never a path.")]
# Plain strings, empty when absent: the SDK would read "[3]" for an optional string as JSON.
Cursor = Annotated[str, Field(description="'next' of the answer before, for what follows.")]
MaxBytes = Annotated[int | None, Field(ge=a.LEAST, le=a.MOST, description="Bytes of the answer; 7500 if not given.")]

_MOST_FINDINGS = 6
_MOST_LOGS = 40  # of jobs that no scheduler speaks for: the newest are told by their logs
_COMMAND = re.compile(r"`?trackwalker (tsdb query|tsdb metrics|[a-z-]+)(?: (?:JOB|[0-9][\w.-]*))?(?: --?[\w-]+)*`?")
_TOOL_OF = {
    **{name: f"the tool {name}" for name in ("triage", "diagnose", "compare", "logs", "metrics", "files")},
    "changed": "the tool what_changed",
    "rank-tails": "the tool rank_tails",
    "tsdb query": "the tool query_metrics",
    "tsdb metrics": "the tool metrics",
    "perf": "the tool perf_summary",
    "jobs": "the tool list_jobs",
}
_KEPT_PROGRESS = (
    *("first_step", "last_step", "total_steps", "step_time_s", "tgs", "last_checkpoint", "steps_lost"),
    *("attempts", "remaining_s", "disagreement"),
)


def list_jobs(ws: Workspace, cursor: Cursor = "", max_bytes: MaxBytes = None) -> a.Jobs:
    """List the jobs of the workspace, newest first, with their states. Start here when no job id was given."""
    found, outside = ws.jobs()
    rows = [
        a.JobRow(
            id=job.id,
            name=a.short(job.name, 120),
            state=state,
            recorded=job.database is not None,
            yours=owned(job),
        )
        for job, state in _states(found)
    ]
    note = f"{outside} entries are links that leave the workspace" if outside else None
    return a.page(
        rows,
        cursor,
        a.bound(max_bytes),
        lambda part, following: a.Jobs(total=len(rows), jobs=list(part), next=following, left_out=note),
    )


def triage(ws: Workspace, job: JobId) -> a.TriageAnswer:
    """Say what happened to a job from its log alone, in a second: status, failure, first failing rank, progress.

    It cannot tell why a run was slow or which host was at fault; `diagnose` can, and begins with the same look. Steps
    are counted from 0, times are seconds, tgs is tokens per second and device.
    """
    found = triage_job(ws.job(job))
    roles, shape = found.roles, asdict(found.pattern)
    listed = [f for f in roles.findings if f.role != "note"]
    first = {"rank": roles.first_rank, "host": roles.first_host, "says": a.short(roles.first_says, 200)}
    progress = {k: v for k, v in asdict(found.progress).items() if k in _KEPT_PROGRESS and v not in (None, "")}

    def make(part: Sequence[findings.Finding], _: str | None) -> a.TriageAnswer:
        return a.TriageAnswer(
            notice=a.NOTICE if any(f.text for f in part) else None,
            job=found.job.id,
            status=found.status,
            summary=a.short(found.summary, 1000),
            phase=found.phase,
            findings=[_finding(f) for f in part],
            more_findings=len(listed) - len(part),
            first_failing=first if roles.first_rank is not None or roles.first_host else None,
            progress=progress,
            throughput={k: v for k, v in shape.items() if v is not None},
            advice=[a.short(_by_tools(step), 300) for step in found.next[:5]],
        )

    return a.page(listed, "", a.LIMIT, make, most=_MOST_FINDINGS)


def diagnose(
    ws: Workspace,
    job: JobId,
    question: Annotated[str, Field(description="What the person wants to know, in their words.")] = "",
    detail: Annotated[
        Detail, Field(description="brief: below 3 kB, the strongest evidence; full: below 8 kB.")
    ] = "brief",
) -> a.VerdictAnswer:
    """Find out why: causes with roles, culprits and confidence, the evidence, what was ruled out, what to do.

    The numbers are computed: report them as they are. The cause is the engine's best hypothesis: `what_changed` shows
    whether what deviates most fits it, `tests` what was asked of which hosts, `contradicts` what speaks against it.
    confidence is the share of such claims that were right; onset is UTC with its uncertainty in seconds; magnitude is
    tokens per second and device (tgs), or seconds, and a relative change. `evidence` pages through all of the evidence.
    """
    found = ws.verdict(ws.job(job))
    verdict = found.verdict if not question else answer(question, found.verdict)
    return verdict_answer(verdict, found.asked, found.damage, detail)


def compare(
    ws: Workspace,
    baseline: Annotated[str, Field(description="The job to compare with: id or the beginning of one.")],
    job: Annotated[str, Field(description="The job the verdict is about.")],
) -> a.VerdictAnswer:
    """Find out by how much a job differs from a baseline job, how sure that is, and why."""
    first, second = ws.job(baseline), ws.job(job)
    found = ws.comparison(first, second)
    changes = [c.says for c in found.changes]
    return verdict_answer(found.verdict, Asked(), found.damage, baseline=found.verdict.baseline.id, settings=changes)


def evidence(
    ws: Workspace,
    job: JobId,
    ids: Annotated[list[str] | None, Field(description="Only these, such as ['e3', 'e7'].")] = None,
    baseline: Annotated[str, Field(description="Of the comparison with this job.")] = "",
    cursor: Cursor = "",
    max_bytes: MaxBytes = None,
) -> a.EvidenceAnswer:
    """Give the evidence of a job's verdict: statement, numbers, and the query or log line that gives them back."""
    found = ws.job(job)
    if baseline:
        items: list[Evidence] = ws.comparison(ws.job(baseline), found).verdict.evidence
    else:
        items = ws.verdict(found).verdict.evidence
    if ids is not None:
        known = {item.id: item for item in items}
        unknown = [name for name in ids if name not in known]
        if unknown:
            last = items[-1].id if items else "none"
            raise UsageError(
                f"no evidence {a.short(unknown[0], 40)}: this verdict has {len(items)}, the last is {last}"
            )
        items = [known[name] for name in ids]

    def make(part: Sequence[Evidence], following: str | None) -> a.EvidenceAnswer:
        shown = [cited(item) for item in part]
        notice = a.NOTICE if any(c.quote for c in shown) else None
        return a.EvidenceAnswer(job=found.id, total=len(items), evidence=shown, next=following, notice=notice)

    return a.page(items, cursor, a.bound(max_bytes), make)


def playbook(
    ws: Workspace,
    id: Annotated[str, Field(description="A cause, such as rdma-degradation; without it, the list.")] = "",
    cursor: Cursor = "",
) -> a.PlaybookAnswer:
    """Explain a cause: how it looks, its pitfalls, how to confirm it by hand, what the engine tests, what to do."""
    books = all_books()
    if not id:
        rows = [a.Book(id=book.id, title=a.short(book.title, 120)) for book in books.values()]
        return a.page(
            rows, cursor, a.LIMIT, lambda part, following: a.PlaybookAnswer(playbooks=list(part), next=following)
        )
    if id not in books:
        raise UsageError(f"no cause and no playbook '{a.short(id, 60)}': call playbook without an id for the list")
    return _book(books[id], cursor)


def perf_summary(ws: Workspace, job: JobId) -> a.PerfAnswer:
    """Summarise a job's performance: throughput, MFU, goodput, and where the time of a step goes, where known."""
    from trackwalker.perf.analysis.report import Options, analyse  # reads traces: not for those who do not ask

    found = ws.job(job)
    report = analyse(found, Options(ops=10))
    smaller, cut = _smaller(report.model_dump(mode="json", by_alias=True, exclude_none=True))
    return a.PerfAnswer(job=found.id, report=smaller, left_out=cut)


def _by_tools(step: str) -> str:
    """Advice for one who has these tools and no shell: commands that a tool stands for are named as the tool."""
    return _COMMAND.sub(lambda match: _TOOL_OF.get(match[1], match[0]), step)


def _states(jobs: list[Job]) -> list[tuple[Job, str]]:
    """Each job with its state, as `jobs` tells it; the scheduler is asked once, a damaged record hides no other job."""
    damaged = set()
    for job in jobs:
        try:
            load_run(job.run_json)
        except EvidenceError:
            damaged.add(job.id)
    sound = [job for job in jobs if job.id not in damaged]
    told = list(zip(sound, standings(sound), strict=True))
    told[:_MOST_LOGS] = [(job, by_small_log(job, seen)) for job, seen in told[:_MOST_LOGS]]
    states = {job.id: seen.state for job, seen in told}
    return [(job, states.get(job.id, "unreadable")) for job in jobs]


def _finding(found: findings.Finding) -> a.Finding:
    return a.Finding(
        cause=found.cause,
        role=found.role,
        count=found.count,
        rank=found.rank,
        host=a.short(found.host, 120) if found.host else None,
        file=found.file,
        line=found.line,
        quote=a.quoted(found.text, 300) if found.text else None,
        why=a.short(found.why, 300) or None,
        proves_not=a.short(found.proves_not, 200) or None,
    )


def _book(book: Playbook, cursor: str) -> a.PlaybookAnswer:
    """The prose in paragraphs, so that a long one can be continued."""
    paragraphs = book.body.split("\n\n")
    tests = [
        f"{t.id} ({t.role}): {a.short(t.query or t.fact or ', '.join(t.signature or []), 160)}" for t in book.tests
    ]
    begins = a.position(cursor) == 0

    def make(part: Sequence[str], following: str | None) -> a.PlaybookAnswer:
        return a.PlaybookAnswer(
            id=book.id,
            title=a.short(book.title, 200),
            body="\n\n".join(part),
            symptoms=list(book.symptoms) if begins else [],
            tests=tests[:12] if begins else [],
            actions=[advice(action) for action in book.actions[:5]] if begins else [],
            tests_shown=f"12 of {len(tests)}" if begins and len(tests) > 12 else None,
            next=following,
        )

    return a.page(paragraphs, cursor, a.LIMIT, make)


def _smaller(document: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """A report cut to the size of an answer, and how: long lists lose their tails first, then the largest parts go."""
    longest = 0

    def measure(value: Any) -> None:
        nonlocal longest
        if isinstance(value, list):
            longest = max(longest, len(value))
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            measure(each)

    measure(document)

    def cut(value: Any, most: int) -> Any:
        if isinstance(value, dict):
            return {k: cut(v, most) for k, v in value.items()}
        if isinstance(value, list):
            return [cut(v, most) for v in value[:most]]
        if isinstance(value, float):
            return float(f"{value:.6g}")
        return a.short(value, 300) if isinstance(value, str) else value

    for most in (20, 8, 3, 1):
        smaller: dict[str, Any] = cut(document, most)
        if a.size(a.PerfAnswer(job="", report=smaller)) < a.LIMIT - 200:
            return smaller, f"lists are cut after {most}: 'trackwalker perf --json' has all" if longest > most else None
    while a.size(a.PerfAnswer(job="", report=smaller)) > a.LIMIT - 200:
        largest = max(smaller, key=lambda name: len(str(smaller[name])))
        smaller[largest] = "left out: too large for one answer; 'trackwalker perf --json' has it"
    return smaller, "lists are cut after 1, the largest parts are left out: 'trackwalker perf --json' has all"
