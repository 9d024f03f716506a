"""docs/start/tour.md shows what its commands print: terminals of 80 and 200 columns, NO_COLOR, C locale."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tour_walk import NARROW, PAGE, STOPS, WIDE, WIDE_PAGE, Stop, Walk, blocks, shown

_LEFT_OUT = re.compile(r"^… \(\d+ more lines\)$", re.MULTILINE)


@pytest.fixture
def walk() -> Iterator[Walk]:
    """Not in tmp_path: answers name the folder, and a long name would break their lines elsewhere."""
    with tempfile.TemporaryDirectory(prefix="tour-") as place:
        yield Walk(Path(place))


def check(answers: Iterator[tuple[Stop, str]], page: Path) -> None:
    written = blocks(page.read_text())
    assert [command for command, _ in written] == [stop.command for stop in STOPS], "run scripts/tour"
    for (stop, answer), (_, known) in zip(answers, written, strict=True):
        now, then = (_LEFT_OUT.sub("…", text) for text in (shown(stop, answer), known))
        assert stop.like(now) == stop.like(then), f"{stop.command}: run scripts/tour"


def test_the_tour_shows_what_its_commands_print(walk: Walk) -> None:
    check(walk.answers(NARROW, NO_COLOR="1", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"), PAGE)


@pytest.mark.long(reason="the same 22 commands as on the page, in a wide terminal: a Python for each")
def test_the_tour_in_a_wide_terminal(walk: Walk) -> None:
    check(walk.answers(WIDE, LC_ALL="C.UTF-8"), WIDE_PAGE)


def test_the_tour_is_long_enough_and_names_no_machine() -> None:
    text = PAGE.read_text()
    assert len(STOPS) >= 20
    assert not re.search(r"/root|/work/|/home/|/tmp/", text)
