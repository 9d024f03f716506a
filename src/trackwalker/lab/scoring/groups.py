"""Which group a case belongs to: its cause's own, or the outcome where nothing is wrong."""

from __future__ import annotations

from trackwalker.job.causes import about
from trackwalker.lab.scenario import Truth

ORDER = ["before training", "crash", "stop", "slow", "training", "observer", "other", "several causes"]
ORDER += ["expected", "healthy", "insufficient-evidence"]


def group_of(truth: Truth) -> str:
    """The row of the scoreboard that a truth counts in."""
    told = about(truth.roots[0].cause) if len(truth.roots) == 1 else None
    observer = told is not None and told.group == "observer"  # at fault, whether the run suffered or not
    if truth.outcome != "incident" and not observer:
        return truth.outcome
    if len(truth.roots) > 1:
        return "several causes"
    return told.group if told else "other"
