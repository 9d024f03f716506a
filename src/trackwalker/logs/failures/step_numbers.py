"""What the numbers of step lines tell: a loss that left its level for good (FC-43), steps that wait for their data.

A spike that recovers is no divergence.
"""

from __future__ import annotations

import math
import re
import statistics
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trackwalker.logs.scanning.gathered import Hit

if TYPE_CHECKING:
    from trackwalker.logs.failures.signatures import Signature
    from trackwalker.logs.scanning.scan import Scan
    from trackwalker.logs.scanning.steps import Steps

_FEWEST = 3  # values before and after: fewer are no level; levels are medians of so many
_RISE = 1.0  # of a loss in nats: noise and a new mixture of data stay below
_SHARE = 0.5  # of the level before
_BY_CHANCE = 0.01  # of such runs may end with as many high values
_LATE = 1000  # steps after which a loss no longer falls from its start
_FAR = 2.0  # times the level before
# What a step waited for its batch, beside the time of the whole step, as open_clip, timm, MMEngine and DETR print it.
_DATA_TIME = re.compile(rb"(?i)\bdata(?: ?\(t\)|_time|[ _]wait)?\s*[:=]\s*(\d+\.\d+)")
_STEP_TIME = re.compile(rb"(?i)(?<![\w_])(?:batch(?: ?\(t\)|_time)|(?:iter_)?time)\s*[:=]\s*(\d+\.\d+)")
_MOSTLY = 0.5  # of a step's time: then it waits longer than it works
_SHOWN = 4  # such lines, at least


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
    if onset < _FEWEST or len(values) - onset < _enough_in_a_row(values, onset, limit):
        return None
    return int(known[onset])


def _enough_in_a_row(values: NDArray[np.float64], onset: int, limit: float) -> int:
    """How many high values at the end are none of chance: as often as single ones came before, in a run as long."""
    often = float(np.mean(values[onset // 2 : onset] > limit))
    if not often:
        return _FEWEST
    return max(_FEWEST, math.ceil(math.log(_BY_CHANCE / len(values)) / math.log(min(often, 0.9))))


def diverged(steps: Steps, signature: Signature, file: str) -> list[Hit]:
    """The first step whose loss is no number or left its level; bulk-read lines do not pass by the signatures."""
    bad = np.flatnonzero(np.isinf(steps.loss) | (np.isnan(steps.loss) & steps.has_loss))
    if not len(bad) and (jump := sustained_jump(steps.step, steps.loss)) is not None:
        bad = np.arange(jump, len(steps.loss))
    if not len(bad):
        return []
    at = int(bad[0])
    line, text = int(steps.line[at]), f"step {steps.step[at]}: loss {steps.loss[at]}"
    return [Hit(signature, steps.rank, line, text, file, None, len(bad), int(steps.line[bad[-1]]))]


def waits_for_input(scan: Scan, signature: Signature) -> list[Hit]:
    """Steps at the end of a log that spend most of their time waiting for data, where their lines tell both times."""
    shares: list[float] = []
    last, text = 0, ""
    raws = scan.tail.split(b"\n") if b"ata" in scan.tail else []
    first = scan.lines - len(raws) + (1 if scan.ends_mid_line else 2)
    for at, raw in enumerate(raws):
        data, step = _DATA_TIME.search(raw, 0, 600), _STEP_TIME.search(raw, 0, 600)
        if data and step and float(step[1]) > 0:
            shares.append(float(data[1]) / float(step[1]))
            last, text = first + at, raw.decode("utf-8", "replace").strip()[:400]
    if len(shares) < _SHOWN or not _MOSTLY <= statistics.median(shares) <= 1.0:
        return []
    return [Hit(signature, None, last, text, scan.path.name, None, len(shares), last)]
