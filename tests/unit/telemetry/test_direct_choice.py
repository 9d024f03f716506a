"""Which databases are read from their blocks: those of many series, for there Prometheus is slow."""

from __future__ import annotations

from trackwalker.observe.tsdb import Block
from trackwalker.telemetry.store import _at_once


def block(first: int, end: int, series: int) -> Block:
    return Block(f"{first}-{end}-{series}", first, end, samples=0, series=series, chunks=0, replaces=frozenset())


def test_recorders_side_by_side_add_up() -> None:
    assert _at_once([block(0, 10, 300), block(0, 10, 200), block(5, 10, 100)]) == 600


def test_blocks_one_after_the_other_are_the_same_series() -> None:
    assert _at_once([block(0, 10, 300), block(10, 20, 310), block(20, 30, 290)]) == 310
    assert _at_once([]) == 0
