"""The node sweep: who is called slow, who is not, and what explains it."""

from __future__ import annotations

import random

import pytest
from sweep_simulated import play

from trackwalker.errors import UsageError
from trackwalker.sweep.model import Result, Trial
from trackwalker.sweep.nodes.strategy import build

NODES = [f"n{at:02d}" for at in range(16)]


def cluster(slow=None, noise=0.006, seed=0, dead=(), signals=None):
    """A world of one-node runs: `slow` has each slow node's share of the usual speed."""

    def world(trial: Trial, before: int) -> Result:
        (node,) = trial.nodes
        if node in dead:
            return Result(trial.key, "hang", why="no step for 20 minutes", cause="hang", phase="init")
        rng = random.Random(f"{seed}/{trial.key}")
        score = 1840.0 * (slow or {}).get(node, 1.0) * (1.0 + rng.gauss(0.0, noise))
        seen = {node: signals[node]} if signals else {}
        return Result(
            trial.key, "ok", f"j{trial.key}", score, score * 0.997, score * 1.003, step_s=10.0, steps=25, signals=seen
        )

    return world


def sweep(nodes=NODES, **world):
    return play(build({"model": "tiny", "nodes": list(nodes), "steps": 30}), cluster(**world))


def states(played):
    return {row["node"]: row["state"] for row in played.conclusion.details["nodes"]}


def test_every_node_runs_alone_and_all_in_one_wave():
    first = build({"model": "tiny", "nodes": NODES}).next_trials({})
    assert [trial.nodes for trial in first] == [(node,) for node in NODES]
    assert {trial.config["steps"] for trial in first} == {"30"}


def test_equal_nodes_are_all_healthy_in_sixty_noisy_sweeps():
    wrong = [seed for seed in range(60) if sweep(seed=seed, noise=0.008).conclusion.exclude]
    assert wrong == []


@pytest.mark.parametrize(
    ("share", "state", "least"), [(0.96, "marginal", 17), (0.92, "degraded", 20), (0.5, "degraded", 20)]
)
def test_a_slow_node_gets_its_name_after_a_repeat(share, state, least):
    right = 0
    for seed in range(20):
        played = sweep(slow={"n05": share}, seed=seed)
        assert sum(trial.nodes == ("n05",) for trial in played.jobs) >= 2
        assert set(played.conclusion.exclude) <= ({"n05"} if state == "degraded" else set())
        assert {s for n, s in states(played).items() if n != "n05"} == {"healthy"}
        right += states(played)["n05"] == state
    assert right >= least


def test_a_node_within_the_scatter_of_the_others_is_not_accused_however_it_repeats():
    """Four nodes on two cores: one has a fiftieth of a CPU, the others differ by 18 % and stay where they are."""
    scores = {"n1": 20694.0, "n2": 24615.0, "n3": 4575.0, "n4": 23232.0}
    played = play(
        build({"model": "tiny", "nodes": list(scores)}),
        lambda trial, before: Result(trial.key, "ok", score=scores[trial.nodes[0]], step_s=1.0, steps=10),
    )
    assert sum(trial.nodes == ("n1",) for trial in played.jobs) >= 2
    assert played.conclusion.exclude == ("n3",)
    assert "-5.6 %, which is within the noise" in next(
        row["why"] for row in played.conclusion.details["nodes"] if row["node"] == "n1"
    )


def test_upstreams_example_is_judged_by_the_true_median():
    scores = {"node001": 1842.0, "node002": 1838.0, "node003": 1840.0, "node004": 1695.0}

    def world(trial, before):
        score = scores[trial.nodes[0]]
        return Result(trial.key, "ok", score=score, low=score, high=score, step_s=1.0, steps=10)

    conclusion = play(build({"model": "tiny", "nodes": list(scores)}), world).conclusion
    assert conclusion.exclude == ("node004",)
    assert conclusion.details["median"] == pytest.approx(1839.0, abs=0.1)
    assert any("so few nodes" in line for line in conclusion.caveats)


def test_a_node_that_hangs_is_unhealthy_and_tried_twice():
    played = sweep(dead={"n07"})
    assert states(played)["n07"] == "unhealthy"
    assert played.conclusion.exclude == ("n07",)
    assert "no step for 20 minutes" in played.conclusion.headline
    assert sum(trial.nodes == ("n07",) for trial in played.jobs) == 2


def test_when_no_node_runs_it_is_the_job():
    played = sweep(dead=set(NODES))
    assert "it is the job, not the nodes" in played.stopped
    assert played.conclusion.exclude == ()


@pytest.mark.parametrize(
    ("metric", "usual", "odd", "words"),
    [
        ("gpu_clock_mhz", 1980.0, 1410.0, "GPU clock 1410 MHz, others 1980 MHz"),
        ("gpu_temperature_c", 70.0, 96.0, "GPU temperature 96 °C, others 70 °C"),
        ("gpu_ecc_uncorrectable_per_h", 0.0, 4.0, "uncorrectable memory errors 4/h, others 0/h"),
        ("gpu_power_w", 680.0, 420.0, "GPU power 420 W, others 680 W"),
        ("cpu_wait_share", 0.01, 0.6, "time processes wait for a CPU 0.6, others 0.01"),
    ],
)
def test_the_signal_that_is_out_of_line_explains_the_slow_node(metric, usual, odd, words):
    signals = {node: {"gpu_power_w": 600.0, metric: usual} for node in NODES}
    signals["n03"] = {**signals["n03"], metric: odd}
    played = sweep(slow={"n03": 0.9}, signals=signals)
    assert words in played.conclusion.headline
    assert next(row for row in played.conclusion.details["nodes"] if row["node"] == "n03")["metric"] == metric


def test_a_signal_in_the_wrong_direction_explains_nothing():
    signals = {node: {"gpu_clock_mhz": 1980.0} for node in NODES} | {"n03": {"gpu_clock_mhz": 2400.0}}
    played = sweep(slow={"n03": 0.9}, signals=signals)
    assert played.conclusion.exclude == ("n03",)
    assert "no recorded signal explains it" in played.conclusion.evidence[0]


def test_of_two_nodes_the_slower_is_named_and_the_doubt_too():
    played = sweep(nodes=["a", "b"], slow={"b": 0.85})
    assert played.conclusion.exclude == ("b",)
    assert any("is not known" in line for line in played.conclusion.caveats)


def test_noise_as_large_as_the_difference_accuses_nobody():
    wrong = [seed for seed in range(40) if sweep(seed=seed, noise=0.03).conclusion.exclude]
    assert len(wrong) <= 2


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"model": "tiny", "nodes": []}, "which nodes"),
        ({"model": "tiny", "nodes": ["a"]}, "at least two"),
        ({"model": "tiny", "nodes": ["a", "b", "a"]}, "twice"),
        ({"model": "tiny", "nodes": ["a", "b[1"]}, "no node name"),
        ({"nodes": ["a", "b"]}, "which model"),
        ({"model": "tiny", "nodes": ["a", "b"], "steps": 1}, "measure the compiler"),
    ],
    ids=["none", "one", "twice", "damaged", "no-model", "one-step"],
)
def test_what_cannot_work_is_refused_before_anything_is_submitted(request_, words):
    with pytest.raises(UsageError, match=words):
        build(request_)


def test_no_more_jobs_than_announced():
    for seed in range(10):
        strategy = build({"model": "tiny", "nodes": NODES})
        played = play(strategy, cluster(slow=dict.fromkeys(NODES[:7], 0.9), seed=seed))
        assert len(played.jobs) <= strategy.at_most()
