"""Steps and saves of trainers other than MaxText, put where the questions about a run's course look for them."""

from __future__ import annotations

import math
import re

import numpy as np

from trackwalker.logs.facts import LogFacts, StepLine
from trackwalker.logs.index import LogIndex

_ASKED = re.compile(r"(?:^|\s)steps=(\d{1,12})(?=\s|$)")
_OF_THE_RUN = frozenset({"megatron", "nemo"})  # others count the steps of an epoch


def asked_steps(index: LogIndex) -> int | None:
    """How many steps were asked for, of a log without a config dump: its step lines or the launcher's arguments."""
    steps, asked = index.steps, _ASKED.search(index.facts.header.get("PASSTHROUGH_ARGS", ""))
    if steps.dialect in _OF_THE_RUN and steps.total is not None:
        return steps.total + (1 if steps.first_number == 0 else 0)
    if asked is None:
        return None
    most = int(asked[1])
    return most if not len(steps) or int(steps.step.max()) <= most else None  # who went on beyond was asked otherwise


def final_offset(index: LogIndex) -> int:
    """What to add to a last step counted from 0: trainers count from 1, or tell of every tenth step only."""
    steps = index.steps
    apart = int(np.median(np.diff(steps.step))) if len(steps) > 1 else 1
    return steps.first_number - (max(apart, 1) - 1)


def complete(log: LogFacts, index: LogIndex) -> None:
    """Give a log without MaxText's step lines those that the index knows, with the saves between them."""
    steps = index.steps
    if log.steps or not len(steps):
        return
    rank = steps.rank or 0
    told = steps.has_loss if len(steps.has_loss) else np.zeros(len(steps), np.bool_)
    log.steps[rank] = [
        StepLine(
            rank,
            int(steps.step[i]),
            float(steps.seconds[i]),
            None if math.isnan(steps.tgs[i]) else float(steps.tgs[i]),
            None if math.isnan(steps.loss[i]) and not told[i] else float(steps.loss[i]),
            int(steps.line[i]),
        )
        for i in range(len(steps))
    ]
    before = np.searchsorted(steps.line, index.facts.save_lines) - 1
    log.saves |= index.facts.saves | {int(steps.step[i]) for i in before if i >= 0}
