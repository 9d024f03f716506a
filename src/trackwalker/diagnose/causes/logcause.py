"""Failure classes that the log decides by itself: each becomes a playbook of one test."""

from __future__ import annotations

from trackwalker.diagnose.causes.playbook import Playbook, PlaybookAction, Test
from trackwalker.diagnose.causes.states import NAMED_ERROR, WAIT_TOLD, states
from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.verdict import Failure
from trackwalker.job.causes import about, cause_name
from trackwalker.logs.failures.findings import Finding
from trackwalker.logs.failures.roles import UNCLASSIFIED
from trackwalker.record.status import WAITS

_STOOD = "(most recent call first)"
_QUOTED = 160  # characters of the line
_SAID = 400


def playbooks_for(findings: list[Finding], books: list[Playbook], asked: set[str]) -> list[Playbook]:
    """A playbook for every cause the log names that none of these, as far as they are asked, is about."""
    shipped = {b.id: b.state for b in books}
    out: dict[str, Playbook] = {}
    for finding in findings:
        if finding.cause not in asked and finding.cause not in out and finding.text:
            state = shipped.get(finding.cause) or states().of_log(finding.id, finding.cause)
            mine = [f for f in findings if f.cause == finding.cause and f.text]
            spoke = [f for f in mine if not only_waits(f)]  # what was waited for, and then failed, has failed
            own = any(state == states().of_log(f.id) for f in spoke)
            acts = (state if own else NAMED_ERROR) if spoke else WAIT_TOLD
            out[finding.cause] = _playbook(finding, state if spoke else WAIT_TOLD, acts, theirs_alone(mine))
    return list(out.values())


def only_waits(finding: Finding) -> bool:
    """Whether a line tells where somebody stands and waits: who was asked has not failed."""
    return finding.id in WAITS or _STOOD in finding.text


def theirs_alone(findings: list[Finding]) -> bool:
    """Whether a cause is the own one of the hosts that its first line tells of: no other host says the same."""
    first = findings[0]
    return first.local and all(set(f.hosts) <= set(first.hosts) for f in findings if f.tier <= first.tier)


def _playbook(finding: Finding, state: str, acts_as: str, local: bool) -> Playbook:
    told = about(finding.cause)
    if told is None:
        raise ValueError(f"the log names a cause that has no file: {finding.cause}")
    blames = local or told.about_host
    where = " on {hosts}" if blames and finding.hosts else ""
    caveat = f" This does not prove {finding.proves_not}." if finding.proves_not else ""
    actions = [PlaybookAction(do="next-step", why=text, risk="none", needs_approval=False) for text in finding.next]
    return Playbook(
        about=told,
        id=finding.cause,
        title=cause_name(finding.cause),
        symptoms=["failed", "stall", "heartbeat", "cancelled", "unfinished-start"],
        state=state,
        acts_as=acts_as,
        only_if_told=True,
        tests=[Test(id="log-says", role="require", accuses=blames, signature=[finding.cause])],
        summary=_unnamed(finding)
        if finding.unnamed
        else f"The log names the cause{where}: {cause_name(finding.cause)}.{caveat}",
        actions=actions,
    )


def failure_of(triage: Triage) -> Failure | None:
    """The first failure that the log tells of, for programs: class, rank and host stand in fields of their own."""
    first = triage.primary
    if first is None or not first.text:
        return None
    known = first.rank is not None or first.host is not None
    return Failure(
        **{"class": first.kind or None},
        named=not first.unnamed and first.cause != UNCLASSIFIED,
        rank=first.rank if known else triage.roles.first_rank,
        host=first.host if known else triage.roles.first_host,
        subject=" ".join(first.subject.split())[:_QUOTED],
        says=" ".join(first.text.split())[:_SAID],
        source=f"{first.file}:{first.line}",
    )


def _unnamed(finding: Finding) -> str:
    """What is known of a failure in words that no signature has: its class, who said it first, and the words."""
    first = f"rank {finding.rank}" if finding.rank is not None else ""
    place = " / ".join(part for part in (first, finding.host or "") if part)
    text = " ".join(finding.text.split())[:_QUOTED].translate(str.maketrans("{}", "()"))  # a summary has fields there
    known = f"of the class {finding.kind}" if finding.kind else "of an unclear class"
    return f"It failed with an error that no known cause has, {known}{f', first on {place}' if place else ''}: {text}"
