"""Finding the bad nodes and links: screen groups that cover every link, walk from a clean group to a slow one, confirm.

A group counts as using a link when both of its ends are in it. For two nodes that is exact, so whoever is accused has
been measured in pairs: a node with two others, a link by itself and each of its ends elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from trackwalker.sweep.network_book import ACCUSE, Book, Group, Need, Run, gather
from trackwalker.sweep.network_design import Exchange, Faults, cover, group_of, padded, without_faults

SCREEN = "cover every link: is any group slower than the others of its size?"
_WALK = "between a clean group and a slow one: who brings the slowness in?"
_PAIR = "two nodes: is it the node or the link?"
_CONTROL = "two good nodes: the yardstick for pairs"
_BREADTH = "neighbours of a bad link's ends: is it this link alone or something shared?"
_ROUNDS = 8  # screens for each fault that may be there: only a search that goes in circles needs more
_FILLINGS = 3  # tries to build a clean group around the end of a link

Check = Callable[[int, Group], Faults | None]


def solve(book: Book, nodes: int, most: int) -> Faults:
    """Name every bad node and link; needs runs until nothing more is slow."""
    faults = Faults()
    try:
        for _ in range(_ROUNDS * most):
            groups = list(dict.fromkeys(v for g in cover(nodes) for v in without_faults(g, faults, nodes)))
            slow = [group for group in book.screen(groups, SCREEN) if group not in faults.given_up]
            if not slow:
                break
            worst = max(slow, key=lambda group: (_time(book, group), group))
            if len(slow) > 1 or book.is_slow(worst, SCREEN, runs=2):  # else it was one disturbed run
                faults = Culprits(book, faults, nodes).localise(worst)
            if faults.shared or faults.count >= most:
                break
        return faults
    except Need as need:
        need.so_far = faults
        raise


class Culprits:
    """Names what makes one slow group slow; the faults that are known already are left out of all groups."""

    def __init__(self, book: Book, faults: Faults, nodes: int) -> None:
        self.book, self.faults, self.nodes = book, faults, nodes

    def localise(self, slow: Group) -> Faults:
        """The faults with one more; or with the group given up, when nothing in it can be proven."""
        start = self._nearest(slow, self.book.clean.get(len(slow), []))
        found = self._walk(Exchange(start, slow), self._as_node, self.as_link) if start else None
        return found or replace(self.faults, given_up=self.faults.given_up | {slow})

    def as_node(self, node: int) -> Faults | None:
        """The node is accused when it is slow with two others that are good; slow with one of them, that link is."""
        partners = self._partners(node)
        pairs = [group_of((node, partner)) for partner in partners]
        if len(pairs) < 2:
            return None
        slow = self._slow_pairs(pairs, runs=1)
        if all(slow):
            return replace(self.faults, nodes=self.faults.nodes | {node})
        return self.as_pair(node, partners[slow.index(True)]) if any(slow) else None

    def as_pair(self, node: int, other: int) -> Faults | None:
        """The link is accused when the pair is slow, twice, and each of its ends is good elsewhere."""
        pair = group_of((node, other))
        if not self._slow_pairs([pair], runs=2)[0]:
            return None
        for end, far_end in ((node, other), (other, node)):
            if end not in self.book.good():
                partners = [p for p in self._partners(end) if p != far_end][:1]
                if not partners or self._slow_pairs([group_of((end, partners[0]))], runs=2)[0]:
                    return replace(self.faults, nodes=self.faults.nodes | {end}) if partners else None
        beside = self._beside(node, other)
        also = []
        for near in beside:
            if not self.book.is_slow(near, _BREADTH, sure=ACCUSE):
                break
            also.append(near)
        if len(also) > 1:
            return replace(self.faults, shared=(pair, *also))
        if also and not self.book.is_slow(also[0], _BREADTH, runs=2, sure=ACCUSE):
            also = []
        return replace(self.faults, links=self.faults.links | {pair, *also})

    def as_link(self, node: int, slow: Group) -> Faults | None:
        """The node is one end of a bad link within the slow group: walk there from a clean group that has the node."""
        start = self._nearest(slow, [g for g in self.book.clean.get(len(slow), []) if node in g])
        start = start or self._around(node, slow)
        if start is None:
            return None
        check: Check = lambda other, _: self.as_pair(node, other)  # noqa: E731
        return self._walk(Exchange(start, slow), check, self._as_node)

    def _walk(self, way: Exchange, quick: Check, deep: Check) -> Faults | None:
        """Halve the way to the first slow group, then ask what its newcomer is; a disturbed run leads on, not astray."""
        low, slow = 0, {len(way.coming)}
        while slow:
            high = min(slow)
            while high - low > 1:
                middle = (low + high) // 2
                if self.book.is_slow(way.at(middle), _WALK):
                    high = middle
                    slow.add(middle)
                else:
                    low = middle
            newcomer, group = way.coming[high - 1], way.at(high)
            found = quick(newcomer, group)
            if found is not None:
                return found
            if self.book.is_slow(group, _WALK, runs=2):
                return deep(newcomer, group)
            low, slow = high, {place for place in slow if place > high}
        return None

    def _as_node(self, node: int, _: Group) -> Faults | None:
        return None if node in self.book.good() else self.as_node(node)

    def _slow_pairs(self, pairs: Sequence[Group], runs: int) -> list[bool]:
        """Whether pairs are slow; the first of them bring good pairs along to be measured with."""
        controls = [] if self.book.clean.get(2) else self._controls({node for pair in pairs for node in pair})
        self.book.ask([*(Run(pair, 1, _PAIR) for pair in pairs), *(Run(pair, 1, _CONTROL) for pair in controls)])
        if controls:
            self.book.screen(controls, _CONTROL)
        judged: list[Callable[[Book], bool]] = [
            lambda book, p=pair: book.is_slow(p, _PAIR, runs=runs, sure=ACCUSE) for pair in pairs
        ]
        return gather(self.book, judged)

    def _controls(self, busy: set[int]) -> list[Group]:
        """Two pairs of neighbours that are good, near one of the nodes in question and far from it."""
        good = [node for node in self.book.good() if node not in busy]
        centre = min(busy)
        good.sort(key=lambda node: (abs(node - centre), node))
        pairs = [group_of(good[:2]), group_of(good[-2:])]
        return [pair for pair in dict.fromkeys(pairs) if len(pair) == 2]

    def _partners(self, node: int) -> list[int]:
        """Two good nodes to measure a node with: measured ones first, then its neighbour and the farthest."""
        linked = {other for link in self.faults.links if node in link for other in link}
        good = [p for p in self.book.good() if p != node and p not in linked]
        good.sort(key=lambda p: (abs(p - node), p))
        measured = [p for p in good if group_of((node, p)) in self.book.asked]
        return list(dict.fromkeys([*measured[:2], *good[:1], *good[-1:], *good[1:2]]))[:2]

    def _beside(self, node: int, other: int) -> list[Group]:
        """Two pairs of neighbours of both ends, to tell one bad link from something that many links share."""
        good = self.book.good() - {node, other}
        near = sorted(good, key=lambda n: (abs(n - node), n))[:2]
        far = [n for n in sorted(good, key=lambda n: (abs(n - other), n)) if n not in near][:2]
        # Neighbours of both at once say nothing about a boundary between them.
        if abs(node - other) <= 2 or len(near) < 2 or len(far) < 2:
            return []
        return [group_of(pair) for pair in zip(near, far, strict=True)]

    def _around(self, node: int, slow: Group) -> Group | None:
        """A clean group of the same size that has the node: nodes outside of the slow group, then a part of it."""
        good = [n for n in range(self.nodes) if n != node and n not in self.faults.nodes]
        outside, inside = [n for n in good if n not in slow], [n for n in good if n in slow]
        for at in range(_FILLINGS):
            turned = [*inside[at * len(inside) // _FILLINGS :], *inside[: at * len(inside) // _FILLINGS]]
            group = padded([node], len(slow), [*outside, *turned], self.faults.links)
            if len(group) == len(slow) and not self.book.is_slow(group, _WALK):
                return group
        return None

    @staticmethod
    def _nearest(slow: Group, clean: Sequence[Group]) -> Group | None:
        """The clean group from which the fewest nodes have to be exchanged."""
        members = set(slow)
        return min((g for g in clean if g != slow), key=lambda g: (len(members - set(g)), g), default=None)


def _time(book: Book, group: Group) -> float:
    return max(math.inf if t is None else t for t in book.times(group))
