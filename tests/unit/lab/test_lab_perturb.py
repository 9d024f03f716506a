"""Perturbed worlds: the same incident elsewhere, never another one."""

from __future__ import annotations

from shipped import SHIPPED

from trackwalker.lab.perturb import named, perturbed, stressed
from trackwalker.lab.scenario import Scenario, Truth, load_scenario
from trackwalker.lab.scoring.cases import make_suite


def test_a_number_gives_the_same_world_again_and_another_number_another() -> None:
    scenario = load_scenario("rdma-phased")
    assert perturbed(scenario, 3) == perturbed(scenario, 3) == named(scenario, "world-3")
    assert perturbed(scenario, 3) != perturbed(scenario, 4)
    assert named(scenario, "stress-3") == stressed(scenario, 3)
    assert named(scenario, "clock-shift") is None


def still_holds(scenario: Scenario, number: int) -> bool:
    """Whether the accused are few and the order is what it was in a perturbed world."""
    drawn = sum(int(r["hosts"]) for r in scenario.draw.values() if isinstance(r, dict) and "hosts" in r)
    world = perturbed(scenario, number)
    nodes = world.nodes or int(scenario.world.get("nodes", 8))
    places = [world.fault({"begin": p})["begin"] for p in (0.0, 0.2, 0.6, 1.0)]
    few = drawn < nodes or nodes == scenario.world.get("nodes", 8)
    return few and places == sorted(places) and (places[0], places[-1]) == (0.0, 1.0)


def test_the_accused_stay_few_and_the_order_stays() -> None:
    assert len(SHIPPED) > 900
    assert [(s.family, n) for s in SHIPPED for n in range(1, 6) if not still_holds(s, n)] == []


def test_a_fault_is_made_larger_and_smaller_but_stays_visible() -> None:
    scenario = load_scenario("cpu-contention")
    worlds = [perturbed(scenario, n) for n in range(1, 30)]
    factors = [w.fault({"factor": 1.3})["factor"] for w in worlds]
    assert min(factors) < 1.2 < 1.45 < max(factors)
    assert all(w.fault({"factor": 1.3})["factor"] - 1 >= 6 * w.noise for w in worlds)
    assert all(w.fault({"factor": 1.03})["factor"] >= 1.03 for w in worlds)  # small already: never smaller


def test_step_numbers_and_other_settings_are_left_alone() -> None:
    world = perturbed(load_scenario("cpu-contention"), 2)
    assert world.fault({"kind": "crash", "at": 201, "code": 137}) == {"kind": "crash", "at": 201, "code": 137}


def test_in_a_harsh_world_metrics_are_missing_and_abstaining_is_right() -> None:
    scenario = load_scenario("gpu-thermal-throttle")
    harsh = stressed(scenario, 1)
    assert harsh.dropped(1)
    assert harsh.truth(Truth(outcome="incident")).or_abstain
    assert not perturbed(scenario, 1).truth(Truth(outcome="incident")).or_abstain
    assert not perturbed(scenario, 1).dropped(1)


def test_a_suite_with_worlds() -> None:
    cases = make_suite(["gpu-thermal-throttle"], 1, worlds=3, stress=2)
    assert [c.variant for c in cases] == ["", "world-1", "world-2", "world-3", "stress-1", "stress-2"]
    assert len({c.seed for c in cases}) == 4  # a harsh world is the same draw made harder
