"""The tools an agent reads a workspace with: each a plain function, read-only, with a small typed answer.

`trackwalker mcp` serves them and `trackwalker ask` calls them; both through `toolbox.py`, which redacts and audits.
Their docstrings are what a model reads, so they say when to use a tool and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from trackwalker.agent import answers as a
from trackwalker.agent.workspace import Workspace, owned
from trackwalker.diagnose.playbook import Playbook, PlaybookAction, load_playbooks
from trackwalker.diagnose.question import answer
from trackwalker.diagnose.triage import triage as triage_job
from trackwalker.diagnose.verdict import Action, Cause, Evidence, Verdict
from trackwalker.errors import EvidenceError, UsageError
from trackwalker.job.layout import Job
from trackwalker.job.run import load_run
from trackwalker.launch.standing import standings
from trackwalker.logs import findings

JobId = Annotated[str, Field(description="Job id, the beginning of one, or a job's name; never a path.")]
# Plain strings, empty when absent: the SDK would read "[3]" for an optional string as JSON.
Cursor = Annotated[str, Field(description="'next' of the answer before, for what follows.")]
MaxBytes = Annotated[int | None, Field(description="Size of the answer; 7500 unless asked otherwise, at most 60000.")]

_MOST_FINDINGS = 6
_MOST_CAUSES = 6
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

    Call it before `diagnose`. It cannot tell why a run was slow or which host was at fault; `diagnose` can.
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
            advice=[a.short(step, 300) for step in found.next[:5]],
        )

    return a.page(listed, "", a.LIMIT, make, most=_MOST_FINDINGS)


def diagnose(
    ws: Workspace,
    job: JobId,
    question: Annotated[str, Field(description="What the person wants to know, in their words.")] = "",
) -> a.VerdictAnswer:
    """Find out why: causes with roles, culprits and confidence, the evidence, what was ruled out, what to do.

    The verdict is computed, not guessed: report its numbers as they are. `evidence` pages through all of the
    evidence, `query_metrics` and `log_window` give more detail, `playbook` explains a cause.
    """
    found = ws.verdict(ws.job(job))
    verdict = found.verdict if not question else answer(question, found.verdict)
    return _verdict(verdict, found.damage)


def compare(
    ws: Workspace,
    baseline: Annotated[str, Field(description="The job to compare with: id or the beginning of one.")],
    job: Annotated[str, Field(description="The job the verdict is about.")],
) -> a.VerdictAnswer:
    """Find out by how much a job differs from a baseline job, how sure that is, and why."""
    first, second = ws.job(baseline), ws.job(job)
    found = ws.comparison(first, second)
    answered = _verdict(found.verdict, found.damage, baseline=found.verdict.baseline.id)
    return answered.model_copy(update={"settings": [a.short(c.says, 160) for c in found.changes[:8]]})


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
        cited = [_cited(item) for item in part]
        notice = a.NOTICE if any(c.quote for c in cited) else None
        return a.EvidenceAnswer(job=found.id, total=len(items), evidence=cited, next=following, notice=notice)

    return a.page(items, cursor, a.bound(max_bytes), make)


def playbook(
    ws: Workspace,
    id: Annotated[str, Field(description="A cause, such as rdma-degradation; without it, the list.")] = "",
    cursor: Cursor = "",
) -> a.PlaybookAnswer:
    """Explain a cause: how it looks, its pitfalls, how to confirm it by hand, what the engine tests, what to do."""
    books = _books()
    if not id:
        rows = [a.Book(id=book.id, title=a.short(book.title, 120)) for book in books.values()]
        return a.page(
            rows, cursor, a.LIMIT, lambda part, following: a.PlaybookAnswer(playbooks=list(part), next=following)
        )
    if id not in books:
        raise UsageError(f"no playbook '{a.short(id, 60)}': call playbook without an id for the list")
    return _book(books[id], cursor)


def perf_summary(ws: Workspace, job: JobId) -> a.PerfAnswer:
    """Summarise a job's performance: throughput, MFU, goodput, and where the time of a step goes, where known."""
    from trackwalker.perf.analysis import Options, analyse  # reads traces: not for those who do not ask

    found = ws.job(job)
    report = analyse(found, Options(ops=10))
    return a.PerfAnswer(job=found.id, report=_smaller(report.model_dump(mode="json", by_alias=True, exclude_none=True)))


def _states(jobs: list[Job]) -> list[tuple[Job, str]]:
    """Each job with its state; the scheduler is asked once, and one damaged record does not hide the others."""
    damaged = set()
    for job in jobs:
        try:
            load_run(job.run_json)
        except EvidenceError:
            damaged.add(job.id)
    sound = [job for job in jobs if job.id not in damaged]
    states = {job.id: seen.state for job, seen in zip(sound, standings(sound), strict=True)}
    return [(job, states.get(job.id, "unreadable")) for job in jobs]


@cache
def _books() -> dict[str, Playbook]:
    return {book.id: book for book in load_playbooks()}


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


def _verdict(verdict: Verdict, damage: list[str], baseline: str | None = None) -> a.VerdictAnswer:
    """The verdict in one answer: as much of the evidence of its causes as fits."""
    known = {item.id: item for item in verdict.evidence}
    causes = verdict.causes[:_MOST_CAUSES]
    cited = [known[e] for e in dict.fromkeys(e for c in causes for e in c.evidence) if e in known]
    bad = [f"{q.check}: {a.short(q.says, 160)}" for q in verdict.data_quality if not q.ok]

    def answer_with(most: int) -> a.VerdictAnswer:
        def make(part: Sequence[Evidence], _: str | None) -> a.VerdictAnswer:
            items = [_cited(item, most) for item in part]
            return a.VerdictAnswer(
                notice=a.NOTICE if any(i.quote for i in items) else None,
                job=verdict.job.id,
                baseline=baseline,
                status=verdict.status,
                outcome=verdict.outcome,
                summary=a.short(verdict.summary, 1200),
                causes=[_named(c, most) for c in causes[: 1 + most]],
                actions=[_advice(action, most) for action in verdict.actions[: min(most, 5)]],
                evidence=items,
                evidence_total=len(verdict.evidence),
                ruled_out=[r.cause for r in verdict.ruled_out[: 3 * most]],
                untestable={u.cause: a.short(", ".join(u.missing[:8]), 120) for u in verdict.untestable[:most]},
                data_quality=bad[:5],
                progress=verdict.progress.model_dump(exclude_none=True),
                window=verdict.window.model_dump(exclude_none=True),
                damage=[a.short(line, 200) for line in damage[:4]],
            )

        return a.page(cited, "", a.LIMIT, make, most=12, least=0)

    # With a thousand hosts at fault their names alone would fill an answer: fewer of them, never less of the summary.
    return next((shown for most in (16, 6) if a.size(shown := answer_with(most)) <= a.LIMIT), answer_with(2))


def _named(cause: Cause, most: int) -> a.Named:
    return a.Named(
        cause=cause.cause,
        role=cause.role,
        confidence=round(cause.confidence, 3),
        hosts=a.few(cause.hosts, most),
        more_hosts=max(0, len(cause.hosts) - most),
        gpus=a.few(cause.gpus, most),
        devices=a.few(cause.devices, most),
        onset=cause.onset.model_dump(exclude_none=True) if cause.onset else None,
        magnitude=cause.magnitude.model_dump(by_alias=True) if cause.magnitude else None,
        evidence=cause.evidence[: max(most, 6)],
    )


def _advice(action: Action | PlaybookAction, most: int = 16) -> a.Advice:
    hosts = a.few(action.hosts, most) if isinstance(action, Action) else []
    why = a.short(action.why, 300)
    return a.Advice(do=action.do, why=why, risk=action.risk, needs_approval=action.needs_approval, hosts=hosts)


def _cited(item: Evidence, most: int = 16) -> a.Cited:
    own = item.kind in ("metric", "progress")  # our own words around numbers; the others are the job's words
    values = {a.short(k, 80): v for k, v in list(item.values.items())[:most]}
    return a.Cited(
        id=item.id,
        kind=item.kind,
        source=a.short(item.source, 300),
        says=a.short(item.says) if own else None,
        quote=None if own else a.quoted(item.says),
        values=values or None,
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
            actions=[_advice(action) for action in book.actions[:5]] if begins else [],
            next=following,
        )

    return a.page(paragraphs, cursor, a.LIMIT, make)


def _smaller(document: dict[str, Any]) -> dict[str, Any]:
    """A report cut to the size of an answer: long lists lose their tails first, then the largest parts go."""

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
            return smaller
    while a.size(a.PerfAnswer(job="", report=smaller)) > a.LIMIT - 200:
        largest = max(smaller, key=lambda name: len(str(smaller[name])))
        smaller[largest] = "left out: too large for one answer; 'trackwalker perf --json' has it"
    return smaller
