"""Which databases are read from their blocks: those of many series, for there Prometheus is slow."""

from __future__ import annotations

import json
from pathlib import Path

from trackwalker.observe.tsdb import Block
from trackwalker.telemetry.probe import at_once, is_large


def block(first: int, end: int, series: int) -> Block:
    return Block(f"{first}-{end}-{series}", first, end, samples=0, series=series, chunks=0, replaces=frozenset())


def test_recorders_side_by_side_add_up() -> None:
    assert at_once([block(0, 10, 300), block(0, 10, 200), block(5, 10, 100)]) == 600


def test_blocks_one_after_the_other_are_the_same_series() -> None:
    assert at_once([block(0, 10, 300), block(10, 20, 310), block(20, 30, 290)]) == 310
    assert at_once([]) == 0


def test_a_database_is_large_by_what_its_blocks_say_of_themselves(tmp_path: Path) -> None:
    name = "01M1N29V80DQXP7ND3DJ3ND5J9"
    (tmp_path / name).mkdir()
    assert not is_large(tmp_path)  # a block without a description says nothing
    for series, large in ((3_000, False), (30_000, True)):
        stats = {"numSamples": 20_000_000, "numSeries": series, "numChunks": 1}
        meta = {"ulid": name, "version": 1, "minTime": 0, "maxTime": 10, "stats": stats}
        (tmp_path / name / "meta.json").write_text(json.dumps(meta))
        assert is_large(tmp_path) is large
    assert not is_large(tmp_path / "not there")
