"""Inputs that once broke a reader, and the right ones: an answer or a named error, in time, in little memory."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from fuzz.run import SEEDS, feed
from fuzz.targets import TARGETS

KEPT = sorted(p for p in SEEDS.rglob("*") if p.is_file())


@pytest.fixture(autouse=True)
def _alarm_raises() -> None:
    def late(number: int, frame: object) -> None:
        raise TimeoutError("over 10 s")

    signal.signal(signal.SIGPROF, late)
    signal.signal(signal.SIGALRM, late)


@pytest.mark.parametrize("path", KEPT, ids=lambda p: f"{p.parent.name}-{p.name[:8]}")
def test_what_once_broke_a_reader_no_longer_does(path: Path, tmp_path: Path) -> None:
    if path.parent.name not in TARGETS:
        pytest.skip("this reader needs Prometheus")
    assert feed(TARGETS[path.parent.name], path.read_bytes(), tmp_path) == ""
