"""What a case says of its events, and of the silence at its end."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trackwalker.diagnose import case as module
from trackwalker.diagnose.case import Case
from trackwalker.record.stall import Stall


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


@pytest.mark.parametrize(
    ("held_after", "silent_s", "live", "a_stall"),
    [
        (2e9, 42.0, False, False),  # the processes had ended before the log says that the job was cancelled
        (131e9, 42.0, False, True),  # who waits for a batch keeps his model
        (2e9, 42.0, True, True),  # the job goes on without its processes
        (2e9, 600.0, False, True),  # no teardown takes so long: somebody should have noticed
    ],
)
def test_who_gave_his_memory_back_waits_for_nothing(
    held_after: float, silent_s: float, live: bool, a_stall: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = 1000.0

    def by_host(query: str, at: float) -> dict[str, float]:
        return dict.fromkeys("ab", held_after if at > last else 131e9)

    telemetry = SimpleNamespace(metrics=lambda: {"hw_gpu_vram_used_bytes"}, by_host=by_host)
    silence = Stall(silent_s, 26.0, "no step", 9, last, last + silent_s)
    monkeypatch.setattr(module, "find_stall", lambda *_: silence)
    case: Any = SimpleNamespace(
        triage=SimpleNamespace(record=SimpleNamespace(stall=None, table=SimpleNamespace(clock=""))),
        timeline=SimpleNamespace(last_end=last, exact=True), end_of_work=last + silent_s, start=0.0, masks=None,
        log=SimpleNamespace(summary="cancelled"), all_done=False, live=live, telemetry=telemetry,
    )  # fmt: skip
    case._at_rest = partial(Case._at_rest, case)
    assert (cast(Any, Case.stall).func(case) is not None) == a_stall
