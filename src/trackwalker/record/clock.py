"""Times: seconds since the epoch inside, UTC text outside."""

from __future__ import annotations

import math
from datetime import UTC, datetime


def utc(seconds: float | None) -> str | None:
    """2026-02-24T19:10:20Z, None for an unknown time."""
    if seconds is None or not math.isfinite(seconds):
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_utc(text: str) -> float:
    """Seconds of a UTC text without zone, as Slurm prints it."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def from_glog(clock: tuple[int, int, int, int, float], near: float) -> float:
    """Seconds of a glog stamp (no year, no zone): the year that puts it nearest to a known time."""
    month, day, hour, minute, second = clock
    year = datetime.fromtimestamp(near, UTC).year
    candidates = []
    for y in (year - 1, year, year + 1):
        try:
            base = datetime(y, month, day, hour, minute, tzinfo=UTC).timestamp() + second
        except ValueError:
            continue
        candidates.append(base)
    return min(candidates, key=lambda t: abs(t - near))
