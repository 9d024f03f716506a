"""A running job as its journals tell it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import write_lines

from trackwalker.watch.detect.live import Follower, LiveWatch


def ends_of(seconds: Iterable[float], start: float = 1000.0) -> list[float]:
    return [float(t) for t in start + np.cumsum(list(seconds))]


def progress(ends: list[float], ranks: int = 2) -> list[dict[str, Any]]:
    """Each rank reports each step; the last rank a little later than the first."""
    return [
        {"t": t - 0.01 * (ranks - 1 - r), "rank": r, "host": f"b-r{r}", "phase": "train", "step": s, "loss": 2.0}
        for s, t in enumerate(ends)
        for r in range(ranks)
    ]


def test_an_empty_job_says_nothing(tmp_path: Path) -> None:
    live = LiveWatch(tmp_path)
    live.look()
    assert (live.last_step, live.step_seconds, live.phase) == (None, None, "starting")


def test_steps_end_with_their_last_rank_and_losses_may_be_nan(tmp_path: Path) -> None:
    records = progress([10.0, 11.0, 12.5], ranks=3)
    records += [
        {"t": 13.0, "rank": 0, "phase": "save", "step": 2},
        {"t": 14.0, "rank": 0, "phase": "train", "step": 3, "loss": "nan"},
    ]
    write_lines(tmp_path / "progress.jsonl", records)
    live = LiveWatch(tmp_path)
    live.look()
    assert live.steps == {0: 10.0, 1: 11.0, 2: 12.5, 3: 14.0}
    assert np.isnan(live.losses[3])
    assert live.phase == "train"


@pytest.mark.parametrize(
    "record",
    [
        {"step": "x"},
        {"step": None},
        {"step": 1},
        {"step": 1, "t": "noon"},
        {"step": 1, "t": [1]},
        {"step": 1e999, "t": 1},
    ],
)
def test_foreign_records_do_not_stop_the_watch(tmp_path: Path, record: dict[str, Any]) -> None:
    write_lines(
        tmp_path / "progress.jsonl", [{"phase": "train", **record}, *progress([10.0], ranks=1)], tail='{"v":1,"st'
    )
    live = LiveWatch(tmp_path)
    live.look()
    assert live.steps == {0: 10.0}


def test_a_torn_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    follower = Follower(path)
    assert follower.new() == []
    path.write_bytes(b'{"n":1}\n{"n"')
    assert follower.new() == [{"n": 1}]
    assert follower.new() == []
    with path.open("ab") as f:
        f.write(b':2}\n[3]\nnonsense\n{"n":4}\n')
    assert follower.new() == [{"n": 2}, {"n": 4}]
