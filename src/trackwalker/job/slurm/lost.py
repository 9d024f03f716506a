"""Which nodes of a job Slurm gave up, by its own word on them: a lost node is no longer in the job's log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from trackwalker.job.slurm.parse import fields

_SLACK_S = 900.0  # a node is missed some time after it went, and the job may be over by then
_WHEN = re.compile(r"\[[^@\]]*@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\]\s*$")


def gone(nodes: str, start: float | None, end: float | None) -> list[tuple[str, str]]:
    """Nodes and reasons of `scontrol show node -o` that went down or were drained while a job had them."""
    found = []
    for line in nodes.splitlines():
        said = fields(line)
        state, reason = said.get("State", "").upper(), said.get("Reason", "")
        if "NodeName" not in said or not reason or not ("DOWN" in state or "DRAIN" in state or "NOT_RESP" in state):
            continue
        if _within(reason, start, end):
            found.append((said["NodeName"], _WHEN.sub("", reason).strip()))
    return found


def lost(found: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Those that are gone; a node drained for its prolog is not."""
    return tuple(name for name, why in found if "prolog" not in why.lower())


def prolog(found: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Those whose prolog failed."""
    return tuple(name for name, why in found if "prolog" in why.lower())


def _within(reason: str, start: float | None, end: float | None) -> bool:
    stamp = _WHEN.search(reason)
    if stamp is None or start is None:
        return False  # a node may be down for last week's reason
    at = datetime.fromisoformat(stamp[1]).timestamp()
    return start - 1.0 <= at <= (end if end is not None else at) + _SLACK_S
