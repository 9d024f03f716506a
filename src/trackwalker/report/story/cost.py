"""What an incident cost: the budget of the run's time, and what of it was lost; unknown is unknown, never zero."""

from __future__ import annotations

from dataclasses import dataclass

from trackwalker.diagnose.verdict import Verdict
from trackwalker.perf.throughput.goodput_cost import goodput_part
from trackwalker.record.goodput import Goodput
from trackwalker.report import words

LOSSES = ("slowdown", "lost work", "stalled")


@dataclass(frozen=True)
class Cost:
    """The sentence, and the table behind it: what, time, share, GPU-hours, whether it is a loss."""

    says: str
    rows: tuple[tuple[str, str, str, str, bool], ...]


def cost_of(budget: Goodput, verdict: Verdict) -> Cost:
    """Where the time of a run went."""
    part = goodput_part(budget.with_recorded(verdict.job.gpus), None)
    rows = [
        (
            row.what,
            words.duration(row.hours * 3600),
            "" if row.share is None else f"{100 * row.share:.1f} %",
            "" if row.gpu_hours is None else words.amount(row.gpu_hours),
            row.what in LOSSES,
        )
        for row in part.rows
    ]
    lost = [row for row in part.rows if row.what in LOSSES]
    return Cost(_sentence(sum(row.hours for row in lost), part.gpus, budget), tuple(rows))


def _sentence(lost_h: float, gpus: int | None, budget: Goodput) -> str:
    kept = (
        "" if budget.goodput is None else f" {100 * budget.goodput:.1f} % of the wall time is training that was kept."
    )
    if not budget.parts:
        return "Where the time went is not known: the log tells neither steps nor a wall time."
    if not lost_h and not budget.lost_known:
        return "What was lost is not known: nothing tells what was saved before it ended."
    if not lost_h:
        return f"No time was lost to a slowdown, a stall or work that was thrown away, as far as the log tells.{kept}"
    took = words.duration(lost_h * 3600)
    held = (
        f", {words.amount(lost_h * gpus)} GPU-hours of {gpus:,} GPUs"
        if gpus
        else "; how many GPUs it held is not known"
    )
    return f"Slowdown, stalls and lost work took {took}{held}.{kept}"
