"""Which hosts a line is about: the ones it names itself, or the one that wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trackwalker.logs.index import Hit, LogIndex

_TOLD = re.compile(
    r"(?:FATAL|WARNING): (\S+) \| \[CHECK_|NODE_LOST host=([^\s:]+)|FATAL: [\w ]+: no word from ([^\s,]+(?:, [^\s,]+)*)"
    r"|STEPD TERMINATED ON (\S+) AT|Node failure on ([\w.-]+)|\bNode ([\w.-]+) status is now: \w*Not\w*"
    r"|(?:NodeNotReady|EvictionThresholdMet|NodeHasDiskPressure)\s+node/([\w.-]+)"
)
# The kernel's own words about a disk of its machine; a store that all hosts share is told of by a client or a path.
_LOCAL_DISK = re.compile(
    r"\bnvme nvme\d+: |(?:Buffer )?I/O error,? (?:on )?dev(?:ice)? (?:nvme|sd|dm-|md)\w*|(?:XFS|EXT4-fs error)\W+(?:device )?(?:nvme|sd|dm-|md)\w*"  # noqa: E501
)


def hosts_told(text: str, known: Iterable[str] = ()) -> list[str]:
    """The hosts that a line of the launcher or the scheduler names by itself; whoever prints it may be another one."""
    match = _TOLD.search(text)
    names = re.split(r",\s*", next(filter(None, match.groups()))) if match else []
    mine = {h.partition(".")[0]: h for h in known}  # the scheduler may use a longer name than the job
    return [mine.get(n.partition(".")[0], n) for n in names]


def host_of_hit(index: LogIndex, hit: Hit) -> str | None:
    """The host that wrote a line: its task's, as tasks are what the node list counts; else its rank's."""
    facts, place = index.facts, hit.task if hit.task is not None else hit.rank
    if place is None:
        return None
    if (host := next((e.host for e in facts.exits if e.rank == place and e.host), None)) is not None:
        return host
    tasks, hosts = max(index.last_task, *index.steps.last_by_rank, -1) + 1, len(facts.hosts)
    if hosts and tasks > hosts:  # several tasks a node: Slurm fills one node after the other
        return facts.hosts[place // (tasks // hosts)] if tasks % hosts == 0 and place < tasks else None
    return facts.host_of(place)


def local_disk_hosts(index: LogIndex, hits: list[Hit]) -> tuple[str, ...]:
    """The hosts whose kernel says that a disk of theirs fails."""
    found = (host_of_hit(index, h) for h in hits if _LOCAL_DISK.search(h.text))
    return tuple(dict.fromkeys(h for h in found if h))
