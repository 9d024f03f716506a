"""What a long command shows meanwhile: how far, and how long still."""

from __future__ import annotations

import io

import pytest

from trackwalker.cli.common.waiting import Waiting
from trackwalker.job.advance import advance, listening


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_with_the_time_left_and_none_in_the_end() -> None:
    clock, out = Clock(), Terminal()
    line = Waiting(out, clock)
    line.show(1, 10, "hosts")
    assert out.getvalue() == ""  # nobody wonders within two seconds
    clock.now += 30
    line.show(3, 10, "hosts")
    assert out.getvalue() == "\r\x1b[K3 of 10 hosts, about 1:10 left"
    line.close()
    assert out.getvalue().endswith("left\r\x1b[K")


def test_a_pipe_has_a_line_now_and_then() -> None:
    clock, out = Clock(), io.StringIO()
    line = Waiting(out, clock)
    for done in range(1, 31):
        clock.now += 3
        line.show(done, 30, "metrics")
    line.close()
    said = out.getvalue().splitlines()
    assert said == ["10 of 30 metrics, about 1:00 left", "20 of 30 metrics, about 0:30 left", "30 of 30 metrics"]


@pytest.mark.parametrize(("done", "of", "seconds"), [(0, 10, 60), (10, 10, 60), (1, 10, 1)])
def test_what_is_not_known_is_not_said(done: int, of: int, seconds: float) -> None:
    clock = Clock()
    line = Waiting(io.StringIO(), clock)
    clock.now += seconds
    assert line.rest(done, of) == ""


def test_nobody_listens_to_a_library_call() -> None:
    heard: list[tuple[int, int, str]] = []
    advance(1, 2, "hosts")
    with listening(lambda *each: heard.append(each)):
        advance(2, 2, "hosts")
    advance(3, 2, "hosts")
    assert heard == [(2, 2, "hosts")]
