"""Failure classes that the log decides by itself: each becomes a playbook of one test."""

from __future__ import annotations

from trackwalker.diagnose.playbook import Playbook, PlaybookAction, Test
from trackwalker.job.causes import about
from trackwalker.logs.findings import Finding
from trackwalker.record.status import WAITS

_AFTERMATH = ["python-exception", "peer-died", "nccl-error", "node-death", "heartbeat-false-positive", "unknown-death"]
_AFTERMATH += ["collective-hang", "silent-compile-oom", "segfault", "dataloader-hang"]
_WAITED_FOR = ["dataloader-hang", "storage-degradation", "storage-error", "checkpoint-fs-error"]
HEARSAY = "peer-died"  # a victim's line: whatever says who died, and how, knows more


def playbooks_for(findings: list[Finding], known: set[str]) -> list[Playbook]:
    """A playbook for every cause the log names that has none of its own."""
    out: dict[str, Playbook] = {}
    for finding in findings:
        if finding.cause not in known and finding.cause not in out and finding.text:
            out[finding.cause] = _playbook(finding)
    return list(out.values())


def _playbook(finding: Finding) -> Playbook:
    told = about(finding.cause)
    if told is None:
        raise ValueError(f"the log names a cause that has no file: {finding.cause}")
    blames = finding.local or told.about_host
    waits = [c for c in _WAITED_FOR if c != finding.cause] if finding.id in WAITS else []
    where = " on {hosts}" if blames and finding.hosts else ""
    caveat = f" This does not prove {finding.proves_not}." if finding.proves_not else ""
    actions = [PlaybookAction(do="next-step", why=text, risk="none", needs_approval=False) for text in finding.next]
    return Playbook(
        about=told,
        id=finding.cause,
        title=finding.cause.replace("-", " "),
        symptoms=["failed", "stall", "heartbeat", "cancelled", "unfinished-start"],
        explains=[c for c in _AFTERMATH if c not in (finding.cause, *waits)] if finding.role == "primary" else [],
        yields_to=waits,
        tests=[Test(id="log-says", role="require", accuses=blames, signature=[finding.cause])],
        summary=f"The log names the cause{where}: {finding.cause.replace('-', ' ')}.{caveat}".replace(
            "{hosts}.", "{hosts}."
        ),
        actions=actions,
    )
