"""Which hosts a line is about: the ones it names itself, or the one that wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trackwalker.logs.scanning.index import Hit, LogIndex

_TOLD = re.compile(
    r"(?:FATAL|WARNING): (\S+) \| \[CHECK_|NODE_LOST host=([^\s:]+)|FATAL: [\w ]+: no word from ([^\s,]+(?:, [^\s,]+)*)"
    r"|STEPD TERMINATED ON (\S+) AT|Node failure on ([\w.-]+)|\bNode ([\w.-]+) status is now: \w*Not\w*"
    r"|^srun: error: ([\w.-]+): tasks? [\d,-]+: (?:Segmentation fault|Out Of Memory|Bus error|Illegal|Abort)"
    r"|(?:NodeNotReady|EvictionThresholdMet|NodeHasDiskPressure)\s+node/([\w.-]+)|^([\w.-]+)\s+NotReady\b"
)
# The kernel's own words about a disk of its machine; a store that all hosts share is told of by a client or a path.
_LOCAL_DISK = re.compile(
    r"\bnvme nvme\d+: |(?:Buffer )?I/O error,? (?:on )?dev(?:ice)? (?:nvme|sd|dm-|md)\w*|(?:XFS|EXT4-fs error)\W+(?:device )?(?:nvme|sd|dm-|md)\w*"  # noqa: E501
)

# Every client's kernel says this of a server that is away; where one host says it alone, the way is that host's.
_MOUNT = re.compile(r"\bkernel: .*\bnfs: server \S+ not responding|\bkernel: Lustre\w*: .*(?:was lost|timed out)")

# Slurm's words on the host that would not take a task: what its daemon says, and what srun hears from there.
_REFUSED = re.compile(r"^slurmd\[([\w.-]+)\]: |Task launch for \S+ failed on node ([\w.-]+?):? ")

# A framework's word that it has no GPU to use; the driver's own words are another matter.
_NO_BACKEND = re.compile(r"(?i)falling back to cpu|unable to initialize backend|unknown backend")
# A shared library that the image brings along; the driver's own come with the GPU, and lack where it is not handed in.
_OF_THE_IMAGE = re.compile(r"\blib(?!cuda\.so|nvidia-|nvcuvid)[\w.+-]*\.so\b")

_FEW_ABSENT = 0.25  # of the ranks


def hosts_told(text: str, known: Iterable[str] = ()) -> list[str]:
    """The hosts that a line of the launcher or the scheduler names by itself; whoever prints it may be another one."""
    match = _TOLD.search(text)
    names = re.split(r",\s*", next(filter(None, match.groups()))) if match else []
    mine = {h.partition(".")[0]: h for h in known}  # the scheduler may use a longer name than the job
    return [mine.get(n.partition(".")[0], n) for n in names]


def host_of_hit(index: LogIndex, hit: Hit) -> str | None:
    """The host that wrote a line: its task's, as tasks are what the node list counts; else its rank's.

    By its name, where the log tells that of an address.
    """
    host = _host_of_hit(index, hit)
    # The job's own names need none; a container's may be another beside them.
    return index.places.names.get(host, host) if host and host not in index.facts.hosts else host


def _host_of_hit(index: LogIndex, hit: Hit) -> str | None:
    facts, place = index.facts, hit.task if hit.task is not None else hit.rank
    if place is None:
        return hit.host or None
    if (host := next((e.host for e in facts.exits if e.rank == place and e.host), None)) is not None:
        return host
    tasks, hosts = index.tasks, len(facts.hosts)
    if hosts and tasks > hosts:  # several tasks a node: Slurm fills one node after the other
        if hit.rank in (place, None) and place in index.rank_hosts:  # a line that names both is no guess
            return index.rank_hosts[place]
        return facts.hosts[place // (tasks // hosts)] if tasks % hosts == 0 and place < tasks else None
    return facts.host_of(place) or index.rank_hosts.get(place) or hit.host or None


def local_disk_hosts(index: LogIndex, hits: list[Hit]) -> tuple[str, ...]:
    """The hosts whose kernel says that a disk of theirs fails, or the one that alone lost a mount."""
    found = (host_of_hit(index, h) for h in hits if _LOCAL_DISK.search(h.text))
    if own := tuple(dict.fromkeys(h for h in found if h)):
        return own
    lost = {host_of_hit(index, h) for h in hits}
    alone = len(lost) == 1 and None not in lost and len(index.facts.hosts) > 2
    return tuple(h for h in lost if h) if alone and any(_MOUNT.search(h.text) for h in hits) else ()


def absent_hosts(index: LogIndex, hits: list[Hit], spoke: list[Hit]) -> tuple[str, ...]:
    """The few whom all others wait for: whoever came says so, and they say nothing at all."""
    world = set(range(len(index.facts.hosts)))
    absent = world - {h.rank for h in spoke}
    if not absent or len(absent) > _FEW_ABSENT * len(world) or not world - absent <= {h.rank for h in hits}:
        return ()
    return tuple(h for r in sorted(absent) if (h := index.facts.host_of(r)))


def never_joined(index: LogIndex, hits: list[Hit], spoke: list[Hit]) -> str:
    """Who says nothing while at least as many others say that they wait: its name, or nothing."""
    waiting = {h.rank for h in hits if h.rank is not None}
    heard = waiting | {h.rank for h in spoke if h.rank is not None}
    if len(waiting) < 2:
        return ""
    hosts = len(index.facts.hosts) or max(waiting) + 1
    each = 1  # a launcher counts one rank a host, PyTorch one a GPU: then the numbers go beyond the hosts
    while hosts * each <= max(heard):
        each *= 2
    silent, word = set(range(hosts * each)) - heard, "rank"
    if each > 1 and len(silent) > len(waiting):  # one GPU of a host speaks for all of them
        silent, word = set(range(hosts)) - {r // each for r in heard}, "host number"
    if len(silent) > len(waiting):
        return ""
    return f"{word} {', '.join(map(str, sorted(silent)[:8]))}" if silent else ""


def waited_for(hits: list[Hit], spoke: list[Hit]) -> bool:
    """Whether a few ranks failed and most others tell only that they waited for somebody or lost them."""
    own = {h.rank for h in hits}
    others = {h.rank for h in spoke if "victim" in h.signature.traits} - own
    return None not in own and 2 * len(own) <= len(others)


def refused_at(index: LogIndex, hits: list[Hit]) -> tuple[str, ...]:
    """The few hosts at which a credential was refused: their clocks are off. Where most refuse, it is the sender's."""
    found = (m for h in hits for text in (h.text, *h.more) if (m := _REFUSED.search(text)))
    mine = {h.partition(".")[0]: h for h in index.facts.hosts}
    hosts = tuple(dict.fromkeys(mine.get(n.partition(".")[0], n) for m in found for n in m.groups() if n))
    return hosts if len(hosts) == 1 or len(hosts) <= _FEW_ABSENT * len(mine) else ()


def unloaded(blind: list[Hit], libraries: list[Hit]) -> bool:
    """Whether ranks see no GPU only because a library of the image did not load there: their plugin needs it."""
    missed = {h.rank for h in libraries if _OF_THE_IMAGE.search(h.text)}
    return all(_NO_BACKEND.search(h.text) is not None and h.rank in missed for h in blind)
