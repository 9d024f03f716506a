"""Bisection as it is done by hand, made as good as it can be: the reference that group testing is measured against.

All nodes, halves, and so on down to pairs; when both halves are as fast as each other, mixed halves, for the links
between them. It has the same judgement of noise, the same repeats and the same confirmation by pairs, and it too goes
on until nothing is slow any more. Groups halve on the way, so each level needs a yardstick of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trackwalker.sweep.network.book import Book, Group, Run
from trackwalker.sweep.network.design import Faults, group_of, padded, without_faults
from trackwalker.sweep.network.search import MOST_GIVEN_UP, ROUNDS, Culprits, solve

_WHY = "bisection"
_FEWEST = 4


def bisect(book: Book, nodes: int, most: int) -> Faults:
    """Name every bad node and link by bisection; needs runs until all halves, plain and mixed, are alike."""
    faults = Faults()
    if nodes < _FEWEST:  # all pairs: there is nothing to halve
        return solve(book, nodes, most)
    book.ask([Run(tuple(range(nodes)), 1, _WHY)])
    for _ in range(ROUNDS * most):
        found = _Halving(book, faults, nodes).whole()
        if found is None or found == faults:
            break
        faults = found
        if found.shared or found.count >= most or len(found.given_up) >= MOST_GIVEN_UP:
            break
    return faults


class _Halving:
    def __init__(self, book: Book, faults: Faults, nodes: int) -> None:
        self.book, self.faults, self.nodes = book, faults, nodes

    def whole(self) -> Faults | None:
        """Halves of all nodes, then mixed halves; None when nothing is slow."""
        good = [node for node in range(self.nodes) if node not in self.faults.nodes]
        first, second = _halves(good)
        plain = self._clear([first, second])
        slow = self._slow(plain, twice=True)
        if slow:
            return self._descend(slow[0])
        mixed = self._clear(_mixtures(first, second))
        size = len(plain[0])
        mixed = [padded(group, size, good, self.faults.links) for group in mixed]
        slow = self._slow([*plain, *(group for group in mixed if len(group) == size)], twice=True)
        if not slow:
            return None
        if slow[0] in plain:
            return self._descend(slow[0])
        return self._cross([n for n in slow[0] if n in first], [n for n in slow[0] if n in second], slow[0])

    def _descend(self, group: Group) -> Faults:
        """One half is slow: halve it; both are: take one; none is: the link is between them."""
        root = group
        while len(group) > 2:
            first, second = _halves(group)
            pair = self._same_size([first, second])
            slow = self._slow(pair)
            if not slow:
                slow = self._against_good(pair)
            if not slow:
                return self._cross(list(first), list(second), root)
            group = slow[0]
        return self._ends(group, root)

    def _cross(self, first: Sequence[int], second: Sequence[int], root: Group) -> Faults:
        """The link is between two parts: halve both, and try the halves with each other."""
        first, second = list(first), list(second)
        while len(first) + len(second) > 2:
            (a, b), (c, d) = _halves(first), _halves(second)
            straight, crossed = [(a, c), (b, d)], [(a, d), (b, c)]
            parts = [part for part in straight if all(part)]
            slow = self._slow_parts(parts)
            if slow is None:
                parts = [part for part in crossed if all(part)]
                slow = self._slow_parts(parts) if parts else None
            if slow is None:
                return self._give_up(root)
            first, second = list(slow[0]), list(slow[1])
        return self._ends(group_of([*first, *second]), root)

    def _slow_parts(self, parts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[Group, Group] | None:
        groups = self._same_size([group_of([*a, *b]) for a, b in parts])
        slow = self._slow(groups) or self._against_good(groups)
        for group, (a, b) in zip(groups, parts, strict=True):
            if group in slow:
                return group_of(a), group_of(b)
        return None

    def _against_good(self, groups: Sequence[Group]) -> list[Group]:
        """Two halves that are alike may both be slow: a good group of their size tells."""
        size = len(groups[0])
        clean = [g for gs in self.book.clean.values() for g in gs if len(g) > size]
        known = [g for g in self.book.clean.get(size, []) if g not in groups]
        if not known and clean:
            outside = [g for g in clean if not set(g) & {n for group in groups for n in group}] or clean
            known = [outside[0][:size]]
        for group in groups:
            self.book.clean[size] = [g for g in self.book.clean.get(size, []) if g != group]
            self.book.verdicts.pop(group, None)
        return [g for g in self._slow([*known, *groups]) if g in groups]

    def _ends(self, pair: Group, root: Group) -> Faults:
        judge = Culprits(self.book, self.faults, self.nodes)
        for node in pair:
            if found := judge.as_node(node):
                return found
        return (judge.as_pair(*pair) if len(pair) == 2 else None) or self._give_up(root)

    def _slow(self, groups: Sequence[Group], twice: bool = False) -> list[Group]:
        slow = [g for g in self.book.screen(list(dict.fromkeys(groups)), _WHY) if g not in self.faults.given_up]
        if twice and len(slow) == 1 and not self.book.is_slow(slow[0], _WHY, runs=2):
            return []
        return slow

    def _clear(self, groups: Sequence[Sequence[int]]) -> list[Group]:
        size = max(map(len, groups))
        pool = [node for node in range(self.nodes) if node not in self.faults.nodes]
        whole = [padded(group, size, pool, self.faults.links) for group in groups]
        return list(dict.fromkeys(v for group in whole for v in without_faults(group, self.faults, self.nodes)))

    def _same_size(self, groups: Sequence[Group]) -> list[Group]:
        size = max(max(map(len, groups)), 2)
        inside = {node for group in groups for node in group}
        pool = sorted(self.book.good() - inside)
        return [padded(group, size, pool, self.faults.links) for group in groups]

    def _give_up(self, group: Group) -> Faults:
        return replace(self.faults, given_up=self.faults.given_up | {group})


def _halves(nodes: Sequence[int]) -> tuple[Group, Group]:
    middle = (len(nodes) + 1) // 2
    return tuple(nodes[:middle]), tuple(nodes[middle:])


def _mixtures(first: Sequence[int], second: Sequence[int]) -> list[Group]:
    (a, b), (c, d) = _halves(first), _halves(second)
    return [group_of([*a, *c]), group_of([*b, *d]), group_of([*a, *d]), group_of([*b, *c])]
