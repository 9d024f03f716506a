"""The replay of healthy jobs: it is quiet about these, and would not be about a hang."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackwalker.lab.scenario import load_scenario
from trackwalker.lab.scoring.false_alarms import FalseAlarms, Family, replay
from trackwalker.lab.simulate import simulate


def made(name: str, place: Path) -> Path:
    scenario = load_scenario(name)
    return simulate(scenario.model_copy(update={"world": {**scenario.world, "ray": False}}), place, form="ours").job


@pytest.mark.parametrize("name", ["healthy-plain", "expected-checkpoint"])
def test_a_healthy_job_and_a_save_of_twelve_minutes_are_left_alone(name: str, tmp_path: Path) -> None:
    alarms, seconds = replay(made(name, tmp_path))
    assert alarms == []
    assert seconds > 3600


def test_the_same_replay_calls_a_slow_down(tmp_path: Path) -> None:
    alarms, _ = replay(made("input-stall", tmp_path))
    assert any("slow: steps take" in alarm for alarm in alarms)


def test_the_rate_is_of_all_families_together() -> None:
    found = FalseAlarms([Family("a", 1, 3.0, ["x"]), Family("b", 1, 1.0)])
    assert (found.rate, found.count, found.days) == (0.25, 1, 4.0)
    assert found.at_most > 3 * found.rate
