"""The batch sweep finds the fastest size between a regression and the end of the memory, in few jobs."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trackwalker.errors import UsageError
from trackwalker.launch.request.validate import Asked
from trackwalker.sweep.batch.request import Wanted, request_of
from trackwalker.sweep.batch.strategy import BatchSweep, build
from trackwalker.sweep.model import Conclusion, Result, Trial

BATCH = "per_device_batch_size"
F12 = {8: 1190, 12: 1339, 16: 1400, 20: 1371}
MFU = {8: 0.1192, 12: 0.1342, 16: 0.1402, 20: 0.1373}


def request(**more: Any) -> dict[str, Any]:
    param = {"name": BATCH, "start": 16, "step": 4, "growth": 1.5, "most": 8}
    return {"model": "m", "nodes": ["n1"], "steps": 30, "params": [param], **more}


def searched(**space: Any) -> BatchSweep:
    return build(request(params=[{"name": BATCH, **space}]))


class Curve:
    """A cluster on which throughput depends on the batch alone."""

    def __init__(self, scores: Any, ceiling: float = math.inf, sd: float = 0.0, seed: int = 0) -> None:
        self._score = (
            scores if callable(scores) else lambda size: float(np.interp(size, list(scores), [*scores.values()]))
        )
        self._ceiling, self._sd, self._rng = ceiling, sd, random.Random(seed)
        self.ran: list[str] = []

    def truth(self, size: int) -> float:
        return self._score(size) if size < self._ceiling else 0.0

    def __call__(self, trial: Trial) -> Result:
        assert trial.key not in self.ran, "no job runs twice"
        self.ran.append(trial.key)
        size, job = int(trial.config[BATCH]), str(1233 + len(self.ran))
        if size >= self._ceiling:
            return Result(trial.key, "oom", job, why="RESOURCE_EXHAUSTED", phase="compile")
        score = self._score(size) * (1 + self._rng.gauss(0, self._sd))
        return Result(trial.key, "ok", job, score=score, mfu=MFU.get(size))


def finish(sweep: BatchSweep, world: Any) -> tuple[Conclusion, dict[str, Result]]:
    done: dict[str, Result] = {}
    while not sweep.stop(done) and (wanted := sweep.next_trials(done)):
        for trial in wanted:
            done[trial.key] = world(trial)
    assert len(done) <= sweep.at_most()
    return sweep.conclude(done), done


def test_the_optimum_of_the_reference_sweep_is_found_in_four_sizes() -> None:
    world = Curve(F12, ceiling=24)
    found, done = finish(build(request(memory="memory model: room for about 21")), world)
    assert found.recommend == {BATCH: "16"}
    assert found.final
    assert {k.partition("=")[2].partition("#")[0] for k in done} == {"12", "16", "20", "24"}
    assert len(done) <= 8  # with repetitions of 16 and 20, two per cent apart
    assert "16 is the fastest: 1,400 tokens/s/device" in found.headline
    (table,) = found.tables
    assert [row[0] for row in table.rows] == ["12", "16", "20", "24"]
    assert [row[-1] for row in table.rows] == ["ok", "ok, fastest", "ok", "out of memory (RESOURCE_EXHAUSTED)"]
    assert table.rows[1][4] == "14.02%"
    assert table.rows[2][3] == "-2.1%"
    assert "memory model: room for about 21" in found.evidence
    assert any("24 is too large: out of memory in compile (job 1235)" in e for e in found.evidence)
    (plot,) = found.plots
    assert (plot.x, plot.marked) == ((12.0, 16.0, 20.0, 24.0), (1,))
    assert plot.y[3] is None


@pytest.mark.parametrize("start", [4, 8, 12, 20, 24, 32, 64])
def test_the_reference_optimum_is_found_from_any_first_guess(start: int) -> None:
    found, _ = finish(searched(start=start, step=4, growth=1.5, most=8), Curve({4: 900, **F12}, ceiling=24))
    assert found.recommend == {BATCH: "16"}


def curve(seed: int) -> tuple[Curve, int]:
    """A random curve with one top, and a first guess that errs by up to a quarter and more."""
    rng = random.Random(seed)
    top, ceiling = rng.uniform(3, 40), rng.uniform(6, 60)
    rise, fall = rng.uniform(0.2, 1.0), rng.uniform(0.05, 0.6)
    knee = top * rng.uniform(0.1, 0.5)

    def score(size: int) -> float:
        if size <= top:
            return 1000 * (size / (size + rise * knee)) * (top + rise * knee) / top
        return 1000 * (1 - fall * (size / top - 1) / (size / top))

    guess = max(1, round(0.75 * ceiling * rng.uniform(0.7, 1.4)))
    return Curve(score, ceiling, rng.uniform(0.002, 0.008), seed), guess


@pytest.mark.parametrize("known", [True, False], ids=["memory known", "memory unknown"])
def test_on_random_curves_the_recommended_size_is_as_fast_as_any_that_fits(known: bool) -> None:
    lost, jobs = [], []
    for seed in range(60):
        world, guess = curve(seed)
        space = {"start": guess, "growth": 1.5, "most": 8} if known else {"start": 2, "growth": 2.0, "most": 10}
        found, done = finish(searched(**space), world)
        best = max(world.truth(size) for size in range(1, 80))
        lost.append(1 - world.truth(int(found.recommend[BATCH])) / best)
        jobs.append(len(done))
        assert sum(r.status == "oom" for r in done.values()) <= 4
    assert np.quantile(lost, 0.9) < 0.02, "nine in ten within two per cent of the best"
    assert max(lost) < 0.05
    assert np.median(jobs) <= 11


def test_of_sizes_that_are_equally_fast_the_smaller_one_is_recommended_and_that_is_said() -> None:
    world = Curve({8: 1200, 16: 1400, 24: 1401, 32: 1300}, ceiling=32, sd=0.004, seed=3)
    found, done = finish(searched(start=24, step=8, growth=1.5), world)
    assert found.recommend == {BATCH: "16"}
    assert "24 is not faster beyond noise, and the smaller one leaves more memory" in found.headline
    assert sum(key.startswith(f"{BATCH}=16#") for key in done) == 3
    assert any("no difference that counts" in e for e in found.evidence)


def test_a_clear_winner_is_not_repeated() -> None:
    _, done = finish(searched(start=16, step=8, growth=1.5), Curve({8: 900, 16: 1400, 24: 1000}, ceiling=40))
    assert all(key.endswith("#1") for key in done)


def test_without_an_estimate_sizes_double_until_they_fall_or_do_not_fit() -> None:
    world = Curve(lambda size: 1000 * size / (size + 4), ceiling=50)
    found, _ = finish(searched(start=4), world)
    assert [int(k.partition("=")[2].partition("#")[0]) for k in world.ran[:5]] == [4, 8, 16, 32, 64]
    assert int(found.recommend[BATCH]) in range(40, 50)


def test_where_the_weights_do_not_fit_the_smallest_size_is_asked_at_once() -> None:
    sweep = searched(start=24, growth=1.5)
    done = {f"{BATCH}=24#1": Result(f"{BATCH}=24#1", "oom", phase="init")}
    assert [t.config[BATCH] for t in sweep.next_trials(done)] == ["1"]
    done[f"{BATCH}=1#1"] = Result(f"{BATCH}=1#1", "oom", phase="init")
    assert sweep.next_trials(done) == []
    found = sweep.conclude(done)
    assert (found.final, found.recommend) == (True, {})
    assert "No value" in found.headline


def test_a_hang_that_came_back_is_a_bound_and_one_before_any_memory_is_told_apart() -> None:
    def world(trial: Trial) -> Result:
        size = int(trial.config[BATCH])
        if size >= 20:
            return Result(trial.key, "hang", "7", phase="init", attempt=2)
        return Result(trial.key, "ok", "6", score=100.0 * size)

    found, _ = finish(searched(start=16, step=4, growth=1.5), world)
    assert found.recommend == {BATCH: "16"}
    assert any("the network may be the cause" in c for c in found.caveats)


def test_failures_of_another_kind_are_no_bounds_and_too_many_end_the_sweep() -> None:
    def world(trial: Trial) -> Result:
        if trial.config[BATCH] == "16":
            return Result(trial.key, "node-fault", "5", why="Xid 79")
        return Curve(F12, ceiling=24)(trial)

    sweep = build(request())
    done = {f"{BATCH}=16#1": Result(f"{BATCH}=16#1", "node-fault")}
    assert sweep.next_trials(done) == []
    many = {f"{BATCH}={n}#1": Result(f"{BATCH}={n}#1", "failed", why="no such file") for n in (4, 8, 12)}
    assert "3 jobs failed for other reasons than their size (no such file)" in sweep.stop(many)
    found, _ = finish(sweep, world)
    assert found.recommend == {}


def test_the_largest_that_was_tried_is_called_so_when_it_wins() -> None:
    found, _ = finish(searched(start=4, high=16), Curve(lambda size: 100.0 * size))
    assert found.recommend == {BATCH: "16"}
    assert any("nothing above 16 was tried" in c for c in found.caveats)


def test_whatever_order_results_arrive_in_the_sweep_asks_for_the_same_and_never_twice() -> None:
    _, whole = finish(build(request()), Curve(F12, ceiling=24, sd=0.01, seed=1))
    sweep, kept = build(request()), {}
    for key, result in whole.items():
        wanted = [t.key for t in sweep.next_trials(kept)]
        assert key in wanted
        assert not set(wanted) & set(kept)
        kept[key] = result
    shuffled = dict(sorted(whole.items(), key=lambda item: item[0][::-1]))
    assert sweep.conclude(shuffled) == sweep.conclude(whole)


def test_a_second_setting_is_fixed_to_each_of_its_values_and_the_first_searched_for_each() -> None:
    params = [
        {"name": BATCH, "start": 16, "step": 4, "growth": 1.5},
        {"name": "remat_policy", "values": ["full", "minimal"]},
    ]

    def world(trial: Trial) -> Result:
        size, minimal = int(trial.config[BATCH]), trial.config["remat_policy"] == "minimal"
        if size >= (12 if minimal else 28):
            return Result(trial.key, "oom", "1", phase="first-step")
        speed = {4: 1000, 8: 1250} if minimal else {4: 700, 8: 900, 12: 1000, 16: 1100, 20: 1150, 24: 1160}
        return Result(trial.key, "ok", "2", score=float(speed[size]))

    found, done = finish(build(request(params=params)), world)
    assert found.recommend == {BATCH: "8", "remat_policy": "minimal"}  # one after the other would have missed it
    assert f"{BATCH}=8 remat_policy=minimal#1" in done


def test_values_are_tried_one_by_one_and_none_above_a_size_that_was_too_large() -> None:
    lengths = {"name": "max_target_length", "values": ["2048", "4096", "8192", "16384"]}

    def world(trial: Trial) -> Result:
        length = int(trial.config["max_target_length"])
        return Result(trial.key, "ok", score=1000 - length / 100) if length < 8192 else Result(trial.key, "oom")

    found, done = finish(build(request(params=[lengths])), world)
    assert found.recommend == {"max_target_length": "2048"}
    assert len([k for k in done if "16384" in k]) == 0
    fraction = {"name": "_env_XLA_PYTHON_CLIENT_MEM_FRACTION", "values": [".85", ".93"]}
    (first,) = build(request(params=[fraction])).next_trials({})
    assert first.env == {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".85"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"params": []}, "one or two settings"),
        ({"params": [{"name": "a", "values": ["1", "1"]}]}, "different values"),
        ({"params": [{"name": "a", "values": ["1 2", "3"]}]}, "hold a space"),
        ({"params": [{"name": "a", "start": 4, "low": 8, "high": 4}]}, "the smaller one first"),
        ({"params": [{"name": "a", "start": 4, "high": 3, "step": 4}]}, "no multiple of 4"),
        ({"params": [{"name": "a", "start": 4}, {"name": "b", "start": 4}]}, "the second setting is fixed to values"),
        ({"params": [{"name": "a", "start": 4}, {"name": "a", "values": ["1", "2"]}]}, "varied twice"),
        ({"params": [{"start": 4}]}, "no request of a batch sweep"),
        ({"steps": 1}, "no step is a steady one"),
        ({"config": {BATCH: "4"}}, "cannot be set as well"),
    ],
)
def test_a_request_that_cannot_work_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        build(request(**change))


def test_the_search_begins_at_three_quarters_of_what_the_memory_model_allows(tmp_path: Path) -> None:
    made = request_of(Asked("70b", ["steps=30"], 1, gpu="MI300X"), Wanted(), tmp_path)
    (param,) = made["params"]
    room = float(made["memory"].rpartition("about ")[2])
    assert abs(param["start"] - 0.75 * room) <= 1
    assert param["growth"] == 1.5
    assert "memory model, ± 25%" in made["memory"]
    blind = request_of(Asked("tiny", [], 1), Wanted(), tmp_path)
    assert (blind["params"][0]["start"], blind["params"][0]["growth"], blind["memory"]) == (4, 2.0, "")


def test_memory_lines_of_an_earlier_run_are_better_than_the_model(tmp_path: Path) -> None:
    log = tmp_path / "77-JAX-llama2-70b.log"
    log.write_text(
        "0: Config param per_device_batch_size: 4\n"
        "0: Total memory size: 90.0 GB, Output size: 30.0 GB, Temp size: 20.0 GB, Argument size: 30.0 GB\n"
        "0: Memstats: After params initialized:\n"
        "0: \tUsing (GB) 78.5 / 178.5 (43.9%) on rocm:0\n"
        "0: completed step: 0, seconds: 1.0\n"
    )
    made = request_of(Asked("70b", [], 1, gpu="MI300X"), Wanted(prior=str(log)), tmp_path)
    assert "memory lines of 77-JAX-llama2-70b.log: 178 GiB usable, 78 stay, 5 for each unit" in made["memory"]
    assert made["params"][0]["start"] == 15  # three quarters of 20
    log.write_text("0: completed step: 0\n")
    with pytest.raises(UsageError, match="no memory line"):
        request_of(Asked("70b", [], 1, gpu="MI300X"), Wanted(prior=str(log)), tmp_path)


@pytest.mark.parametrize(
    ("params", "more", "complaint"),
    [
        (["8:16"], {}, "the forms are"),
        (["remat_policy="], {}, "the forms are"),
        (["remat_policy"], {}, "name its values"),
        (["remat_policy=full,minimal"], {"start": 4}, "are for a search"),
    ],
)
def test_words_that_make_no_sweep_are_refused(
    params: list[str], more: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=complaint):
        request_of(Asked("70b", [], 1), Wanted(params, **more), tmp_path)


def test_ranges_and_lists_are_read(tmp_path: Path) -> None:
    made = request_of(Asked("tiny", [], 1), Wanted([f"{BATCH}=4:32:4", "dtype=float32,bfloat16"]), tmp_path)
    first, second = made["params"]
    assert (first["low"], first["high"], first["step"]) == (4, 32, 4)
    assert second == {"name": "dtype", "values": ["float32", "bfloat16"]}
    assert build({**made, "steps": 30}).at_most() == 2 * 10 + 6
