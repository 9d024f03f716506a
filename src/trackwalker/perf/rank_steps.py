"""Every traced step of every device side by side, and what brings their clocks together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trackwalker.perf.model import PS_PER_S
from trackwalker.perf.rank_table import RankTable
from trackwalker.perf.ranks import Across
from trackwalker.perf.result import RankSteps, TracePart

_MOST_STEPS = 60
_MOST_DEVICES = 1024


def add_rank_steps(part: TracePart, across: Across, tables: Sequence[RankTable]) -> None:
    """Fill in each device's clock and the table of steps; `tables` are those that were compared."""
    stepped = [i for i, table in enumerate(tables) if table.steps]
    for row, i in zip(part.devices, stepped, strict=True):
        row.clock_s = _shift(across, i, tables[i]) / PS_PER_S
    if len(stepped) < 2:
        return
    kept = stepped[:_MOST_DEVICES]
    spans = {i: {_number(n, s.number): s.span / PS_PER_S for n, s in enumerate(tables[i].steps)} for i in kept}
    steps = sorted({number for row in spans.values() for number in row})[-_MOST_STEPS:]
    column = {int(number): n for n, number in enumerate(across.steps)}
    late = [[across.late[i, column[s]] / PS_PER_S if s in column else None for s in steps] for i in kept]
    part.rank_steps = RankSteps(
        devices=[tables[i].label for i in kept],
        steps=steps,
        step_s=[[spans[i].get(step) for step in steps] for i in kept],
        late_s=late,
    )


def _number(place: int, number: int | None) -> int:
    return place if number is None else number


def _shift(across: Across, rank: int, table: RankTable) -> float:
    """What is to be added to a device's times, in the middle of its steps: a drift moves that by next to nothing."""
    a, base = across.alignment, int(across.meetings.base[rank])
    middle = float(np.mean([(s.start + s.end) / 2 for s in table.steps])) + base
    return float(base + a.offset[rank] + a.drift[rank] * (middle - a.pivot))
