"""The node ledger of a workspace: which hosts were in trouble in which jobs, and whom it would be wise to leave out.

What three hosts of one attempt share is nobody's; what is old weighs less; a node the scheduler lost counts.

Agents write down facts as jobs end (`node/incidents.py`); whoever reads weighs them. Nothing is excluded because of it:
the list is a suggestion, and `submit` a warning.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trackwalker.job.journal import Journal, read
from trackwalker.node.incidents import LEDGER, Incident

WINDOW_S = 7 * 86400.0
EXCLUDED = "excluded"  # the kind of an incident by which a person leaves a host out
NODE_FAIL = "node-fail"  # the kind of an incident that the scheduler tells of
HALF_LIFE_S = 3 * 86400.0  # after so long an incident weighs half: nodes are repaired
_SUSPECT_AT = 2  # independent incidents: of different jobs
_WEIGHT = 0.8  # two jobs of four days ago, or one of today and an old one
_EVERYWHERE = 3  # hosts of one attempt with the same trouble
# One of these is enough: a machine said it of its own hardware.
_CERTAIN_CHECKS = frozenset({"ecc", "gpus"})
_CERTAIN_CAUSES = frozenset(
    {"gpu-hardware-fault", "ecc-timeout", "silent-data-corruption", "host-kernel-fault", "rdma-link-failure", "no-gpu"}
)
_CRASHES = range(128, 256)  # a rank that ended by a signal; an ordinary exit code is the program's own doing


@dataclass(frozen=True)
class Suspect:
    """A host with incidents in the window."""

    host: str
    incidents: list[Incident]
    exclude: bool
    why: str

    @property
    def last(self) -> float:
        """When the newest one was."""
        return max(incident.t for incident in self.incidents)


def path_of(workspace: Path) -> Path:
    """Where the ledger of a workspace is."""
    return workspace / LEDGER


def incidents(workspace: Path) -> list[Incident]:
    """Everything that was written down, the oldest first; a torn or foreign line is passed over."""
    found = [Incident.of(record) for record in read(path_of(workspace)).items]
    return sorted((incident for incident in found if incident is not None), key=lambda incident: incident.t)


def note(workspace: Path, found: Iterable[Incident]) -> None:
    """Add what was learnt later, as by triage; a fact that is there already is not written twice."""
    known = {incident.key for incident in incidents(workspace)}
    new = [incident for incident in found if incident.key not in known]
    if not new:
        return
    journal = Journal(path_of(workspace))
    for incident in new:
        journal.append(incident.record())
    journal.close()


def of_end(job: str, attempt: int, state: str, hosts: Sequence[str], at: float) -> list[Incident]:
    """What the scheduler's word on a job's end says about nodes: those that it lost under the job."""
    line = "the scheduler lost the node under the job (NODE_FAIL)"
    return [Incident(at, host, job, attempt, NODE_FAIL, NODE_FAIL, line) for host in hosts if state == NODE_FAIL]


def suspects(workspace: Path, now: float | None = None) -> list[Suspect]:
    """Hosts with incidents in the last seven days, those to leave out first."""
    now = time.time() if now is None else now
    recent = [incident for incident in incidents(workspace) if incident.t >= now - WINDOW_S]
    everywhere = _common(recent)
    by_host: dict[str, list[Incident]] = {}
    for incident in recent:
        if incident.key[1:] not in everywhere:
            by_host.setdefault(incident.host, []).append(incident)
    found = [_weigh(host, of_host, now) for host, of_host in by_host.items()]
    return sorted(found, key=lambda s: (not s.exclude, -s.last, s.host))


def to_exclude(workspace: Path) -> list[Suspect]:
    """The hosts that it would be wise to leave out."""
    return [suspect for suspect in suspects(workspace) if suspect.exclude]


def certain(incident: Incident) -> bool:
    """Whether it alone is reason enough."""
    if incident.kind == "check-failed":
        return incident.what in _CERTAIN_CHECKS
    return incident.kind == "triage" and incident.what in _CERTAIN_CAUSES


def counts(incident: Incident) -> bool:
    """Whether it says something about the node: an ordinary exit code of a program does not."""
    return incident.kind != "first-failure" or (incident.exit or 0) in _CRASHES


def _common(found: Sequence[Incident]) -> set[tuple[str, int, str, str]]:
    """Facts that so many hosts of one attempt share that they are the job's or the cluster's, not a node's."""
    hosts: dict[tuple[str, int, str, str], set[str]] = {}
    for incident in found:
        if incident.kind not in (EXCLUDED, NODE_FAIL):
            hosts.setdefault(incident.key[1:], set()).add(incident.host)
    return {fact for fact, where in hosts.items() if len(where) >= _EVERYWHERE}


def _weigh(host: str, found: Sequence[Incident], now: float) -> Suspect:
    sure = [incident for incident in found if certain(incident)]
    newest: dict[str, float] = {}
    for incident in found:
        if counts(incident):
            newest[incident.job] = max(newest.get(incident.job, 0.0), incident.t)
    jobs = newest.keys()
    weight = sum(0.5 ** ((now - t) / HALF_LIFE_S) for t in newest.values())  # of a job in trouble, by its age
    if told := [incident for incident in found if incident.kind == EXCLUDED]:
        return Suspect(host, list(found), True, f"a person left it out: {told[-1].line}")
    if sure:
        return Suspect(host, list(found), True, f"its hardware: {sure[-1].what} in job {sure[-1].job}")
    if len(jobs) >= _SUSPECT_AT and weight >= _WEIGHT:
        return Suspect(host, list(found), True, f"in trouble in {len(jobs)} jobs within 7 days")
    if len(jobs) >= _SUSPECT_AT:
        return Suspect(host, list(found), False, f"in trouble in {len(jobs)} jobs, the last of them days ago")
    return Suspect(host, list(found), False, "one incident may be chance" if jobs else "may be the program's own doing")
