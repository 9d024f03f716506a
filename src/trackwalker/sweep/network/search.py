"""Finding the bad nodes and links: screen groups that cover every link, walk from a clean group to a slow one, confirm.

A group counts as using a link when both of its ends are in it. For two nodes that is exact, so whoever is accused has
been measured in pairs: a node with two others, a link by itself and each of its ends elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from trackwalker.stats.groups import SMALLEST
from trackwalker.sweep.network.book import ACCUSE, APART, Book, Group, Need, Run
from trackwalker.sweep.network.design import Exchange, Faults, cover, group_of, padded, uncovered

SCREEN = "cover every link: is any group slower than the others of its size?"
_WALK = "between a clean group and a slow one: who brings the slowness in?"
_SHRINK = "a part of a slow group, with one end of a link in it: is the other end here?"
_PAIR = "two nodes: is it the node or the link?"
_CONTROL = "two good nodes: the yardstick for pairs"
ROUNDS = 8  # screens for each fault that may be there: only a search that goes in circles needs more
_FEW = 32  # nodes
_STARTS = 3  # clean groups from which a walk to one slow group may begin
MOST_GIVEN_UP = 3  # slow groups in which nobody can be named: more of them are no use to anybody

Check = Callable[[int, Group], Faults | None]


def solve(book: Book, nodes: int, most: int) -> Faults:
    """Name every bad node and link; needs runs until each link of good nodes was in a clean group."""
    faults = Faults()
    size = len(cover(nodes)[0])
    try:
        for _ in range(ROUNDS * most):
            slow = [g for g, seen in book.verdicts.items() if seen[0] and len(g) == size and _open(g, faults)]
            if not slow:
                groups = uncovered(nodes, [g for gs in book.clean.values() for g in gs], faults)
                if not groups or not book.screen(groups, SCREEN):
                    break
                continue
            worst = max(slow, key=lambda group: (_time(book, group), group))
            # One slow group may be one disturbed run; two alike are not, and from few nodes the way back is short.
            alike = sum(abs(_time(book, group) - _time(book, worst)) < SMALLEST for group in slow)
            if alike > 1 or nodes < _FEW or book.is_slow(worst, SCREEN, runs=2):
                faults = Culprits(book, faults, nodes).localise(worst)
            if faults.shared or faults.count >= most or len(faults.given_up) >= MOST_GIVEN_UP:
                break
        return faults
    except Need as need:
        need.so_far = faults
        raise


def _open(group: Group, faults: Faults) -> bool:
    """Whether nothing that is known explains why the group is slow."""
    members = set(group)
    return (
        group not in faults.given_up and not members & faults.nodes and not any(members >= set(x) for x in faults.links)
    )


class Culprits:
    """Names what makes one slow group slow; the faults that are known already are left out of all groups."""

    def __init__(self, book: Book, faults: Faults, nodes: int) -> None:
        self.book, self.faults, self.nodes = book, faults, nodes
        self.runs = 1  # of each group on a way

    def localise(self, slow: Group) -> Faults:
        """The faults with one more; or with the group given up, when nothing in it can be proven."""
        found = self._from_clean(slow)
        if found is None:  # led astray by a disturbed run, or by one in the slow group itself
            if not self.book.is_slow(slow, SCREEN, runs=3):
                return self.faults
            self.runs = 2
            found = self._from_clean(slow)
        return found or replace(self.faults, given_up=self.faults.given_up | {slow})

    def _from_clean(self, slow: Group) -> Faults | None:
        for _ in range(_STARTS):
            start = self._nearest(slow, self.book.clean.get(len(slow), []))
            if start is None:
                return None
            way = Exchange(start, slow, self.faults.links)
            found = self._walk(way, lambda node, _: self.as_node(node), self.as_link)
            if found is not None or start in self.book.clean[len(slow)]:
                return found  # else the way began in a group that turned out to have a fault itself
        return None

    def as_node(self, node: int) -> Faults | None:
        """The node is accused when it is slow with two others; slow with one of them only, that link may be."""
        partners = self._partners(node)
        if len(partners) < 2 or not self._slow_pair(node, partners[0]):
            return None
        if self._slow_pair(node, partners[1]) and self._alike(node, *partners):
            return replace(self.faults, nodes=self.faults.nodes | {node})
        slow = [partner for partner in partners if self._slow_pair(node, partner)]
        return self.as_pair(node, slow[0]) if slow else None

    def _alike(self, node: int, one: int, other: int) -> bool:
        """Whether a node is as slow with one as with the other; else the faster pair must show it once more."""
        times = {partner: _time(self.book, group_of((node, partner))) for partner in (one, other)}
        if abs(times[one] - times[other]) <= APART * self.book.sigma():
            return True
        return self._slow_pair(node, min(times, key=lambda partner: times[partner]), runs=2)

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
        if self._slow_pair(hub, near) and self._slow_pair(hub, near, runs=2):
            return replace(self.faults, nodes=self.faults.nodes | {hub})
        if self._slow_pair(second, near):
            # Links named before are most likely of the same kind.
            shared = dict.fromkeys([*sorted(self.faults.links), *sorted(pairs), group_of((second, near))])
            return replace(self.faults, links=frozenset(), shared=tuple(shared))
        if not self._slow_pair(second, hub, runs=2):
            return replace(self.faults, links=self.faults.links | {group_of((first, hub))})
        return replace(self.faults, links=self.faults.links | pairs)

    def as_link(self, node: int, slow: Group) -> Faults | None:
        """The node is one end of a bad link within the slow group: walk there from a clean group that has the node."""
        start = self._nearest(slow, [g for g in self.book.clean.get(len(slow), []) if node in g])
        start = start or self._around(node, slow)
        found = None
        if start is not None:
            way = Exchange(start, slow, self.faults.links)
            found = self._walk(way, lambda other, _: self.as_pair(node, other))
        if found is not None or not self.book.is_slow(slow, _WALK, runs=2):
            return found
        return self._shrink(node, slow)  # another fault lay on the way

    def _walk(self, way: Exchange, *checks: Check) -> Faults | None:
        """Halve the way to the first slow group, then ask what its newcomer is; who is cleared is walked past."""
        low, slow = 0, {len(way.coming)}
        while slow:
            high = min(slow)
            while high - low > 1:
                middle = (low + high) // 2
                if self.book.is_slow(way.at(middle), _WALK, runs=self.runs):
                    high = middle
                    slow.add(middle)
                else:
                    low = middle
            if self.book.is_slow(way.at(low), _WALK):  # a faster group since has shown that this one is not clean
                return None
            newcomer, group = way.coming[high - 1], way.at(high)
            for check in checks:
                found = check(newcomer, group)
                if found is not None:
                    return found
            if self.book.is_slow(group, _WALK, runs=2):
                return None
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
        """A pair of good neighbours."""
        good = [node for node in self.book.good() if node not in busy]
        centre = min(busy)
        good.sort(key=lambda node: (abs(node - centre), node))
        return [group_of(good[:2])] if len(good) > 1 else []

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
        """A clean group of the same size that has the node and as few of the slow group as possible."""
        good = [n for n in range(self.nodes) if n != node and n not in self.faults.nodes]
        good.sort(key=lambda n: (n in slow, n))
        group = padded([node], len(slow), good, self.faults.links)
        return group if len(group) == len(slow) and not self.book.is_slow(group, _WALK) else None

    def _shrink(self, node: int, slow: Group) -> Faults | None:
        """The other end among the rest of a slow group, which is clean without the node: halve it with the node added.

        Sizes shrink, so each needs a yardstick; it lies in the clean rest. Twice the jobs of a walk, but no other fault
        can come in between.
        """
        rest = [n for n in slow if n != node]
        while len(rest) > 1:
            half, other = rest[: len(rest) // 2], rest[len(rest) // 2 :]
            group = group_of([node, *half])
            if not self.book.clean.get(len(group)):
                self.book.screen([group_of((other if len(other) >= len(group) else rest)[: len(group)])], _SHRINK)
            rest = half if self.book.is_slow(group, _SHRINK, runs=self.runs) else other
        return self.as_pair(node, rest[0])

    @staticmethod
    def _nearest(slow: Group, clean: Sequence[Group]) -> Group | None:
        """The clean group from which the fewest nodes have to be exchanged."""
        members = set(slow)
        return min((g for g in clean if g != slow), key=lambda g: (len(members - set(g)), g), default=None)


def _time(book: Book, group: Group) -> float:
    return max(math.inf if t is None else t for t in book.times(group))
