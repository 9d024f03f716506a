"""Questions answered from a database's blocks themselves: what Prometheus would say, for a large fleet in a fraction.

Prometheus selects and decodes series by series for each question; here a metric's chunks are decoded once, all side by
side. What cannot be answered so (another function, damage, samples that are only in the log) is None: ask Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from trackwalker.telemetry.direct import promql as p
from trackwalker.telemetry.direct.evaluate import Evaluation
from trackwalker.telemetry.direct.samples import Blocks, UnsupportedError, Vector
from trackwalker.telemetry.direct.unxor import DamagedError
from trackwalker.telemetry.direct.windows import Bools
from trackwalker.telemetry.xor import Floats, Ints

Labels = dict[str, str]
_T = TypeVar("_T")


@dataclass
class Traffic:
    """What was asked, and how much was read for it."""

    queries: int = 0
    bytes: int = 0


class Direct:
    """A database of blocks, open for questions."""

    def __init__(self, folders: Iterable[Path], traffic: Traffic) -> None:
        self._blocks: Blocks | None = Blocks(folders)
        self._traffic = traffic

    def metrics(self) -> frozenset[str] | None:
        """The names of all metrics."""
        return self._blocks.metrics if self._blocks is not None else None

    def newest(self, last: float) -> float | None:
        """The time of the newest sample at a moment, as far as Prometheus looks back."""
        return self._try(lambda blocks: _newest(blocks, round(1000 * last)) / 1000.0)

    def values(self, promql: str, times: Ints) -> tuple[list[Labels], Floats, Bools] | None:
        """A question at some moments (milliseconds): labels, values[series, moment], and where there is one."""

        def ask(blocks: Blocks) -> tuple[list[Labels], Floats, Bools]:
            found = Evaluation(blocks, times).vector(p.parse(promql))
            some = np.flatnonzero(found.there.any(axis=1))
            some = some[blocks.order(found.names, found.labels[some])]
            return _labels(blocks, found, some), found.values[some], found.there[some]

        return self._try(ask)

    def raw(self, selector: str, first: int, last: int) -> list[tuple[Labels, Floats, Floats]] | None:
        """The stored samples of every matching series, from one millisecond to another."""

        def ask(blocks: Blocks) -> list[tuple[Labels, Floats, Floats]]:
            node = p.parse(selector)
            if last < first:
                return []
            if not isinstance(node, p.Selector) or node != p.Selector(node.matchers):
                raise UnsupportedError("samples of something else than series")
            return list(Evaluation(blocks, np.array([last])).samples(node, first, last))

        return self._try(ask)

    def _try(self, ask: Callable[[Blocks], _T]) -> _T | None:
        if self._blocks is None:
            return None
        try:
            found = ask(self._blocks)
        except UnsupportedError:
            return None
        except (DamagedError, OSError):
            self._blocks = None  # what is wrong with it is Prometheus' to say, and nothing here is to be trusted
            return None
        self._traffic.queries += 1
        self._traffic.bytes += self._blocks.read_bytes() if self._blocks is not None else 0
        return found


def _labels(blocks: Blocks, found: Vector, rows: Ints) -> list[Labels]:
    texts = blocks.texts
    columns = [(name, found.labels[rows, i].tolist()) for i, name in enumerate(found.names)]
    out: list[Labels] = [{} for _ in rows]
    for name, codes in columns:
        for labels, code in zip(out, codes, strict=True):
            if code:
                labels[name] = texts[code]
    return out


def _newest(blocks: Blocks, last: int) -> int:
    """Metrics with the latest chunks first: the others cannot have a newer sample."""
    ends = blocks.ends()
    newest = 0
    for name in sorted(ends, key=lambda n: (-ends[n], n)):
        if ends[name] <= newest:
            break
        at = np.array([last])
        found = Evaluation(blocks, at).vector(p.Call("timestamp", (p.Selector((p.Matcher("__name__", "=", name),)),)))
        newest = max(newest, round(1000 * float(found.values[found.there].max(initial=0.0))))
    return newest or last
