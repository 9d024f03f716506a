"""Rules that the tests themselves keep: nobody waits without need, and nobody is run again in silence."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from conftest import ROOT

LONGEST_S = 0.2
SUBJECT = "# the wait is the subject"
FILES = sorted((ROOT / "tests").rglob("*.py"))


def long_sleeps(source: str) -> Iterator[tuple[int, str]]:
    """Lines of a test that sleep longer than allowed, or for an unknown time, and do not say why."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("time.sleep", "sleep") or not node.args:
            continue
        seconds = node.args[0]
        short = isinstance(seconds, ast.Constant) and seconds.value <= LONGEST_S
        if not short and SUBJECT not in lines[node.lineno - 1]:
            yield node.lineno, lines[node.lineno - 1].strip()


def test_no_test_sleeps_longer_than_it_must() -> None:
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in FILES}
    assert [(n, found) for n, s in sources.items() if "sleep(" in s and (found := list(long_sleeps(s)))] == []


def test_a_long_sleep_is_seen() -> None:
    assert [line for line, _ in long_sleeps("import time\ntime.sleep(3)\ntime.sleep(0.1)\n")] == [2]
    assert list(long_sleeps(f"import time\ntime.sleep(3)  {SUBJECT}: a late record\n")) == []


def test_nothing_but_a_marker_with_a_reason_asks_for_a_second_run() -> None:
    asking = [
        p.name
        for p in FILES
        if "mark.flaky" in p.read_text() and p.name not in ("conftest.py", "real_maxtext.py", Path(__file__).name)
    ]
    assert asking == []
