"""How full the device's memory really was, as the runtime's allocator reported it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from trackwalker.perf.model import NONE, Trace

_DEVICE = re.compile(r"GPU_\d+")  # the host's staging memory has allocators, too


@dataclass(frozen=True)
class Fullest:
    """The device allocator that came closest to its limit."""

    allocator: str
    peak: int  # bytes in use at the worst moment since the process began
    limit: int  # bytes that the allocator may hand out


def fullest(trace: Trace) -> Fullest | None:
    """The device whose memory was fullest; None when the trace has no allocations."""
    table, found = trace.memory, []
    for name in np.unique(table.allocator):
        rows = (table.allocator == name) & (table.peak != NONE) & (table.available != NONE)
        if rows.any() and _DEVICE.match(trace.strings[int(name)]):
            limit = int((table.allocated + table.available)[rows].max())
            found.append(Fullest(trace.strings[int(name)], int(table.peak[rows].max()), limit))
    return max(found, key=lambda one: one.peak / max(one.limit, 1), default=None)
