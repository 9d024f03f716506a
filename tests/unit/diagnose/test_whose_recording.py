"""Whose a recording is: its hosts where the log names none, its losses where it counts steps as nobody else does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trackwalker.diagnose.case import _all_hosts, check_identity
from trackwalker.logs.facts import LogFacts


class Recorded:
    """Only what is asked of a recording here."""

    def __init__(self, hosts: list[str], losses: dict[int, float] | None = None) -> None:
        self.hosts, self.losses = hosts, losses or {}

    def metrics(self) -> frozenset[str]:
        return frozenset({"hw_procs_running", "tb_step", "tb_learning_loss"})

    def range(self) -> tuple[float, float]:
        return 0.0, 100.0

    def instant(self, query: str, at: float) -> list[Any]:
        return [SimpleNamespace(labels={"host": h}) for h in self.hosts]


@pytest.mark.parametrize(
    ("told", "nodes", "recorded", "wanted"),
    [
        ([], None, ["n1", "n2"], ["n1", "n2"]),
        ([], None, ["n1", "n1-r0", "n1-r1", "n2", "n2-r2"], ["n1", "n2"]),  # lanes are no machines
        ([], 3, ["n1", "n2"], []),  # others took part: who is missing is not known
        ([], None, ["web-r1", "web-r2"], ["web-r1", "web-r2"]),  # names that only look like lanes
        (["n1", "n2"], None, ["n1", "n2", "login"], ["n1", "n2"]),
        (["n1"], 2, ["n1", "n2"], ["n1", "n2"]),
    ],
)
def test_hosts_that_no_log_names_are_those_of_the_recording(
    told: list[str], nodes: int | None, recorded: list[str], wanted: list[str]
) -> None:
    record = SimpleNamespace(hosts=told, nodes=nodes)
    assert _all_hosts(record, Recorded(recorded)) == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(("late", "other", "ok"), [(0, 1.0, True), (5, 1.0, True), (0, 1.4, False)])
def test_a_recording_may_tell_of_the_loss_before(
    monkeypatch: pytest.MonkeyPatch, late: int, other: float, ok: bool
) -> None:
    told = {step: 9.0 * 0.9 ** (step / 5) + 0.5 for step in range(5, 200, 5)}
    recorded = {step + late: other * loss for step, loss in told.items()}
    by = {
        "tb_step": {float(s): float(s) for s in recorded},
        "tb_learning_loss": {float(s): v for s, v in recorded.items()},
    }
    monkeypatch.setattr("trackwalker.diagnose.case.by_time", lambda _, metric: by[metric])
    log = LogFacts(Path("job.log"))
    log.steps = SimpleNamespace(losses=told, dialect=None)  # type: ignore[assignment]
    found = check_identity(Recorded([]), log)  # type: ignore[arg-type]
    assert found is not None
    assert found.ok is ok
