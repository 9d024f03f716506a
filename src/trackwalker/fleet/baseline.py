"""The run to compare with when nobody names one: the last good run of the same model before it."""

from __future__ import annotations

from collections.abc import Iterable

from trackwalker.fleet.rows import JobRow

_GOOD = frozenset({"completed", "soft-success"})


def is_good(row: JobRow) -> bool:
    """Whether it ended well and nothing is held against it."""
    return row.status in _GOOD and row.badge_tone not in ("bad", "warn", "unknown")


def last_good(row: JobRow, rows: Iterable[JobRow]) -> JobRow | None:
    """The newest good run of the same model that began before it, one of as many nodes before all others."""
    same = [each for each in rows if each.id != row.id and each.model == row.model and is_good(each)]
    before = [each for each in same if each.when <= row.when]
    return max(before, key=lambda each: (each.nodes == row.nodes, each.when, each.id), default=None)
