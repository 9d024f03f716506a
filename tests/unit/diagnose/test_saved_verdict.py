"""A verdict saved with its job against one that is made later: evidence decides which of them holds, never outcomes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from web_client import accusing

from trackwalker.diagnose.saved import lacking, note_of, place_of, saved_verdict, standing
from trackwalker.diagnose.verdict import Cost, Onset, Verdict, Window
from trackwalker.job.layout import Job

DAY = Window(start="2026-06-01T00:00:00Z", end="2026-06-02T00:00:00Z")
RECORDED = accusing("7", "outputs/7")
POOR = RECORDED.model_copy(
    update={"outcome": "insufficient-evidence", "causes": [], "summary": "Something is wrong.", "evidence": []}
)


def of(verdict: Verdict, queries: int, **more: object) -> Verdict:
    return verdict.model_copy(update={"cost": Cost(seconds=1.0, queries=queries, bytes_read=0), **more})


def began(at: str) -> Verdict:
    cause = RECORDED.causes[0].model_copy(update={"onset": Onset(time=at)})
    return RECORDED.model_copy(update={"causes": [cause], "window": DAY})


def test_a_look_without_the_metrics_does_not_replace_what_was_concluded_with_them() -> None:
    found = standing(of(POOR, 0), RECORDED)
    assert found.causes == RECORDED.causes
    assert "not here any more" in note_of(found)
    assert "Something is wrong" in note_of(found)  # nothing is withheld


def test_with_the_same_evidence_the_later_look_holds_even_where_it_knows_no_cause() -> None:
    assert standing(of(POOR, 9), RECORDED).outcome == "insufficient-evidence"
    assert standing(of(RECORDED, 9), of(POOR, 0)) == of(RECORDED, 9)
    assert standing(POOR, None) is POOR


@pytest.mark.parametrize(("start", "gone"), [("2026-06-01T00:00:00Z", False), ("2026-06-01T12:00:00Z", True)])
def test_a_recording_that_begins_after_the_onset_saw_less(start: str, gone: bool) -> None:
    later = of(POOR, 9, window=Window(start=start, end=DAY.end))
    assert bool(lacking(later, began("2026-06-01T06:00:00Z"))) is gone
    assert not lacking(later, began("2026-05-01T06:00:00Z"))  # the saved one did not see that moment either


def test_what_was_saved_while_a_run_went_on_is_not_its_last_word_and_is_told() -> None:
    found = standing(of(POOR, 0), of(RECORDED, 9, status="running"))
    assert found.outcome == "insufficient-evidence"
    assert "while it ran" in note_of(found)
    assert RECORDED.summary.rstrip(".") in note_of(found)


def test_a_saved_verdict_is_read_back_without_the_note_and_only_where_it_may_be(tmp_path: Path) -> None:
    job = Job("7", None, tmp_path)
    place = place_of(job)
    assert saved_verdict(job) is None
    assert place is not None
    place.write_text(standing(of(POOR, 0), RECORDED).to_json())
    assert saved_verdict(job) == RECORDED
    assert saved_verdict(job, inside=lambda path: False) is None
    place.write_text("{")
    assert saved_verdict(job) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_what_a_third_user_put_into_a_job_decides_nothing(tmp_path: Path) -> None:
    job = Job("7", None, tmp_path)
    (tmp_path / "verdict.json").write_text(RECORDED.to_json())
    assert saved_verdict(job) == RECORDED
    os.chown(tmp_path / "verdict.json", 12345, -1)
    assert saved_verdict(job) is None
    os.chown(tmp_path, 12345, -1)  # whose job it is
    assert saved_verdict(job) == RECORDED
