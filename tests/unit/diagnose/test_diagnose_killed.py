"""A run of ours that is gone without a last word: it was killed, and nothing says by whom."""

from __future__ import annotations

from pathlib import Path

import pytest
from watched_job import T0, SimJob

from trackwalker.diagnose.engine import diagnose
from trackwalker.job.resolve import resolve


@pytest.mark.parametrize("timed", [True, False])
def test_a_run_killed_with_its_agent_is_not_healthy(tmp_path: Path, timed: bool) -> None:
    job = SimJob(tmp_path)
    job.log.write_text("JOB_ID=77\nNNODES=2\n== Training BEGIN (no timeout) ==\n")
    if timed:
        job.steps(T0, 2.0, 40)
    else:  # a trainer that says what it did and not how long it took
        for step in range(40):
            job.record(T0 + 2.0 * step, "train", step=step)
    verdict = diagnose(resolve(str(job.dir), tmp_path)).verdict
    assert (verdict.status, verdict.outcome) == ("unknown-death", "insufficient-evidence")
    assert "gone without a last word" in verdict.summary
