"""Finding the bad nodes and links: screen groups that cover every link, walk from a clean group to a slow one, confirm.

A group counts as using a link when both of its ends are in it. For two nodes that is exact, so whoever is accused has
been measured in pairs: a node with two others, a link by itself and each of its ends elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from trackwalker.sweep.network_book import ACCUSE, Book, Group, Need, Run
from trackwalker.sweep.network_design import Exchange, Faults, cover, group_of, padded, without_faults

SCREEN = "cover every link: is any group slower than the others of its size?"
_WALK = "between a clean group and a slow one: who brings the slowness in?"
_PAIR = "two nodes: is it the node or the link?"
_CONTROL = "two good nodes: the yardstick for pairs"
_ROUNDS = 8  # screens for each fault that may be there: only a search that goes in circles needs more
_STARTS = 3  # clean groups from which a walk to one slow group may begin
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
            if len(slow) > 2 or book.is_slow(worst, SCREEN, runs=2):  # else it was one disturbed run
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
        found = None
        for _ in range(_STARTS):
            start = self._nearest(slow, self.book.clean.get(len(slow), []))
            if start is None:
                break
            found = self._walk(Exchange(start, slow), lambda node, _: self.as_node(node), self.as_link)
            if found is not None or start in self.book.clean[len(slow)]:
                break  # else the way began in a group that turned out to have a fault itself
        return found or replace(self.faults, given_up=self.faults.given_up | {slow})

    def as_node(self, node: int) -> Faults | None:
        """The node is accused when it is slow with two others; slow with one of them only, that link may be."""
        partners = self._partners(node)
        if len(partners) < 2 or not self._slow_pair(node, partners[0]):
            return None
        if self._slow_pair(node, partners[1]):
            return replace(self.faults, nodes=self.faults.nodes | {node})
        return self.as_pair(node, partners[0])

    def as_pair(self, node: int, other: int) -> Faults | None:
        """The link is accused when the pair is slow, twice, and each end is good in another pair."""
        if not self._slow_pair(node, other, runs=2):
            return None
        pair = group_of((node, other))
        beside, also = self._beside(node, other), self._beside(other, node)
        if not self._good_in_pairs(node) and self._slow_pair(node, also):
            return self._several(other, node, also)
        if self._slow_pair(other, beside):
            return self._several(node, other, beside)
        return replace(self.faults, links=self.faults.links | {pair})

    def _several(self, first: int, hub: int, second: int) -> Faults | None:
        """A node is slow with two neighbours: by itself, by two links, or by what many links share."""
        pairs = {group_of((first, hub)), group_of((second, hub))}
        near = self._beside(hub, first, second)
        if self._slow_pair(hub, near):
            return replace(self.faults, nodes=self.faults.nodes | {hub})
        if self._slow_pair(second, near):
            return replace(self.faults, shared=(*sorted(pairs), group_of((second, near))))
        if not self._slow_pair(*sorted((second, hub)), runs=2):
            return replace(self.faults, links=self.faults.links | {group_of((first, hub))})
        return replace(self.faults, links=self.faults.links | pairs)

    def as_link(self, node: int, slow: Group) -> Faults | None:
        """The node is one end of a bad link within the slow group: walk there from a clean group that has the node."""
        start = self._nearest(slow, [g for g in self.book.clean.get(len(slow), []) if node in g])
        start = start or self._around(node, slow)
        if start is None:
            return None
        return self._walk(
            Exchange(start, slow), lambda other, _: self.as_pair(node, other), lambda other, _: self.as_node(other)
        )

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
            if self.book.is_slow(way.at(low), _WALK):  # a faster group since has shown that this one is not clean
                return None
            newcomer, group = way.coming[high - 1], way.at(high)
            found = quick(newcomer, group)
            if found is not None:
                return found
            if self.book.is_slow(group, _WALK, runs=2):
                return deep(newcomer, group)
            low, slow = high, {place for place in slow if place > high}
        return None

    def _slow_pair(self, node: int, other: int, runs: int = 1) -> bool:
        """Whether two nodes are slow together; the first pair brings good pairs along to be measured with."""
        pair = group_of((node, other))
        controls = [] if self.book.clean.get(2) else self._controls({node, other})
        self.book.ask([Run(pair, 1, _PAIR), *(Run(control, 1, _CONTROL) for control in controls)])
        if controls:
            self.book.screen(controls, _CONTROL)
        return self.book.is_slow(pair, _PAIR, runs=runs, sure=ACCUSE)

    def _good_in_pairs(self, node: int) -> bool:
        return any(node in pair for pair in self.book.clean.get(2, []))

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
        good.sort(key=lambda p: (abs(p - node) + (0.5 if p < node else 0.0), p))
        measured = [p for p in good if group_of((node, p)) in self.book.asked]
        return list(dict.fromkeys([*measured[:2], *good[:1], *good[-1:], *good[1:2]]))[:2]

    def _beside(self, node: int, *but: int) -> int:
        """A good neighbour of a node in the node list, the next one before the previous one.

        Walks bring nodes in by the order of the list, so the first bad one of a block has its like behind it.
        """
        good = (self.book.good() or set(range(self.nodes))) - {node, *but}
        return min(good, key=lambda n: (abs(n - node) + (0.5 if n < node else 0.0), n))

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
