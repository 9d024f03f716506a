"""The network sweep on simulated clusters: bad nodes, bad links, switches, noise, and how many jobs it takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from bisection import bisect
from fabric_simulated import Fabric, random_fabric, switch_fabric
from sweep_simulated import play

from trackwalker.errors import UsageError
from trackwalker.stats.groups import Fit, Timing, between_runs, fit
from trackwalker.sweep.model import Result, Template
from trackwalker.sweep.network.design import Exchange, Faults, cover, without_faults
from trackwalker.sweep.network.report import Findings, _table, conclude, spans
from trackwalker.sweep.network.strategy import NetworkSweep, build


def names(count):
    return [f"n{at:03d}" for at in range(count)]


def sweep(fabric, expect=None):
    request = {"model": "tiny", "nodes": list(fabric.names), "steps": 30}
    return play(build(request if expect is None else {**request, "expect": expect}), fabric)


def accused(conclusion):
    return set(conclusion.exclude), {frozenset(pair) for pair in conclusion.pairs}


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 8, 13, 16, 30, 64])
def test_the_cover_has_every_link_in_a_group_and_all_groups_are_of_one_size(count):
    groups = cover(count)
    assert len({len(group) for group in groups}) == 1
    assert {pair for group in groups for pair in combinations(group, 2)} == set(combinations(range(count), 2))
    assert len(groups) <= 6


def test_a_group_with_a_bad_link_becomes_two_that_keep_every_other_link():
    faults = Faults(nodes=frozenset({3}), links=frozenset({(0, 1)}))
    variants = without_faults((0, 1, 2, 3), faults, 8)
    assert [len(v) for v in variants] == [4, 4]
    assert all(3 not in v and not {0, 1} <= set(v) for v in variants)
    assert {0, 2} <= set(variants[0]) | set(variants[1])


def test_a_walk_goes_from_the_clean_group_to_the_slow_one_and_keeps_the_size():
    way = Exchange((0, 1, 2, 3), (2, 3, 4, 5))
    assert way.at(0) == (0, 1, 2, 3)
    assert way.at(2) == (2, 3, 4, 5)
    assert {len(way.at(place)) for place in range(3)} == {4}


@pytest.mark.parametrize("count", [8, 64])
def test_a_bad_node_is_told_from_a_bad_link(count):
    all_names = names(count)
    node = sweep(Fabric(all_names, nodes={all_names[5]: 0.08})).conclusion
    assert accused(node) == ({all_names[5]}, set())
    link = frozenset((all_names[1], all_names[count - 2]))
    pair = sweep(Fabric(all_names, links={link: 0.08})).conclusion
    assert accused(pair) == (set(), {link})
    assert "both nodes are good with others" in pair.headline


@pytest.mark.parametrize(("count", "seeds"), [(8, 5), (16, 3), (64, 2), (128, 1)])
def test_random_faults_are_named_exactly_with_fewer_jobs_than_bisection(count, seeds):
    """A sample of bench/sweep_network.py, which has 100 seeds of each size and others than these."""
    jobs = reference = 0
    for seed in range(1005, 1005 + seeds):
        fabric = random_fabric(count, seed)
        played = sweep(fabric)
        assert accused(played.conclusion) == (set(fabric.nodes), set(fabric.links)), f"seed {seed}"
        jobs += len(played.jobs)
        reference += len(play(_Unbounded(fabric.names), fabric).jobs)
    assert jobs < reference


class _Unbounded(NetworkSweep):
    """Bisection with the same judgement and confirmation."""

    def __init__(self, nodes):
        super().__init__(Template("tiny", tuple(nodes), {"steps": "30"}), search=bisect)

    def at_most(self):
        return 10_000


def test_clusters_without_a_fault_accuse_nobody():
    for seed in range(12):
        played = sweep(Fabric(names(16), noise=0.01, seed=seed))
        assert accused(played.conclusion) == (set(), set()), f"seed {seed}"
        assert "alike" in played.conclusion.headline


def test_a_switch_is_escalated_and_no_node_is_blamed():
    played = sweep(switch_fabric(64, seed=1))
    assert accused(played.conclusion) == (set(), set())
    assert "something they share" in played.conclusion.headline
    assert len(played.conclusion.details["shared"]) >= 3


def test_when_all_are_slow_alike_only_the_expected_speed_tells():
    fabric = Fabric(names(8))
    usual = sweep(fabric).conclusion
    assert any("--expect" in line for line in usual.caveats)
    slow = sweep(fabric, expect=900.0).conclusion
    assert "something all share" in slow.headline
    assert accused(slow) == (set(), set())


def test_a_link_that_is_down_is_named_by_the_jobs_that_hang():
    fabric = Fabric(names(16), noise=0.005)
    dead = {"n002", "n011"}

    def world(trial, before):
        hangs = dead <= set(trial.nodes)
        return Result(trial.key, "hang", cause="hang", phase="first-step") if hangs else fabric(trial, before)

    conclusion = play(build({"model": "tiny", "nodes": fabric.names}), world).conclusion
    assert accused(conclusion) == (set(), {frozenset(dead)})
    assert "its jobs fail" in conclusion.headline


def test_the_same_results_in_another_order_give_the_same_jobs_and_answer():
    fabric = random_fabric(32, 7)
    request = {"model": "tiny", "nodes": fabric.names}
    one, two = play(build(request), fabric, seed=1), play(build(request), fabric, seed=2, at_once=1)
    assert {trial.key for trial in one.jobs} == {trial.key for trial in two.jobs}
    assert one.conclusion.headline == two.conclusion.headline


def test_a_cancelled_job_is_run_again_and_says_nothing():
    fabric = Fabric(names(8), nodes={"n003": 0.2})
    first = build({"model": "tiny", "nodes": fabric.names}).next_trials({})[0].key

    def world(trial, before):
        result = fabric(trial, before)
        return replace(result, status="cancelled", score=None, step_s=None) if trial.key == first else result

    played = play(build({"model": "tiny", "nodes": fabric.names}), world)
    assert accused(played.conclusion) == ({"n003"}, set())


def test_it_says_how_many_jobs_noise_cost_and_keeps_to_what_it_announced():
    fabric = Fabric(names(64), nodes={"n009": 0.1}, links={frozenset(("n030", "n055")): 0.2})
    strategy = build({"model": "tiny", "nodes": fabric.names})
    played = play(strategy, fabric)
    details = played.conclusion.details
    assert details["jobs"] == len(played.jobs) <= strategy.at_most()
    repeats = details["jobs"] - details["jobs_without_noise"]
    assert repeats > 0
    assert f"{details['jobs']} jobs, {repeats} of them against noise" in played.conclusion.evidence


def test_half_way_it_names_what_is_proven_and_is_not_final():
    fabric = Fabric(names(32), nodes={"n004": 0.3})
    strategy = build({"model": "tiny", "nodes": fabric.names})
    played = play(strategy, fabric)
    part = dict(list(played.done.items())[:4])
    early = strategy.conclude(part)
    assert not early.final
    assert early.exclude == ()
    assert played.conclusion.final


def test_of_two_nodes_nothing_can_be_told():
    conclusion = sweep(Fabric(names(2), nodes={"n001": 0.5})).conclusion
    assert accused(conclusion) == (set(), set())
    assert "nothing of its size to compare" in conclusion.headline


def test_three_nodes_are_enough_to_tell_a_node_from_a_link():
    assert accused(sweep(Fabric(names(3), nodes={"n001": 0.2})).conclusion)[0] == {"n001"}
    link = frozenset(("n000", "n002"))
    assert accused(sweep(Fabric(names(3), links={link: 0.2})).conclusion) == (set(), {link})


def test_jobs_of_one_wave_are_on_nodes_of_their_own():
    first = build({"model": "tiny", "nodes": names(16)}).next_trials({})
    assert not set(first[0].nodes) & set(first[1].nodes)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"model": "tiny", "nodes": ["a"]}, "at least two nodes"),
        ({"model": "tiny", "nodes": ["a", "b", "b"]}, "twice"),
        ({"model": "tiny", "nodes": ["a", "b"], "steps": 1}, "measure the compiler"),
        ({"model": "tiny", "nodes": ["a", "b"], "expect": -3}, "above 0"),
    ],
    ids=["one", "twice", "one-step", "expect"],
)
def test_what_cannot_work_is_refused_before_anything_is_submitted(request_, words):
    with pytest.raises(UsageError, match=words):
        build(request_)


def test_the_model_gives_each_fault_its_own_share():
    """Log times: the level of the size, the slowest node and the slowest link; a disturbed run does not move it."""
    node, link = frozenset({1}), frozenset({2, 3})
    groups = [{0, 1}, {1, 4}, {2, 3}, {0, 2}, {0, 3}, {4, 5}, {0, 5}, {1, 2, 3}, {0, 4, 5}, {0, 2, 5}]
    timings = [
        Timing(frozenset(g), 0.3 * (len(g) == 3) + 0.1 * (1 in g) + 0.2 * ({2, 3} <= g) + 0.5 * (g == {0, 5}))
        for g in groups
    ]
    model = fit(timings, [node, link])
    assert model.effects[node] == pytest.approx(0.1)
    assert model.effects[link] == pytest.approx(0.2)
    assert model.expected(frozenset({1, 2, 3})) == pytest.approx(0.6)


def test_noise_is_read_from_repeats_and_one_disturbed_run_is_not_noise():
    assert between_runs([]) == pytest.approx(0.008)
    calm = [[0.0, 0.001 * (-1) ** k] for k in range(40)]
    assert between_runs(calm) < 0.005
    assert between_runs([*calm, [0.0, 0.3]]) < 0.005
    assert between_runs([[0.0, 0.04 * (-1) ** k] for k in range(40)]) > 0.02


def test_groups_are_shown_as_spans_of_the_node_list():
    assert spans(names(9), (0, 1, 2, 3, 5, 7, 8)) == "n000..n003, n005, n007, n008"


def test_the_table_calls_a_pair_good_or_slow_by_the_interval_of_its_own_figure() -> None:
    seconds = {(0, 1): [1.0, 1.003], (2, 3): [1.086], (0, 2): [0.985], (1, 3): [1.04], (0, 3): [1.002], (1, 2): []}
    done = {
        f"{a}-{b}#{at}": Result(f"{a}-{b}#{at}", "ok", "7", score=100.0 / s, step_s=s)
        for (a, b), runs in seconds.items()
        for at, s in enumerate(runs)
    }
    done["1-2#0"] = Result("1-2#0", "failed", "8", cause="peer-died")
    groups = {pair: [f"{pair[0]}-{pair[1]}#{at}" for at in range(2)] for pair in seconds}
    # What the search thought at the time, and got wrong.
    slow = {(0, 1): False, (2, 3): False, (0, 2): True, (1, 3): False, (0, 3): False, (1, 2): True}
    found = Findings(names(4), Faults(), True, False, done, groups, slow, 0.01, 2)
    model = Fit({2: 0.0}, {}, 0.01)
    said = {row[0]: row[-1] for row in _table(found, model).rows}
    assert said == {
        "n000, n001": "good", "n002, n003": "slow", "n000, n002": "good", "n001, n003": "slow", "n000, n003": "good",
        "n001, n002": "fails",
    }  # fmt: skip
    unsure = Findings(names(4), Faults(), True, False, done, groups, slow, 0.03, 2)
    assert {row[0]: row[-1] for row in _table(unsure, model).rows}["n001, n003"] == "unclear"


def test_noise_without_a_repeat_is_no_figure() -> None:
    done = {"a#0": Result("a#0", "ok", "7", score=1.0, step_s=1.0)}
    once = Findings(names(4), Faults(), False, False, done, {(0, 1): ["a#0"]}, {(0, 1): False}, 0.008, 2)
    assert conclude(once).details["noise_pct"] is None
