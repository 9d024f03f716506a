"""Which reservation a job goes into: the user's own, the newest one that is open now."""

from __future__ import annotations

import time
from datetime import datetime

from trackwalker.job.slurm.parse import fields

NONE = "none"  # what a user says to go without


def choose_reservation(text: str, user: str, wanted: str | None = None, now: float | None = None) -> str | None:
    """`wanted` if the user named one, nothing for "none", else the newest that names the user and is open now."""
    if wanted is not None:
        return None if wanted.lower() == NONE else wanted
    now = time.time() if now is None else now
    open_now = []
    for line in text.splitlines():
        said = fields(line)
        # '-name' in the list keeps a user out, and 'ann' is not 'annika': the names must be equal.
        if user not in said.get("Users", "").split(","):
            continue
        begin, end = _when(said.get("StartTime", "")), _when(said.get("EndTime", ""))
        if begin is not None and begin <= now and (end is None or now < end):
            open_now.append((begin, said["ReservationName"]))
    return max(open_now)[1] if open_now else None


def _when(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()  # Slurm prints local time
    except ValueError:
        return None
