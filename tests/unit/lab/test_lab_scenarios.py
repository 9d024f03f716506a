"""Scenarios: what a seed draws, what a file may say, and that every shipped one can be made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import shipped

from conftest import tree_hash
from trackwalker.errors import UsageError
from trackwalker.lab.faults import FAULTS
from trackwalker.lab.scenario import Draws, Scenario, Truth, load_scenario, post_cases, scenario_folder
from trackwalker.lab.scoring.groups import group_of
from trackwalker.lab.simulate import simulate
from trackwalker.lab.variants import VARIANTS

HOSTS = [f"h{i}" for i in range(8)]
SHIPPED = [*shipped.SHIPPED, *post_cases()]


def draws(seed: int = 1, **rules: object) -> Draws:
    out = Draws(HOSTS, 8, np.random.default_rng(seed))
    out.bind(rules)
    return out


def test_hosts_are_never_drawn_twice() -> None:
    for seed in range(20):
        values = draws(seed, a={"hosts": 3}, b={"hosts": 3}, c={"hosts": 2}).values
        assert sorted([*values["a"], *values["b"], *values["c"]]) == HOSTS


def test_the_head_can_be_spared() -> None:
    assert all("h0" not in draws(seed, a={"hosts": 4, "not_head": True}).values["a"] for seed in range(20))


def test_numbers_and_choices_stay_in_their_range() -> None:
    for seed in range(20):
        values = draws(
            seed, x={"between": [1.2, 1.4]}, n={"between": [3, 5]}, g={"gpu": 1}, c={"choose": ["a", "b"]}
        ).values
        assert 1.2 <= values["x"] <= 1.4
        assert values["n"] in (3, 4, 5)
        assert values["g"] in range(8)
        assert values["c"] in ("a", "b")


def test_names_are_filled_in_lists_and_in_texts() -> None:
    held = draws(a={"hosts": 1}, card=3, more={"hosts": 2})
    (host,) = held.values["a"]
    assert held.fill({"hosts": ["$a", "$more"], "gpus": ["$a/$card"], "n": "$card", "text": "x"}) == {
        "hosts": [host, *held.values["more"]],
        "gpus": [f"{host}/3"],
        "n": 3,
        "text": "x",
    }


def test_too_few_hosts_is_one_line() -> None:
    with pytest.raises(UsageError, match="use more nodes"):
        draws(a={"hosts": 9})


def lacks(scenario: Scenario) -> Iterator[str]:
    """What is not as it should be in a scenario."""
    if not {f["kind"] for f in scenario.faults} <= set(FAULTS):
        yield "a fault that nobody can make"
    truth = Truth(**Draws(HOSTS * 40, 8, np.random.default_rng(1)).fill(scenario.truth))
    if group_of(truth) == "other":
        yield "a cause that docs/reference/verdict.md does not know"
    if bool(truth.roots) == (truth.outcome in ("healthy", "insufficient-evidence")):
        yield "roots where there are none, or none where there are some"
    if {r.cause for r in truth.roots} & set(truth.must_not):
        yield "a root that must not be named"


def test_shipped_scenarios_are_whole() -> None:
    assert len(SHIPPED) > 900
    assert [(scenario.family, what) for scenario in SHIPPED for what in lacks(scenario)] == []


def test_a_scenario_lies_in_the_folder_of_its_trouble() -> None:
    """A kind of incident, then its cause; where there are several causes or none, the kind alone."""
    wrong, files = [], {path.stem: path for path in scenario_folder().rglob("*.yml")}
    for scenario in shipped.SHIPPED:
        place = files[scenario.family].parent.relative_to(scenario_folder()).as_posix()
        truth = Truth(**Draws(HOSTS * 40, 8, np.random.default_rng(1)).fill(scenario.truth))
        cause = f"/{truth.roots[0].cause}" if len(truth.roots) == 1 else ""
        kind = {"observer": "recording", "insufficient-evidence": "undecidable"}.get(group_of(truth), group_of(truth))
        if place != kind.replace(" ", "-") + cause:
            wrong.append((scenario.family, place))
    assert wrong == []


def test_a_new_name_changes_no_number() -> None:
    """Draws are seeded by the name that a scenario had first."""
    named = load_scenario("hog-then-port")
    assert (named.origin, named.seed) == ("ak-hog-then-port", sum(b"ak-hog-then-port"))
    assert load_scenario("rdma-phased").seed == sum(b"rdma-phased")


def test_file_names_are_family_names() -> None:
    for scenario in SHIPPED:
        assert load_scenario(scenario.family).family == scenario.family


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("family: x\nsplit: tune\nabout: y\ntruth: {outcome: healthy}\nfaults: [{kind: meteor}]", "no fault 'meteor'"),
        ("family: x\nsplit: tune\nabout: y\ntruth: {outcome: healthy}\nworld: {moons: 2}", "moons"),
        ("family: x\nsplit: tune\nabout: y\ntruth: {outcome: healthy}\nfaults: [{kind: nic}]", "fault 'nic'"),
        ("family: x\nsplit: maybe\nabout: y\ntruth: {outcome: healthy}", "split"),
        ("family: [", "x.yml"),
    ],
)
def test_a_wrong_scenario_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "x.yml").write_text(text)
    with pytest.raises(UsageError, match=says):
        simulate(load_scenario(str(tmp_path / "x.yml")), tmp_path / "out")


def small(out: Path, seed: int = 1, variant: str = "") -> Path:
    scenario = load_scenario("gpu-thermal-throttle")
    scenario.world |= {"nodes": 2, "gpus": 2, "steps": 60}
    return simulate(scenario, out, seed, **({"variant": VARIANTS[variant]} if variant else {})).workspace


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first = tree_hash(small(tmp_path / "a"))
    assert tree_hash(small(tmp_path / "b")) == first
    assert tree_hash(small(tmp_path / "c", seed=2)) != first


def test_a_view_of_a_running_job_has_no_end(tmp_path: Path) -> None:
    (whole,) = small(tmp_path / "a").glob("*.log")
    (cut,) = small(tmp_path / "b", variant="live-cut").glob("*.log")
    assert "JOB SUMMARY" in whole.read_text()
    assert "JOB SUMMARY" not in cut.read_text()
    assert "completed step: 53," in cut.read_text()
    assert "completed step: 54," not in cut.read_text()


def test_conditions_make_other_cases_only() -> None:
    plain, walltime = load_scenario("gpu-thermal-throttle"), load_scenario("walltime")
    assert VARIANTS["nodes-96"].fits(plain)
    assert not VARIANTS["live-cut"].fits(walltime), "before its end the job has another truth"
    assert not VARIANTS["drop-metrics"].fits(load_scenario("slow-without-telemetry"))
    truth = Truth(outcome="incident", status=["cancelled"])
    assert VARIANTS["live-cut"].truth(truth).status == ["running"]
    assert VARIANTS["drop-metrics"].truth(truth).or_abstain
