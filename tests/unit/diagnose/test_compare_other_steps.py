"""A comparison of steps that both jobs did says nothing good of those that one of them never did."""

from __future__ import annotations

from pathlib import Path

import pytest
from triage_logs import ending, header, steps

from trackwalker.diagnose.compare.compare import compare
from trackwalker.job.layout import Job


def job(folder: Path, number: int, last: int, slow_from: int | None) -> Job:
    """A finished job of 10 s a step, which from one step on takes 24 s."""
    path = folder / f"{number}-JAX-toy.log"
    well = steps(last if slow_from is None else slow_from - 1)
    slow = "" if slow_from is None else steps(last, first=slow_from, seconds=24.0)
    path.write_text(header(steps=last + 1) + well + slow + ending(0))
    return Job(str(number), path, None)


@pytest.mark.parametrize("slow_from", [200, 260])
def test_slow_steps_that_the_other_never_did_are_not_healthy(tmp_path: Path, slow_from: int) -> None:
    found = compare(job(tmp_path, 1, 150, None), job(tmp_path, 2, 400, slow_from)).verdict
    assert found.outcome == "insufficient-evidence"
    assert found.summary.startswith("B (2) is not well in steps that A never did: ")
    assert "No significant difference" in found.summary


def test_a_longer_run_that_stays_well_is_healthy(tmp_path: Path) -> None:
    assert compare(job(tmp_path, 1, 150, None), job(tmp_path, 2, 400, None)).verdict.outcome == "healthy"
