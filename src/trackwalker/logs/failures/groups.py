"""All lines of one failure class together, and their order in time."""

from __future__ import annotations

from dataclasses import dataclass

from trackwalker.logs.failures.reactions import launchers_end, reacts
from trackwalker.logs.failures.signatures import Condition, Trait
from trackwalker.logs.scanning.index import Hit, LogIndex

SLOWS = 7  # the tier of what slows a run and does not end it


@dataclass
class Group:
    """All hits of one signature."""

    hits: list[Hit]
    tier: int
    cause: str
    why: str = ""
    was: str = ""  # the symptom that it tells of, where that is no cause
    hosts: tuple[str, ...] = ()  # where it happened, when its lines do not say so
    local: bool = False  # it concerns a disk of the host that says so

    @property
    def first(self) -> Hit:
        """The earliest line."""
        return self.hits[0]

    def has(self, trait: Trait) -> bool:
        """Whether its signature has a trait."""
        return trait in self.first.signature.traits

    def become(self, condition: Condition, why: str) -> None:
        """Take over what its signature says of a condition that holds."""
        if (new := self.first.signature.becomes.get(condition)) is not None:
            self.cause, self.why = new.cause, why
            self.tier = self.tier if new.tier is None else new.tier

    @property
    def id(self) -> str:
        """The signature's name."""
        return self.first.signature.id


def groups_of(index: LogIndex) -> list[Group]:
    """The classes a log holds, each with its lines in order."""
    found: dict[str, list[Hit]] = {}
    for hit in sorted(index.hits, key=lambda h: when(h, index)):
        found.setdefault(hit.signature.id, []).append(hit)
    groups = [Group(hits, hits[0].signature.order, hits[0].signature.cause) for hits in found.values()]
    for group in groups:
        # A crash that follows another error is how the process ended, not why.
        if group.first.signature.first_only and any(
            o.tier <= 3 and o is not group and not o.first.signature.first_only and _of_the_same(o, group)
            and when(o.first, index) < when(group.first, index) for o in groups
        ):  # fmt: skip
            group.tier = 4
    return groups


def whose(hit: Hit) -> int | str | None:
    """Who wrote a line: a rank, or where none is told a host."""
    return hit.rank if hit.rank is not None else hit.host or None


def _of_the_same(other: Group, crash: Group) -> bool:
    """Whether what came before may have befallen who crashed: what others say who lost it has not."""
    if not other.has("victim"):
        return True
    mine, theirs = ({whose(h) for h in group.hits} for group in (crash, other))
    return None in mine | theirs or not mine.isdisjoint(theirs)


def having(groups: list[Group], *traits: Trait) -> list[Group]:
    """The classes that have one of these traits."""
    return [g for g in groups if any(g.has(t) for t in traits)]


def only(groups: list[Group], trait: Trait) -> Group | None:
    """The class with a trait that one signature has."""
    return next(iter(having(groups, trait)), None)


def when(hit: Hit, index: LogIndex) -> tuple[float, int]:
    """Order in time where every hit tells it, in the file otherwise (srun interleaves: neighbours may be swapped)."""
    place = hit.line - index.earlier.get(hit.file, 0)
    if len(index.files) > 1 and index.timed:
        ahead = 0.0 if hit.rank is None else index.clocks_off.get(hit.rank, 0.0)
        return ((hit.clock or 0.0) - ahead, place)
    return (0.0, place)


def waits_for(group: Group, own: Hit) -> bool:
    """Whether several ranks say that they wait or lost somebody, whatever at, and who says what failed is not one."""
    ranks = {h.rank for h in group.hits if reacts(h.text) and not launchers_end(h.text)}
    return own.rank is not None and len(ranks) == len(group.hits) > 1 and not ranks & {None, own.rank}
