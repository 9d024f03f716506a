"""Data that nobody thought of: an error inside one test costs that test, not the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
from triage_logs import ending, header, steps

from trackwalker.diagnose.causes import examine
from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.facts.log_facts import FACTS
from trackwalker.job.layout import Job


def broken(*_: object) -> None:
    raise KeyError("node007")


def job(folder: Path) -> Job:
    path = folder / "77-JAX-toy.log"
    path.write_text(header(steps=30) + steps(29) + ending(0))
    return Job("77", path, None)


def test_a_test_that_fails_inside_is_told_and_the_verdict_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = diagnose(job(tmp_path)).verdict
    monkeypatch.setattr(examine, "STRICT", False)
    monkeypatch.setitem(FACTS, "frozen-exporter", broken)
    found = diagnose(job(tmp_path))
    assert (found.verdict.outcome, found.verdict.status) == (whole.outcome, whole.status)
    assert any("failed inside (KeyError: 'node007')" in d.says for d in found.verdict.data_quality)


def test_our_own_tests_see_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FACTS, "frozen-exporter", broken)
    with pytest.raises(KeyError):
        diagnose(job(tmp_path))
