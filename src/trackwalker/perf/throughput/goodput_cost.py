"""Goodput in hours, GPU-hours and money: the budget that triage draws up, priced."""

from __future__ import annotations

from trackwalker.perf.analysis.result import BudgetRow, GoodputPart
from trackwalker.record.goodput import Goodput


def goodput_part(budget: Goodput, price: float | None) -> GoodputPart:
    """Productive time first, then the losses, the largest first; a run without a wall time has no shares."""
    rows = []
    for part in budget.parts:
        hours = part.seconds / 3600.0
        held = hours * budget.gpus if budget.gpus else None
        money = held * price if held is not None and price is not None else None
        rows.append(BudgetRow(what=part.what, hours=hours, share=part.share, gpu_hours=held, money=money))
    rows.sort(key=lambda row: (row.what != "train", -row.hours, row.what))
    return GoodputPart(
        goodput=budget.goodput,
        wall_h=None if budget.wall_s is None else budget.wall_s / 3600.0,
        gpus=budget.gpus,
        gpus_from=budget.gpus_from,
        price=price,
        rows=rows,
    )
