"""A loss that left its level and did not come back (FC-43); a spike that recovers is none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FEWEST = 3  # values before and after: fewer are no level; levels are medians of so many
_RISE = 1.0  # of a loss in nats: noise and a new mixture of data stay below
_SHARE = 0.5  # of the level before
_LATE = 1000  # steps after which a loss no longer falls from its start
_FAR = 2.0  # times the level before


def sustained_jump(step: NDArray[np.int64], loss: NDArray[np.float64]) -> int | None:
    """The place where the loss rose for good, None when its last values lie near the best level it had."""
    again = np.flatnonzero(np.diff(step) < 0)  # a restart may begin anew: only the last attempt is one curve
    begin = int(again[-1]) + 1 if len(again) else 0
    known = begin + np.flatnonzero(np.isfinite(loss[begin:]))
    values = loss[known]
    if len(known) < 2 * _FEWEST:
        # A cut-out of a long run: one value of its level is enough when all that follow lie far above it.
        late = len(known) > _FEWEST and int(step[known[0]]) >= _LATE
        return int(known[1]) if late and values[1:].min() > _FAR * abs(values[0]) else None
    first, second, third = values[:-2], values[1:-1], values[2:]  # the middle of three without sorting each three
    smooth = np.maximum(np.minimum(first, second), np.minimum(np.maximum(first, second), third))
    best = float(smooth.min())
    limit = best + max(_RISE, _SHARE * abs(best))
    low = np.flatnonzero(values <= limit)
    onset = int(low[-1]) + 1
    if onset < _FEWEST or len(values) - onset < _FEWEST:
        return None
    return int(known[onset])
