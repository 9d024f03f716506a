"""What a rank prints about others in the launcher's words is not believed: a node tells of its own end only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackwalker.logs.facts import LogFacts
from trackwalker.logs.formats import dialect as d
from trackwalker.logs.scanning.lines import LAUNCHERS

if TYPE_CHECKING:
    from trackwalker.logs.scanning.index import Hit


def drop_forged(facts: LogFacts, hits: dict[tuple[str, int | None, str], Hit]) -> None:
    """A node tells of its own exit: what a task prints about another host of the job is not believed."""
    hosts = facts.hosts
    # Stages and checks come before training: once it begins a label is the trainer's, and speaks of its own host.
    begins = [s.line for s in facts.stages if (s.name, s.what) == ("Training", "BEGIN")]
    trained = facts.steps.line[:1].tolist()
    for key, hit in list(hits.items()):
        if (
            hit.task is None
            or LAUNCHERS.match(hit.text) is None
            or hit.line <= min([*begins, *trained], default=hit.line)
        ):
            continue
        own = hit.task < len(hosts) and f" {hosts[hit.task]} |" in hit.text
        if not own or (trained and hit.line > trained[0]):
            del hits[key]

    def forged(rank: int | None, host: str) -> bool:
        mine = hosts[rank] if rank is not None and rank < len(hosts) else host
        return host in hosts and mine != host

    if max((e.rank or 0 for e in facts.exits), default=0) < len(hosts):  # else several tasks share a node
        facts.exits = [e for e in facts.exits if not forged(e.rank, e.host)]
        for key, hit in list(hits.items()):
            match = d.NODE_EXIT.search(hit.text) if "exit-word" in hit.signature.traits else None
            if match and forged(hit.rank, match[1]):
                del hits[key]
