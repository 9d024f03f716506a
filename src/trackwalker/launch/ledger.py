"""The node ledger of a workspace: which hosts were in trouble in which jobs, and whom it would be wise to leave out.

What three hosts of one attempt share is nobody's; what is old weighs less; a node the scheduler lost counts. How often
a host was in trouble is told by the jobs that it ran in, with an interval, and it stands out from the others or it does
not.

Agents write down facts as jobs end (`node/stages/incidents.py`); whoever reads weighs them. Nothing is excluded
because of it: the list is a suggestion, and `submit` a warning.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trackwalker.errors import EvidenceError
from trackwalker.job.journal import Journal, read
from trackwalker.job.layout import NAME_FORM
from trackwalker.job.run import load_run
from trackwalker.node.stages.incidents import LEDGER, Incident

WINDOW_S = 7 * 86400.0
EXCLUDED = "excluded"  # the kind of an incident by which a person leaves a host out
NODE_FAIL = "node-fail"  # the kind of an incident that the scheduler tells of
HALF_LIFE_S = 3 * 86400.0  # after so long an incident weighs half: nodes are repaired
_SUSPECT_AT = 2  # independent incidents: of different jobs
_WEIGHT = 0.8  # two jobs of four days ago, or one of today and an old one
_MOST_JOBS = 1000  # the newest: whoever asks does not wait for all of a year
_EVERYWHERE = 3  # hosts of one attempt with the same trouble
# One of these is enough: a machine said it of its own hardware.
_CERTAIN_CHECKS = frozenset({"ecc", "gpus"})
_CERTAIN_CAUSES = frozenset(
    {"gpu-hardware-fault", "ecc-timeout", "silent-data-corruption", "host-kernel-fault", "rdma-link-failure", "no-gpu"}
)
_CRASHES = range(128, 256)  # a rank that ended by a signal; an ordinary exit code is the program's own doing


@dataclass(frozen=True)
class Rate:
    """In how many of its jobs a host was in trouble, the old ones counting for less, with a 95 % interval."""

    jobs: int  # in trouble
    of: int  # it ran in
    low: float
    high: float

    def words(self) -> str:
        """For people."""
        return f"in {self.jobs} of its {self.of} jobs within 7 days (95 % interval {self.low:.0%} to {self.high:.0%})"


@dataclass(frozen=True)
class Suspect:
    """A host with incidents in the window."""

    host: str
    incidents: list[Incident]
    exclude: bool
    why: str
    rate: Rate | None = None  # None where nothing of it counts

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


def suspects(
    workspace: Path, now: float | None = None, known: dict[str, dict[str, float]] | None = None
) -> list[Suspect]:
    """Hosts with incidents in the last seven days, those to leave out first.

    `known` is which jobs ran on which hosts and when, where an index of the workspace has it; else records are read.
    """
    now = time.time() if now is None else now
    recent = [incident for incident in incidents(workspace) if incident.t >= now - WINDOW_S]
    everywhere = _common(recent)
    by_host: dict[str, list[Incident]] = {}
    for incident in recent:
        if incident.key[1:] not in everywhere:
            by_host.setdefault(incident.host, []).append(incident)
    ran = (_ran(workspace, now) if known is None else known) if by_host else {}
    recorded = set(ran)  # by the jobs' records; a host that only its trouble tells of has no share to compare with
    for host, of_host in by_host.items():
        for incident in of_host:
            ran.setdefault(host, {}).setdefault(incident.job, incident.t)
    troubled = {host: _troubled(of_host) for host, of_host in by_host.items()}
    shares = {
        host: _weight(troubled.get(host, {}).values(), now) / (_weight(ran[host].values(), now) or 1.0)
        for host in recorded
    }
    found = []
    for host, of_host in by_host.items():
        usual = statistics.median([share for name, share in shares.items() if name != host] or [0.0])
        found.append(_weigh(host, of_host, now, ran[host].values(), usual))
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


def _troubled(found: Sequence[Incident]) -> dict[str, float]:
    """The jobs in which a host was in trouble, with the newest moment of each."""
    newest: dict[str, float] = {}
    for incident in found:
        if counts(incident):
            newest[incident.job] = max(newest.get(incident.job, 0.0), incident.t)
    return newest


def _ran(workspace: Path, now: float) -> dict[str, dict[str, float]]:
    """Which jobs of the window ran on which hosts, by their own records: what trouble is a share of."""
    records: list[tuple[float, Path]] = []
    for path in workspace.glob("*-*/run.json"):
        with contextlib.suppress(OSError):
            records.append((path.stat().st_mtime, path))
    ran: dict[str, dict[str, float]] = {}
    for at, path in sorted(records, reverse=True)[:_MOST_JOBS]:
        name = NAME_FORM.match(path.parent.name)
        if at < now - WINDOW_S or name is None:
            continue
        with contextlib.suppress(EvidenceError):
            record = load_run(path)
            for rank in record.ranks if record is not None else []:
                ran.setdefault(rank.host, {})[name["id"]] = at
    return ran


def _weight(moments: Iterable[float], now: float) -> float:
    """How many jobs these are, an old one counting for less."""
    return sum(math.pow(0.5, max(0.0, now - t) / HALF_LIFE_S) for t in moments)


def wilson(part: float, of: float) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson's score): honest also for none of three."""
    if of <= 0.0:
        return 0.0, 1.0
    z2, share = 1.96**2, min(part / of, 1.0)
    centre, half = share + z2 / (2 * of), 1.96 * math.sqrt(share * (1 - share) / of + z2 / (4 * of**2))
    return max(0.0, (centre - half) / (1 + z2 / of)), min(1.0, (centre + half) / (1 + z2 / of))


def _weigh(host: str, found: Sequence[Incident], now: float, ran: Collection[float], usual: float) -> Suspect:
    """One host; `ran` are the moments of its jobs, `usual` the share of them that other hosts are in trouble in."""
    sure = [incident for incident in found if certain(incident)]
    jobs = _troubled(found)
    weight = _weight(jobs.values(), now)
    low, high = wilson(weight, _weight(ran, now))
    rate = Rate(len(jobs), len(ran), low, high) if jobs else None
    if told := [incident for incident in found if incident.kind == EXCLUDED]:
        return Suspect(host, list(found), True, f"a person left it out: {told[-1].line}", rate)
    if sure:
        return Suspect(host, list(found), True, f"its hardware: {sure[-1].what} in job {sure[-1].job}", rate)
    if rate is None:
        return Suspect(host, list(found), False, "may be the program's own doing")
    if len(jobs) < _SUSPECT_AT:
        return Suspect(host, list(found), False, "one incident may be chance", rate)
    if weight < _WEIGHT:
        return Suspect(host, list(found), False, f"in trouble {rate.words()}, the last of them days ago", rate)
    if low <= usual:  # where everything fails, nobody stands out
        return Suspect(host, list(found), False, f"in trouble {rate.words()}, as often as others ({usual:.0%})", rate)
    return Suspect(host, list(found), True, f"in trouble {rate.words()}", rate)
