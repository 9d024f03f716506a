"""Stamped samples: each scraper gets each one once, missed scrapes are made up for, memory is bounded."""

from __future__ import annotations

import http.client
import re

import pytest

from trackwalker.node.exporter import backlog as module
from trackwalker.node.exporter.backlog import Backlog
from trackwalker.node.exporter.server import Exporter

LABELS = {"host": "n"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fill(backlog: Backlog, first: int, last: int) -> None:
    for step in range(first, last + 1):
        assert backlog.add("tb_step", "Step.", step, 1000 + step / 10, LABELS)


def steps(backlog: Backlog, cursor: int = 0) -> tuple[list[int], int]:
    found, cursor = backlog.since(cursor)
    return [int(value) for family in found for _, value, _ in family.samples], cursor


def test_each_reader_has_its_own_place() -> None:
    backlog = Backlog(Clock())
    fill(backlog, 1, 3)
    seen, mine = steps(backlog)
    assert seen == [1, 2, 3]
    assert steps(backlog, mine)[0] == []
    fill(backlog, 4, 5)
    assert steps(backlog, mine)[0] == [4, 5]
    assert steps(backlog)[0] == [1, 2, 3, 4, 5]


def test_what_somebody_has_is_kept_for_others_and_then_let_go() -> None:
    clock = Clock()
    backlog = Backlog(clock)
    fill(backlog, 1, 3)
    backlog.confirm(2)
    clock.now += module.KEEP_S + 1
    fill(backlog, 10_000, 10_000)
    assert steps(backlog)[0] == [3, 10_000], "nobody has 3 yet"
    assert backlog.dropped == 0


def test_without_a_reader_the_newest_stay_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    backlog = Backlog(Clock())
    assert backlog.room() == 10
    fill(backlog, 1, 13)
    assert steps(backlog)[0] == list(range(4, 14))
    assert (backlog.dropped, backlog.room()) == (3, 0)
    backlog.confirm(steps(backlog)[1])
    assert backlog.room() == 10


def test_a_long_backlog_comes_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 4)
    backlog = Backlog(Clock())
    fill(backlog, 1, 10)
    cursor, portions = 0, []
    while (answer := steps(backlog, cursor))[0]:
        portions.append(answer[0])
        cursor = answer[1]
    assert portions == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]


def test_what_a_database_would_refuse_is_refused() -> None:
    backlog = Backlog(Clock())
    assert backlog.add("tb_step", "Step.", 1, 1000.0, LABELS)
    assert not backlog.add("tb_step", "Step.", 1, 1000.0, LABELS)
    assert not backlog.add("tb_step", "Step.", 2, 999.0, LABELS)
    assert backlog.add("tb_step", "Step.", 2, 999.0, {"host": "other"})
    assert not backlog.add("tb_old", "Old.", 1, 1000.0 - module.OLDEST_S - 1, LABELS)


def ask(connection: http.client.HTTPConnection) -> list[int]:
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    return [int(step) for step in re.findall(r'^tb_step\{host="n"\} (\d+) \d+$', text, re.M)]


def test_a_connection_is_a_reader() -> None:
    exporter = Exporter("n", [], backlog=Backlog(Clock()))
    port = exporter.start()
    try:
        lasting, other = (http.client.HTTPConnection("127.0.0.1", port, timeout=10) for _ in range(2))
        fill(exporter.backlog, 1, 2)
        assert ask(lasting) == [1, 2]
        fill(exporter.backlog, 3, 3)
        assert exporter.backlog.room() == module.MOST - 3, "sent is not yet received"
        assert ask(lasting) == [3]
        assert exporter.backlog.room() == module.MOST - 1
        assert ask(other) == [1, 2, 3], "somebody else takes nothing away"
        assert ask(lasting) == []
        lasting.close()
        assert ask(lasting) == [1, 2, 3], "who lost the connection may have lost the answer"
        other.close()
        lasting.close()
    finally:
        exporter.stop()
