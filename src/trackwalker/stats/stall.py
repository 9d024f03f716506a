"""How long a run may be silent before that is a stall, by its own step times."""

from __future__ import annotations

import numpy as np

from trackwalker.stats.segments import Floats

STALL_STEPS = 6.0  # how many of its own slow steps a run may be silent
_FLOOR_S = 8.0  # sub-second steps: scheduling hiccups last seconds and are not hangs


def stall_limit(seconds: Floats) -> float:
    """Seconds of silence that steady step times do not explain."""
    return max(STALL_STEPS * float(np.quantile(seconds, 0.99)), _FLOOR_S)
