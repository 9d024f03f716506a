"""The TensorBoard bridge: every step once, at its own time, across files, restarts and damage; silence stays silent."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from tb_writer import EventWriter, event, record, simple

from trackwalker.node.collectors import tensorboard
from trackwalker.node.collectors.tensorboard import TensorboardCollector
from trackwalker.node.exporter import backlog
from trackwalker.node.exporter.backlog import OLDEST_S, Backlog
from trackwalker.node.exporter.exposition import render

T0 = 1_000_000.0


class World:
    """A directory of event files, a clock, and the agents that read it one after the other."""

    def __init__(self, root: Path) -> None:
        self.now = T0
        self.board, self._state = root / "board", root / "agent" / "tensorboard.json"
        self.writer = EventWriter(self.board)
        self.writer.raw(record(event(0, T0)))
        self.stored: dict[tuple[str, ...], dict[int, float]] = {}  # series -> milliseconds -> value, as a database
        self.again = 0
        self.start()

    def start(self, elsewhere: Callable[[], frozenset[str]] = frozenset) -> None:
        self.backlog = Backlog(lambda: self.now)
        self._cursor = 0
        labels = {"host": "n-r0", "rank": "0"}
        self.bridge = TensorboardCollector(
            self.board, labels, self.backlog, self._state, T0, elsewhere, lambda: self.now
        )

    def poll(self, times: int = 1, scrape: bool = True) -> None:
        for _ in range(times):
            self.text = render(self.bridge.collect())
            self.now += 1
            if scrape:
                self.scrape()

    def scrape(self) -> None:
        found, self._cursor = self.backlog.since(self._cursor)
        self.backlog.confirm(self._cursor)
        for family in found:
            for labels, value, at in family.samples:
                assert at is not None
                series = self.stored.setdefault((family.name, *labels.values()), {})
                stamp = round(at * 1000)
                self.again += stamp in series
                if not series or stamp > max(series):  # all that a database without an out-of-order window takes
                    series[stamp] = value

    def values(self, name: str, *labels: str) -> list[float]:
        return list(self.stored.get((name, "n-r0", "0", *labels), {}).values())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(tensorboard, "_CLOCKS_S", math.inf)  # the files are new, the story's clock is not
    return World(tmp_path)


def test_every_step_with_the_time_of_its_first_scalar(world: World) -> None:
    world.writer.raw(record(event(0, T0 + 1, simple("learning/loss", 3.0))))
    world.writer.raw(record(event(0, T0 + 1.002, simple("learning/grad norm", 9.0))))
    world.writer.raw(record(event(1, T0 + 1.5, simple("learning/loss", math.nan))))
    world.poll(2)
    assert world.stored[("tb_learning_loss", "n-r0", "0")].keys() == {1_000_001_000, 1_000_001_500}
    assert world.stored[("tb_learning_grad_norm", "n-r0", "0")] == {1_000_001_000: 9.0}
    assert world.values("tb_step") == [0, 1]
    assert math.isnan(world.values("tb_learning_loss")[1])
    assert 'train_nonfinite_total{host="n-r0",rank="0",tag="learning/loss"} 1' in world.text
    assert 'train_nonfinite_total{host="n-r0",rank="0",tag="learning/grad norm"} 0' in world.text


def test_two_tags_of_one_name_stay_apart_also_for_the_next_agent(world: World) -> None:
    for step in range(2):
        for tag, value in (("a/b", 1.0), ("a_b", 2.0), ("step", 3.0)):
            world.writer.raw(record(event(step, T0 + step, simple(tag, value))))
        world.poll(2)
    world.start()
    world.writer.raw(record(event(2, T0 + 2, simple("a_b", 2.5))))
    world.poll(2)
    assert world.values("tb_a_b") == [1.0, 1.0]
    assert world.values("tb_scalar", "a_b") == [2.0, 2.0, 2.5]
    assert world.values("tb_scalar", "step") == [3.0, 3.0]
    assert world.values("tb_step") == [0, 1, 2]


@pytest.mark.parametrize("late_by", [0, 120])  # writers write out at once, or every two minutes
def test_agents_that_die_at_any_moment_lose_and_double_nothing(world: World, late_by: int) -> None:
    pending = []
    for second in range(400):
        pending.append((second, T0 + second))
        if second % max(late_by, 1) == 0 or second == 399:
            for step, at in pending:
                world.writer.step(step, at, loss=float(step))
            pending.clear()
        world.poll(scrape=second % 7 != 0)
        if second % 130 == 60:
            world.start()
    world.poll(3)
    assert world.values("tb_loss") == [float(s) for s in range(400)]
    assert world.values("tb_step") == [float(s) for s in range(400)]
    assert world.again > 0, "a new agent goes back a little"


def test_counts_survive_a_restart_without_counting_twice(world: World) -> None:
    for second in range(400):
        world.writer.step(second, T0 + second, loss=math.nan if second % 100 == 0 else 1.0)
        world.poll()
        if second % 160 == 150:
            world.start()
    world.poll(2)
    assert 'tag="loss"} 4\n' in world.text


def test_a_new_attempt_is_followed_and_an_old_job_is_not(world: World) -> None:
    old = EventWriter(world.board, "events.out.tfevents.0.box")
    old.step(500, T0 - 50, loss=1.0)
    for step in range(3):
        world.writer.step(step, T0 + step, loss=1.0)
    world.poll(2)
    second = EventWriter(world.board, "events.out.tfevents.2.box")
    for step in range(2, 5):  # from its checkpoint on
        second.step(step, T0 + 10 + step, loss=2.0)
    world.poll(2)
    assert world.values("tb_step") == [0, 1, 2, 2, 3, 4]


def test_an_idle_trainer_makes_no_samples(world: World) -> None:
    world.writer.step(0, T0, loss=1.0)
    world.poll(2)
    for _ in range(6):
        world.now += 3600
        world.poll(3)
    assert world.values("tb_loss") == [1.0]
    assert world.again == 0


def test_what_the_trainer_reports_itself_is_left_to_it(world: World) -> None:
    known: set[str] = set()
    world.start(lambda: frozenset(known))
    world.writer.step(0, T0, learning__loss=math.nan, learning__param_norm=2.0)
    world.poll()
    known |= {"tb_step", "tb_learning_loss"}  # its record came after we had read the file
    world.poll(2)
    assert world.stored.keys() == {("tb_learning_param_norm", "n-r0", "0")}
    assert "learning/loss" not in world.text, "counted there, not twice"


def test_steps_too_old_for_the_database_are_counted(world: World) -> None:
    world.writer.step(0, T0, loss=1.0, norm=1.0)
    world.now = T0 + OLDEST_S + 100
    world.writer.step(1, world.now - 5, loss=1.0, norm=1.0)
    world.poll(2)
    assert world.values("tb_loss") == [1.0]
    assert 'tb_bridge_late_steps_total{host="n-r0"} 1' in world.text


def test_nothing_is_read_that_there_is_no_room_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MOST", 600)
    count = 500
    world.writer.raw(b"".join(record(event(s, T0 + s / 100, simple("loss", s))) for s in range(count)))
    world.now = T0 + count / 100
    world.poll(30, scrape=False)
    assert world.backlog.dropped == 0
    world.poll(30)
    assert world.values("tb_loss") == [float(s) for s in range(count)]


def test_the_end_takes_in_the_rest_at_once(world: World) -> None:
    world.writer.step(0, T0, loss=1.0)
    damaged = bytearray(record(event(1, T0 + 1, simple("loss", 1.0))))
    damaged[15] ^= 1
    world.writer.raw(bytes(damaged))
    world.writer.step(2, T0 + 2, loss=1.0)
    world.bridge.finish()
    world.poll()
    assert world.values("tb_step") == [0, 2]
    assert 'tb_bridge_corrupt_records_total{host="n-r0"} 1' in world.text


@pytest.mark.parametrize("content", ["", "{", "[]", '{"files": {"x": {}}, "names": {}}', '{"files": 3}'])
def test_a_bad_state_file_means_from_the_start(world: World, content: str) -> None:
    world.writer.step(0, T0, loss=1.0)
    world.poll(2)
    (world.board.parent / "agent" / "tensorboard.json").write_text(content)
    world.start()
    world.poll(2)
    assert world.values("tb_loss") == [1.0]


def test_a_file_that_is_replaced_is_read_anew(world: World) -> None:
    world.writer.step(0, T0, loss=1.0)
    world.poll(2)
    world.writer.path.unlink()
    world.poll()
    world.writer.step(1, T0 + 9, loss=2.0)
    world.poll(2)
    assert world.values("tb_step") == [0, 1]


def test_tags_without_end_are_bounded(world: World) -> None:
    for i in range(1005):
        world.writer.raw(record(event(i, T0 + i / 1000, simple(f"t{i}", 1.0))))
    world.poll(2)
    assert len(world.stored) == 1001  # and tb_step
    assert 'tb_bridge_skipped_tags{host="n-r0"} 5' in world.text
