"""Which groups of nodes a network sweep measures: a cover of all links, and the same groups without known faults."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from trackwalker.sweep.network.book import Group

_BLOCKS = 4
_SEARCHED = 48  # nodes up to which the best groups are searched for; beyond, halves are as good


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


def uncovered(nodes: int, clean: Iterable[Group], faults: Faults) -> list[Group]:
    """Groups of the cover's size for the links of good nodes that no clean group has had; at first the cover itself."""
    base = cover(nodes)
    seen = _together(nodes, [*clean, *faults.given_up], faults)
    if nodes <= _SEARCHED and any(seen):
        return _filled(nodes, len(base[0]), seen, faults)
    chosen: list[Group] = []
    for group in dict.fromkeys(v for g in base for v in without_faults(g, faults, nodes)):
        mask = _mask(group)
        if any(mask & ~seen[node] for node in group):
            chosen.append(group)
            for node in group:
                seen[node] |= mask
    return chosen


def _filled(nodes: int, size: int, seen: list[int], faults: Faults) -> list[Group]:
    """Groups put together node by node, each time the one that brings the most new links."""
    good = [node for node in range(nodes) if node not in faults.nodes]
    everybody = _mask(good)
    chosen: list[Group] = []
    while any(everybody & ~seen[node] for node in good):
        first = max(good, key=lambda node: ((everybody & ~seen[node]).bit_count(), -node))
        members = {first}
        while len(members) < size:
            mask = _mask(members)
            free = [
                node
                for node in good
                if node not in members and not any(node in x and set(x) - {node} <= members for x in faults.links)
            ]
            if not free:
                break
            members.add(
                max(free, key=lambda n: ((mask & ~seen[n]).bit_count(), (everybody & ~seen[n]).bit_count(), -n))
            )
        mask = _mask(members)
        if len(members) < size or not any(mask & ~seen[node] for node in members):
            break  # what is left cannot be measured at this size
        chosen.append(group_of(members))
        for node in members:
            seen[node] |= mask
    return chosen


def _together(nodes: int, groups: Iterable[Group], faults: Faults) -> list[int]:
    """For each node a bit for every node it was with; itself, bad nodes and the far ends of bad links need no more."""
    bad = _mask(faults.nodes)
    groups = list(groups)
    seen = [bad | 1 << node for node in range(nodes)] if groups else [0] * nodes
    for group in groups:
        mask = _mask(group)
        for node in group:
            seen[node] |= mask
    for one, other in faults.links:
        seen[one] |= 1 << other
        seen[other] |= 1 << one
    return seen


def _mask(members: Iterable[int]) -> int:
    return sum(1 << node for node in members)


@dataclass(frozen=True)
class Exchange:
    """A way from a clean group to a slow one of the same size, one node at a time.

    Somewhere on it is the first slow group: the node that came in there is a bad node or the end of a bad link. Finding
    it takes one job for each halving, because all groups on the way have the yardstick of their size already.
    """

    clean: Group
    slow: Group
    links: frozenset[Group] = frozenset()  # known bad ones, which no group on the way may have
    kept: frozenset[int] = field(init=False)
    coming: Group = field(init=False)
    leaving: Group = field(init=False)

    def __post_init__(self) -> None:
        """Who stays, who comes in, who goes."""
        clean, slow = set(self.clean), set(self.slow)
        object.__setattr__(self, "kept", frozenset(clean & slow))
        ends = {node for link in self.links for node in link}
        # Ends of bad links leave first and come last, so that they do not meet.
        object.__setattr__(self, "coming", tuple(sorted(slow - clean, key=lambda node: (node in ends, node))))
        object.__setattr__(self, "leaving", tuple(sorted(clean - slow, key=lambda node: (node not in ends, node))))

    def at(self, place: int) -> Group:
        """The group after so many nodes were exchanged."""
        return group_of([*self.kept, *self.coming[:place], *self.leaving[place:]])
