"""A recording in parts: every node has one recorder, every part its place, and a small run is as it always was."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trackwalker.job.processes import read_stat
from trackwalker.job.shards import MANY_SCRAPE_S, NODES, SCRAPE_S, Shard, databases, node_of, recorders, shards
from trackwalker.node.agent.services import Services
from trackwalker.node.stages.order import Seat
from trackwalker.observe.ending import Ending

NAMES = [f"gpu{n:05d}" for n in range(1250)]


def test_a_run_that_one_recorder_holds_is_as_it_always_was(tmp_path: Path) -> None:
    assert shards(1) == shards(NODES) == 1
    assert recorders(["python", "-m", "observe"], NODES) == {"recorder": ["python", "-m", "observe"]}
    assert Shard().database(tmp_path) == tmp_path / "prometheus"
    assert Shard().scrape_s == SCRAPE_S
    assert Shard().has("anybody")


def test_every_node_belongs_to_one_recorder_and_none_has_too_many() -> None:
    parts = [Shard(n, shards(len(NAMES))) for n in range(shards(len(NAMES)))]
    sizes = [sum(part.has(name) for name in NAMES) for part in parts]
    assert len(parts) == 20
    assert sum(sizes) == len(NAMES)
    assert max(sizes) <= 1.5 * NODES


def test_recorders_are_spread_over_the_nodes() -> None:
    services = recorders(["observe"], 1250)
    assert services["recorder"] == ["observe", "--shard", "0/20"]
    assert services["recorder-19"] == ["observe", "--shard", "19/20"]
    places = [node_of(name, 1250) for name in services]
    assert places[0] == 0
    assert len(set(places)) == 20
    assert max(places) < 1250
    assert node_of("ray", 1250) == 0


def test_a_recorder_elsewhere_lives_as_long_as_that_nodes_agent(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    here = Services({"recorder-1": ["true"]}, tmp_path, Seat("7", 64, "gpu00064"))
    assert here._commands["recorder-1"][-2:] == ["--node", "gpu00064"]
    first = Services({"recorder": ["true"]}, tmp_path, Seat("7", 0, "gpu00000"))
    assert "--node" not in first._commands["recorder"]
    now = [0.0]
    ending = Ending(tmp_path, lambda: now[0], "gpu00064")
    for name, pid in (("state.json", 0), ("gpu00064.state.json", os.getpid())):
        stat = read_stat(os.getpid())
        state = {"agent": {"pid": pid, "start": stat.start if stat else 0}, "ranks": []}
        (tmp_path / "agent" / name).write_text(json.dumps(state))
    assert ending.reason() is None
    now[0] = 1000.0
    assert ending.reason() is None, "the first node's processes are not here, this node's are"


def test_what_a_recorder_is_told_is_what_was_meant() -> None:
    assert Shard.parse(str(Shard(3, 20))) == Shard(3, 20)
    assert Shard(3, 20).scrape_s == MANY_SCRAPE_S
    for wrong in ("20/20", "-1/2", "3", "a/b", ""):
        with pytest.raises(ValueError):  # noqa: PT011 - argparse asks for no more
            Shard.parse(wrong)


def test_the_parts_of_a_recording_are_found(tmp_path: Path) -> None:
    whole = tmp_path / "prometheus"
    assert databases(whole) == [whole]
    (whole / "wal").mkdir(parents=True)
    assert databases(whole) == [whole]
    for n in (10, 2):
        Shard(n, 11).database(tmp_path).mkdir()
    assert databases(whole) == [whole, whole / "shard-002", whole / "shard-010"]
    (whole / "wal").rmdir()
    assert databases(whole) == [whole / "shard-002", whole / "shard-010"]
