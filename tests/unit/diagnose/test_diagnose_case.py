"""What a case says of its events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from trackwalker.diagnose.case import Case


def test_the_first_event_is_the_first_in_time() -> None:
    """Node 0 writes its own events at once and merges the others' later."""
    events: list[dict[str, Any]] = [
        {"kind": "first-failure", "t": 5.4, "rank": 0},
        {"kind": "first-failure", "t": 5.2, "rank": 1},
        {"kind": "first-failure", "rank": 2},  # a foreign record without a time
    ]
    case = cast(Case, SimpleNamespace(events=events))
    found = Case.event(case, "first-failure")
    assert found is not None
    assert found["rank"] == 1
    assert Case.event(case, "run-end") is None
