"""The model sweep: which model runs where, what a commit changed, what is noise, what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from trackwalker.errors import UsageError
from trackwalker.launch.request.models import model_files
from trackwalker.launch.request.validate import Asked as RunAsked
from trackwalker.launch.request.validate import check
from trackwalker.sweep.model import Conclusion, Result, Trial
from trackwalker.sweep.models.cells import Size, assign, parse_node_sets, parse_sizes
from trackwalker.sweep.models.history import ALIKE
from trackwalker.sweep.models.request import Asked, request_of
from trackwalker.sweep.models.strategy import MOST_RUNS, ModelSweep, build
from trackwalker.sweep.plan import Plan, Setup
from trackwalker.sweep.state import Book

Truth = Callable[[str, str, int], float | str]  # commit, size, run -> tokens/s, or how it fails


def request(sizes: Mapping[str, int], commits: list[str], **more: Any) -> dict[str, Any]:
    cells, at = [], 1
    for model, count in sizes.items():
        cells.append({"model": model, "count": count, "nodes": [f"n{i}" for i in range(at, at + count)]})
        at += count
    codes = [{"name": name, "sha": name * 5, "subject": "", "code": f"code/{name}"} for name in commits]
    return {"cells": cells, "codes": codes, "steps": 30, "minutes": 10.0, "config": {}, "env": {}, **more}


def result(key: str, truth: Truth) -> Result:
    commit, rest = key.split("/", 1)
    size, _, run = rest.partition("#")
    said = truth(commit, size, int(run))
    if isinstance(said, str):
        return Result(key, said, job="9", why=f"{size} does not run")  # type: ignore[arg-type]
    return Result(key, "ok", job="7", score=said, low=said * 0.999, high=said * 1.001, steps=20, mfu=0.3)


def drive(sweep: ModelSweep, truth: Truth, seed: int = 0) -> tuple[Conclusion, dict[str, Result]]:
    """Let results land one by one in any order, as the engine would."""
    chance, done = random.Random(seed), dict[str, Result]()
    while not sweep.stop(done) and (wanted := sweep.next_trials(done)):
        trial = chance.choice([trial for trial in wanted if trial.key not in done])
        done[trial.key] = result(trial.key, truth)
        assert len(done) <= sweep.at_most()
    return sweep.conclude(done), done


def verdicts(conclusion: Conclusion) -> dict[tuple[str, str], str]:
    return {(v["commit"], v["size"]): v["verdict"] for v in conclusion.details["verdicts"]}


# Which models, on which nodes


def test_d09_a_full_sweep_is_ten_jobs_and_leaves_no_listed_model_out() -> None:
    sizes = parse_sizes([])
    assert len(sizes) == 10
    assert {Size("grok-2", 8), Size("qwen3-480b-a35b", 8)} <= set(sizes)
    assert {size.model for size in sizes} <= set(model_files())
    made = request_of(Asked(Path("nowhere"), "n[1-8]", setup=dict.fromkeys(ALIKE)))
    sweep = build(made | {"steps": 15, "minutes": 9})
    assert {trial.model for trial in sweep.next_trials({})} == {size.model for size in sizes}
    assert len(sweep.next_trials({})) == 10


@pytest.mark.parametrize("size", parse_sizes([]), ids=lambda size: size.name)
def test_every_usual_size_can_be_planned(size: Size) -> None:
    checked = check(RunAsked(size.model, ["steps=15", "dataset_type=synthetic"], nodes=size.count))
    assert [problem.text for problem in checked.errors] == []


def test_small_sizes_get_disjoint_nodes_and_large_ones_as_far_as_there_are_enough() -> None:
    places = assign(parse_sizes([]), parse_node_sets("n[1-16]"), {})
    small = [set(nodes) for size, nodes in places.items() if size.count < 8]
    assert sum(map(len, small)) == len(set().union(*small)) == 7
    pairs = [(a, b) for a in places.values() for b in places.values() if len(a) == len(b) == 8 and not set(a) & set(b)]
    assert pairs, "sixteen nodes have room for two jobs of eight"
    assert all(len(set(nodes)) == size.count for size, nodes in places.items())


def test_named_sets_are_kept_apart() -> None:
    places = assign(parse_sizes(["llama2-70b", "mixtral:4"]), parse_node_sets("a1/b[1-2]/c[1-4]"), {})
    assert list(places.values()) == [("a1",), ("b1", "b2"), ("c1", "c2", "c3", "c4")]


def test_a_model_keeps_its_nodes_for_ever() -> None:
    size = Size("llama2-70b", 1)
    assert assign([size], [["n1", "n5"]], {size.name: ("n5",)}) == {size: ("n5",)}
    with pytest.raises(UsageError, match=r"has always run on n5, and n5 is not among the nodes.*--reassign"):
        assign([size], [["n1"]], {size.name: ("n5",)})


@pytest.mark.parametrize(
    ("words", "nodes", "wrong"),
    [
        ([], "n[1-7]", "too few nodes for mixtral-8x22b/8N.* 7 are given, 8 are needed"),
        ([], "n[1-4]/m[1-4]", "the largest set has 4"),
        (["llama2-70b:1"], "n1/n[1-2]", "the node sets overlap: n1 is named more than once"),
        (["llama2-70b:1"], "n1,n1", "overlap"),
        (["llama2-70b:1"], "n1//n2", "no nodes"),
        (["lama2-7b"], "n1", "unknown model 'lama2-7b'; did you mean 'llama2-70b'"),
        (["llama2-70b:0"], "n1", "the form is NAME or NAME:N"),
        (["llama2-70b:x"], "n1", "the form is NAME or NAME:N"),
    ],
)
def test_what_cannot_work_is_refused(words: list[str], nodes: str, wrong: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=wrong):
        request_of(Asked(tmp_path, nodes, words))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        ({"load_parameters_path": "/no/such/place"}, "no such checkpoint directory"),
        ({"enable_checkpointing": "True"}, "needs base_output_directory"),
        ({"enable_checkpointing": "True", "base_output_directory": "/no/such/place"}, "no such checkpoint directory"),
    ],
)
def test_a_missing_checkpoint_directory_is_refused(config: dict[str, str], wrong: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=wrong):
        request_of(Asked(tmp_path, "n1", ["tiny:1"], config=config))


# What a commit changed


def test_the_commit_that_made_one_model_slower_and_one_fail_is_named() -> None:
    def truth(commit: str, size: str, run: int) -> float | str:
        if commit == "bad":
            return "failed" if size == "b/1N" else 800.0 if size == "c/2N" else 1002.0
        return 1000.0

    conclusion, done = drive(build(request({"a": 1, "b": 1, "c": 2}, ["old", "bad"])), truth)
    assert verdicts(conclusion) == {
        ("old", "a/1N"): "new", ("old", "b/1N"): "new", ("old", "c/2N"): "new",
        ("bad", "a/1N"): "no change", ("bad", "b/1N"): "breakage", ("bad", "c/2N"): "regression",
    }  # fmt: skip
    assert len(done) == 6, "what is clear is not run again"
    assert conclusion.final
    assert conclusion.headline == "bad breaks b/1N and makes c/2N (-20.0%) slower"
    assert any("c/2N: 800 tokens/s/device on bad, 1,000 on old" in line for line in conclusion.evidence)
    assert [table.title for table in conclusion.tables][:2] == ["Commit old", "Commit bad"]
    json.dumps(asdict(conclusion))


def test_jobs_of_one_model_keep_the_order_of_commits_and_others_need_not_wait() -> None:
    sweep = build(request({"a": 1, "b": 1}, ["x", "y"]))
    assert [trial.key for trial in sweep.next_trials({})] == ["x/a/1N#1", "x/b/1N#1"]
    done = {"x/a/1N#1": Result("x/a/1N#1", "ok", score=1.0)}
    assert [trial.key for trial in sweep.next_trials(done)] == ["x/b/1N#1", "y/a/1N#1"]
    assert sweep.next_trials(done)[1].code == "code/y"
    assert sweep.at_most() == 2 * 2 * MOST_RUNS
    assert sweep.at_most_node_hours() == pytest.approx(2)


def test_a_change_between_the_bands_is_run_again_until_it_is_decided() -> None:
    conclusion, done = drive(
        build(request({"a": 1}, ["x", "y"])), lambda commit, size, run: (970.0 if commit == "y" else 1000.0) + run
    )
    assert verdicts(conclusion)["y", "a/1N"] == "regression"
    assert {"x/a/1N#2", "y/a/1N#2"} <= set(done), "both sides are repeated"
    (verdict,) = [v for v in conclusion.details["verdicts"] if v["commit"] == "y"]
    assert verdict["high"] < 0


def test_what_stays_open_after_all_runs_is_within_the_noise() -> None:
    scores = {"x": [1000.0, 1060.0, 960.0], "y": [970.0, 1000.0, 940.0]}
    conclusion, done = drive(build(request({"a": 1}, ["x", "y"])), lambda commit, size, run: scores[commit][run - 1])
    assert verdicts(conclusion)["y", "a/1N"] == "within noise"
    assert len(done) == 2 * MOST_RUNS
    assert conclusion.headline.startswith("no regression")
    assert any("would have been seen" in line for line in conclusion.caveats)


@pytest.mark.parametrize("seed", range(4))
def test_the_answer_does_not_depend_on_the_order_of_arrival(seed: int) -> None:
    def truth(commit: str, size: str, run: int) -> float:
        return 1000.0 * (1 + 0.02 * random.Random(f"{commit}{size}{run}").gauss(0, 1))

    def swept(seed: int) -> tuple[Conclusion, dict[str, Result]]:
        return drive(build(request({"a": 1, "b": 1, "c": 1}, ["x", "y", "z"])), truth, seed)

    assert swept(seed) == swept(seed + 100)


def test_noise_makes_no_regressions_and_hides_none() -> None:
    """Runs that differ by 1 %: of 200 models without a change at most a few are accused, a drop of 5 % is found."""
    sizes = dict.fromkeys(map(str, range(10)), 1)

    def truth(seed: int, drop: float) -> Truth:
        def tokens(commit: str, size: str, run: int) -> float:
            noise = random.Random(f"{seed}{commit}{size}{run}").gauss(0, 0.01)
            return 1000.0 * (1 - (drop if commit == "y" else 0)) * (1 + noise)

        return tokens

    def called(word: str, drop: float) -> float:
        found = [drive(build(request(sizes, ["x", "y"])), truth(seed, drop))[0] for seed in range(20)]
        words = [w for c in found for (commit, _), w in verdicts(c).items() if commit == "y"]
        return words.count(word) / len(words)

    assert called("regression", 0.0) < 0.01
    assert called("regression", 0.05) > 0.97


# What failed


def test_a_model_that_failed_before_is_not_this_commits_doing() -> None:
    conclusion, _ = drive(
        build(request({"a": 1, "b": 1}, ["x", "y"])), lambda commit, size, run: "oom" if size == "b/1N" else 9.0
    )
    assert verdicts(conclusion)["y", "b/1N"] == "pre-existing"
    assert "breaks" not in conclusion.headline
    assert any("not this commit's doing" in line for line in conclusion.evidence)


def test_a_model_that_runs_again_is_told() -> None:
    conclusion, _ = drive(
        build(request({"a": 1, "b": 1}, ["x", "y"])),
        lambda commit, size, run: "failed" if (commit, size) == ("x", "b/1N") else 9.0,
    )
    assert verdicts(conclusion)["y", "b/1N"] == "fixed"


def test_two_models_that_newly_fail_end_the_sweep() -> None:
    sizes = {"a": 1, "b": 1, "c": 1, "d": 1}
    sweep = build(request(sizes, ["x", "y", "z"]))
    conclusion, done = drive(sweep, lambda commit, size, run: "failed" if commit == "y" and size[0] in "ab" else 9.0)
    assert "y is broken: a and b ran before and fail on it" in sweep.stop(done)
    assert sum(key.startswith("z/") for key in done) < len(sizes), "the rest of the last commit is not run"
    assert "stopped early" in conclusion.headline
    assert conclusion.final


def test_one_model_at_two_sizes_is_one_model() -> None:
    cells = [{"model": "a", "count": n, "nodes": [f"n{n}{i}" for i in range(n)]} for n in (1, 2)]
    cells.append({"model": "b", "count": 1, "nodes": ["m1"]})
    sweep = build(request({}, ["x", "y"]) | {"cells": cells})
    _, done = drive(sweep, lambda commit, size, run: "failed" if commit == "y" and size[0] == "a" else 9.0)
    assert sweep.stop(done) == ""


def test_a_commit_on_which_everything_fails_ends_the_sweep() -> None:
    sweep = build(request({"a": 1, "b": 1}, ["x", "y"]))
    _, done = drive(sweep, lambda commit, size, run: "failed")
    assert sweep.stop(done).startswith("every model fails on x:")
    assert not any(key.startswith("y/a/1N") for key in done) or len(done) <= 3


def test_a_cancelled_run_says_nothing_about_the_code() -> None:
    conclusion, _ = drive(
        build(request({"a": 1, "b": 1}, ["x", "y"])),
        lambda commit, size, run: "cancelled" if (commit, size) == ("y", "b/1N") else 9.0,
    )
    assert verdicts(conclusion)["y", "b/1N"] == "open"
    assert "b/1N was not run on y" in conclusion.caveats


@pytest.mark.parametrize(
    "change",
    [{"cells": []}, {"codes": []}, {"steps": 1}, {"config": {"steps": "1"}}, {"cells": [{"model": "a"}]}],
    ids=["no-cells", "no-codes", "one-step", "one-step-behind-words", "half-a-cell"],
)
def test_a_request_that_cannot_work_is_no_sweep(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        build(request({"a": 1}, ["x"]) | change)


# Across sweeps


def saved(workspace: Path, made: dict[str, Any], name: str, truth: Truth) -> None:
    """A finished sweep in the workspace."""
    plan = Plan(name, "models", made, Setup("slurm", str(workspace)), created=0.0)
    plan.save()
    sweep = build(made)
    _, done = drive(sweep, truth)
    with Book(plan.folder) as book:
        for at, (key, landed) in enumerate(done.items()):
            book.intend(f"{name}.{at}", Trial(key, "m", ("n1",)), 1, 0.0)
            book.write("result", 0.0, tag=f"{name}.{at}", result=asdict(landed), again="", stop="")


def test_sweeps_accumulate_on_the_same_nodes(tmp_path: Path) -> None:
    setup = {key: getattr(Setup("slurm", ""), key) for key in ALIKE}

    def asked(nodes: str, **more: Any) -> dict[str, Any]:
        made = request_of(Asked(tmp_path, nodes, ["tiny:1", "tiny-moe:1"], setup=setup, **more))
        made["codes"] = [{"name": more.get("name", "c"), "sha": "", "subject": "", "code": ""}]
        return made | {"steps": 30, "minutes": 1.0, "config": more.get("config", {})}

    first = asked("n[1-2]")
    assert first["history"] == []
    first["codes"][0]["name"] = "monday"
    saved(tmp_path, first, "models-20260101-000000-aaaa", lambda commit, size, run: 1000.0)
    again = asked("n[0-9]")
    assert again["cells"] == first["cells"], "more nodes are there, and each model keeps its own"
    assert [column["name"] for column in again["history"]] == ["monday"]
    conclusion, _ = drive(build(again), lambda commit, size, run: 1000.0 if size == "tiny/1N" else 700.0)
    assert verdicts(conclusion) == {("c", "tiny/1N"): "no change", ("c", "tiny-moe/1N"): "regression"}
    across = conclusion.tables[-1]
    assert across.columns == ("model", "monday (models-20260101-000000-aaaa)", "c")
    assert across.rows[1] == ("tiny-moe/1N", "1,000", "700 (-30.0%)")
    other = asked("n[0-9]", config={"per_device_batch_size": "8"})
    assert other["history"] == [], "another batch size is another measurement"
    moved = asked("n[0-9]", reassign=True)
    assert moved["history"] == []


def test_the_same_commit_in_an_earlier_sweep_is_a_repetition(tmp_path: Path) -> None:
    earlier = {"name": "x", "sha": "x" * 5, "subject": "", "sweep": "models-1", "cells": {
        "a/1N": [{"status": "ok", "job": "1", "score": 1000.0}]}}  # fmt: skip
    sweep = build(request({"a": 1}, ["x"], history=[earlier]))
    conclusion, _ = drive(sweep, lambda commit, size, run: 1010.0)
    assert conclusion.details["noise"]["repeats"] == 1
    assert conclusion.details["noise"]["sigma"] < 0.011
