"""Failure classes that the log decides by itself: each becomes a playbook of one test."""

from __future__ import annotations

from trackwalker.diagnose.playbook import Playbook, PlaybookAction, Test
from trackwalker.logs.findings import Finding
from trackwalker.record.status import WAITS

# Whoever prints one of these alone is where the trouble sits. An exception or a full store is not its host's fault.
_ABOUT_THE_HOST = frozenset(
    {
        "ecc-timeout", "fabric-manager-down", "gpu-arch-mismatch", "gpu-driver-fault", "gpu-hardware-fault",
        "host-kernel-fault", "memlock-limit", "network-link-down", "nccl-nic-fail", "no-gpu", "node-death", "oom-host",
        "p2p-unavailable", "preflight-gpu-busy", "preflight-ipv6-rules", "preflight-timeout", "prolog-kill",
        "pull-timeout", "rdma-link-failure", "rdma-misconfigured", "segfault", "shm-too-small", "clock-skew",
        "container-pull-fail", "container-load-fail", "unkillable-step",
    }
)  # fmt: skip
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
    blames = finding.local or finding.cause in _ABOUT_THE_HOST
    waits = [c for c in _WAITED_FOR if c != finding.cause] if finding.id in WAITS else []
    where = " on {hosts}" if blames and finding.hosts else ""
    caveat = f" This does not prove {finding.proves_not}." if finding.proves_not else ""
    actions = [PlaybookAction(do="next-step", why=text, risk="none", needs_approval=False) for text in finding.next]
    return Playbook(
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
