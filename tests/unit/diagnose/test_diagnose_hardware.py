"""Hardware profiles: asked only of a run that has nothing in itself to compare with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trackwalker.diagnose.causes.detect import compared
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.causes.playbook import Test as Question
from trackwalker.diagnose.deviations.hardware import held_back_everywhere, profiles
from trackwalker.diagnose.episodes.symptoms import Span, Symptoms
from trackwalker.stats.detectors import Finding

STEADY = Symptoms(frozenset(), windows={"steady": [Span(1000.0, 4000.0)]})


def case(name: str, power: float, clock: float, busy: float = 99.0) -> Any:
    """A job whose recording gives these medians."""

    def instant(query: str, at: float) -> list[Any]:
        if query.startswith("last_over_time"):
            return [SimpleNamespace(value=99.0, labels={"GpuDeviceName": name})]
        value = power if "power" in query else clock if "clock" in query else busy
        return [SimpleNamespace(value=value, labels={})]

    metrics = frozenset({"ray_node_gpus_utilization", "hw_gpu_power_watts", "hw_gpu_clock_mhz"})
    return SimpleNamespace(telemetry=SimpleNamespace(metrics=lambda: metrics, instant=instant))


@pytest.mark.parametrize(
    ("power", "clock", "busy", "held"),
    [
        (600.0, 1600.0, 99.0, True),
        (905.0, 2100.0, 99.0, False),
        pytest.param(600.0, 2300.0, 99.0, False, id="a-light-load"),
        pytest.param(1380.0, 1600.0, 99.0, False, id="at-its-own-limit"),
        pytest.param(600.0, 1600.0, 60.0, False, id="not-at-work"),
    ],
)
def test_both_power_and_clock_far_below_at_full_work(power: float, clock: float, busy: float, held: bool) -> None:
    book = EvidenceBook()
    answer = held_back_everywhere(case("AMD_Instinct_MI355X", power, clock, busy), STEADY, book)
    assert answer.fired is held
    assert [item.says for item in book.items] == (
        ["no MI355X draws more than 600 W at work", "no MI355X runs faster than 1600 MHz"] if held else []
    )


def test_an_unknown_card_or_no_steady_stretch_says_nothing() -> None:
    assert held_back_everywhere(case("Tesla T4", 60.0, 500.0), STEADY, EvidenceBook()).fired is None
    assert held_back_everywhere(case("NVIDIA H200", 60.0, 500.0), Symptoms(frozenset()), EvidenceBook()).fired is None


def test_the_issue_names_these_kinds() -> None:
    assert set(profiles()) >= {"MI300X", "MI355X", "H100", "H200", "B200"}
    assert all(p.busy_w < p.limit_w for p in profiles().values())


def test_of_several_kinds_of_cards_a_sentence_speaks_of_one() -> None:
    test = Question(
        id="limit", role="require", detector="lows", query="q", metrics=["hw_gpu_power_limit_watts"], says="s"
    )
    mixed: Any = SimpleNamespace(kinds={"a": "MI300X", "b": "MI300X", "c": "H100"})
    values = {"a": 480.0, "b": 750.0, "c": 700.0}
    assert compared(test, mixed, values, Finding(True, ("a",))) == {"a": 480.0, "b": 750.0}
    assert compared(test, mixed, values, Finding(False)) == values
