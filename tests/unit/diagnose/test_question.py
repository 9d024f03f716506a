"""A question changes how a verdict begins, never what it says."""

from __future__ import annotations

from trackwalker.diagnose.verdict import Cause, Cost, JobRef, Progress, Verdict, Window
from trackwalker.diagnose.views.asked import answer
from trackwalker.report.markdown import markdown


def verdict(cause: str, outcome: str = "incident", says: str = "A NIC is bad.") -> Verdict:
    return Verdict.model_validate(
        {
            "job": JobRef(id="7", dir="d", nodes=2, gpus=16),
            "window": Window(start="2026-01-01T00:00:00Z", end="2026-01-01T01:00:00Z"),
            "status": "running",
            "outcome": outcome,
            "summary": says,
            "causes": [Cause(cause=cause, role="root", confidence=0.9, evidence=[])] if cause else [],
            "progress": Progress(),
            "cost": Cost(seconds=1, queries=0, bytes_read=0),
        }
    )


def test_a_question_the_verdict_answers_changes_nothing() -> None:
    found = verdict("rdma-degradation")
    assert answer("why is TGS so bad", found) == found
    assert answer("tell me about 7", found) == found


def test_a_question_about_something_else_is_answered_first() -> None:
    said = answer("why does it hang?", verdict("rdma-degradation"))
    assert "not known to have hung" in said.summary
    assert said.summary.endswith("A NIC is bad.")
    assert said.causes == verdict("rdma-degradation").causes
    healthy = answer("is it slow\nnow", verdict("", "healthy", "Nothing is wrong."))
    assert "no cause for a slowdown" in healthy.summary
    assert "\n" not in healthy.summary


def test_markdown_does_not_let_log_text_become_markup() -> None:
    text = markdown(verdict("rdma-degradation", says="# boom | <script>alert(1)</script> [x](y) `z`\n\n## two"))
    assert "<script>" not in text
    assert "\n## two" not in text
    assert "\\# boom" in text
