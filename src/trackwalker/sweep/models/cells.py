"""Which model runs on how many and on which nodes in a model sweep; the same nodes for ever.

Nodes differ by more than most commits do. So each model keeps, for each node count, the nodes that it had in earlier
sweeps of the workspace.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from trackwalker.errors import UsageError
from trackwalker.launch.request.models import load_model
from trackwalker.logs.formats.nodelist import expand
from trackwalker.sweep.policy import load_policy


@dataclass(frozen=True)
class Size:
    """A model at a node count."""

    model: str
    count: int

    @property
    def name(self) -> str:
        """As tables and keys say it: llama2-70b/2N."""
        return f"{self.model}/{self.count}N"


@cache
def usual_sizes() -> Mapping[str, tuple[int, ...]]:
    """The models of a full sweep with their node counts, as policy.yml has them."""
    return load_policy().model_sizes


def parse_sizes(words: Sequence[str], env: Mapping[str, str] = os.environ) -> list[Size]:
    """What --models asks for, as NAME or NAME:N; nothing said means everything in policy.yml."""
    usual = usual_sizes()
    if not words:
        return [Size(model, count) for model, counts in usual.items() for count in counts]
    found: list[Size] = []
    for word in words:
        name, colon, number = word.partition(":")
        if colon and not (number.isascii() and number.isdigit() and int(number)):
            raise UsageError(f"--models {word}: the form is NAME or NAME:N with a number of nodes, as llama2-70b:2")
        model = load_model(name, env)
        counts = (int(number),) if colon else usual.get(model.name, (min(model.about.nodes),))
        found += [Size(model.name, count) for count in counts]
    return list(dict.fromkeys(found))


def parse_node_sets(text: str) -> list[list[str]]:
    """Sets of nodes as they were typed, with `/` between them; a node may stand in one of them, once."""
    sets = [[node for node in expand(part) if node] for part in text.split("/")]
    if not all(sets):
        raise UsageError("no nodes: give a node list, as n[1-8], or several sets of nodes, as n1/n[2-3]/n[4-7]")
    twice = [node for node, times in Counter(node for nodes in sets for node in nodes).items() if times > 1]
    if twice:
        raise UsageError(
            f"the node sets overlap: {', '.join(twice[:5])} {'are' if len(twice) > 1 else 'is'} named more than once; "
            "two jobs on one node measure each other"
        )
    return sets


def assign(
    sizes: Sequence[Size], sets: Sequence[Sequence[str]], remembered: Mapping[str, Sequence[str]]
) -> dict[Size, tuple[str, ...]]:
    """The nodes of every model: what it had before, else new ones, disjoint as far as there are enough."""
    largest = max(len(nodes) for nodes in sets)
    short = [size for size in sizes if size.count > largest]
    if short:
        need = max(size.count for size in short)
        names = ", ".join(dict.fromkeys(size.name for size in short[:6]))
        where = f"the largest set has {largest}" if len(sets) > 1 else f"{largest} are given"
        raise UsageError(
            f"too few nodes for {names}: {where}, {need} are needed; name more nodes or leave models out (--models)"
        )
    places: dict[Size, tuple[str, ...]] = {}
    given = {node for nodes in sets for node in nodes}
    for size in sizes:
        if size.name in remembered:
            nodes = tuple(remembered[size.name])
            gone = [node for node in nodes if node not in given]
            if gone:
                raise UsageError(
                    f"{size.name} has always run on {','.join(nodes)}, and {', '.join(gone)} "
                    f"{'are' if len(gone) > 1 else 'is'} not among the nodes given: name them too, or take new nodes "
                    "for it with --reassign (it is then compared with nothing before)"
                )
            places[size] = nodes
    shelves = [_Shelf(list(nodes)) for nodes in sets]
    for size in sorted((s for s in sizes if s not in places), key=lambda s: (s.count, s.name)):
        fitting = [shelf for shelf in shelves if len(shelf.nodes) >= size.count]
        shelf = min(fitting, key=lambda shelf: (len(shelf.nodes), shelf.filled))
        places[size] = shelf.take(size.count)
    return {size: places[size] for size in sizes}


class _Shelf:
    """Nodes that are given out from the left, and once more from the left when too few remain."""

    def __init__(self, nodes: list[str]) -> None:
        self.nodes, self.filled, self._at = nodes, 0, 0

    def take(self, count: int) -> tuple[str, ...]:
        if self._at + count > len(self.nodes):
            self._at = 0
        taken = tuple(self.nodes[self._at : self._at + count])
        self._at += count
        self.filled += count
        return taken
