"""Which group a case belongs to: its cause's own, or the outcome where nothing is wrong."""

from __future__ import annotations

from trackwalker.job.causes import about
from trackwalker.lab.scenario import Truth

ORDER = ["before training", "crash", "stop", "slow", "training", "observer", "other", "several causes"]
ORDER += ["expected", "healthy", "insufficient-evidence"]


def group_of(truth: Truth) -> str:
    """The row of the scoreboard that a truth counts in."""
    if truth.outcome != "incident":
        return truth.outcome
    if len(truth.roots) > 1:
        return "several causes"
    told = about(truth.roots[0].cause) if truth.roots else None
    return told.group if told else "other"
