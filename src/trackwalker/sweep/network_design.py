"""Which groups of nodes a network sweep measures: a cover of all links, and the same groups without known faults."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from trackwalker.sweep.network_book import Group

_BLOCKS = 4


@dataclass(frozen=True)
class Faults:
    """What has been named so far."""

    nodes: frozenset[int] = frozenset()
    links: frozenset[Group] = frozenset()  # pairs
    shared: tuple[Group, ...] = ()  # links that are slow together: not theirs, but of what they share
    given_up: frozenset[Group] = frozenset()  # slow groups in which nothing could be named

    @property
    def count(self) -> int:
        """Nodes and links named."""
        return len(self.nodes) + len(self.links)


def group_of(members: Iterable[int]) -> Group:
    """The members as a group."""
    return tuple(sorted(set(members)))


def cover(nodes: int) -> list[Group]:
    """Groups of one size such that any two nodes are in one of them: four blocks of neighbours, two and two.

    Six groups of half of the nodes, of which two at a time run side by side. A bad node slows the three groups of its
    block; a bad link between two blocks slows one. At least one group stays clean with faults in two blocks.
    """
    if nodes < _BLOCKS:
        return [group_of(pair) for pair in combinations(range(nodes), 2)]
    edges = [round(nodes * at / _BLOCKS) for at in range(_BLOCKS + 1)]
    a, b, c, d = (tuple(range(edges[at], edges[at + 1])) for at in range(_BLOCKS))
    halves = [a + b, c + d, a + c, b + d, a + d, b + c]
    size = max(map(len, halves))
    return list(dict.fromkeys(padded(half, size, range(nodes)) for half in halves))


def padded(members: Sequence[int], size: int, pool: Iterable[int], links: Collection[Group] = ()) -> Group:
    """The members, and nodes of the pool up to a size; a known bad link is not brought in."""
    chosen = set(members)
    for node in pool:
        if len(chosen) >= size:
            break
        if node not in chosen and not any(node in link and (set(link) - {node}) <= chosen for link in links):
            chosen.add(node)
    return group_of(chosen)


def without_faults(group: Group, faults: Faults, nodes: int) -> list[Group]:
    """A group as it must be measured once faults are known: others in the place of bad nodes, and no bad link inside.

    A group with a bad link becomes two, each without one end of it: so all other links of both ends stay covered.
    """
    good = [node for node in range(nodes) if node not in faults.nodes]
    kept = [node for node in group if node not in faults.nodes]
    inside = [link for link in faults.links if set(link) <= set(kept)]
    ends = [{link[0] for link in inside}, {link[1] for link in inside}] if inside else [set[int]()]
    variants = []
    for left_out in ends:
        pool = [node for node in good if node not in left_out]
        variant = padded([node for node in kept if node not in left_out], len(group), pool, faults.links)
        if len(variant) == len(group):
            variants.append(variant)
    return variants


@dataclass(frozen=True)
class Exchange:
    """A way from a clean group to a slow one of the same size, one node at a time.

    Somewhere on it is the first slow group: the node that came in there is a bad node or the end of a bad link. Finding
    it takes one job for each halving, because all groups on the way have the yardstick of their size already.
    """

    clean: Group
    slow: Group
    kept: frozenset[int] = field(init=False)
    coming: Group = field(init=False)
    leaving: Group = field(init=False)

    def __post_init__(self) -> None:
        """Who stays, who comes in, who goes."""
        clean, slow = set(self.clean), set(self.slow)
        object.__setattr__(self, "kept", frozenset(clean & slow))
        object.__setattr__(self, "coming", group_of(slow - clean))
        object.__setattr__(self, "leaving", group_of(clean - slow))

    def at(self, place: int) -> Group:
        """The group after so many nodes were exchanged."""
        return group_of([*self.kept, *self.coming[:place], *self.leaving[place:]])
