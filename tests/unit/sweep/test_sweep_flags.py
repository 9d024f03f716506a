"""The flag sweep is not fooled by luck, finds what is there, and says what to write down."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from sweep_flags import CELLS, Cell, World, play

from trackwalker.errors import UsageError
from trackwalker.launch.request.models import read_model
from trackwalker.launch.request.resolved import Target, resolve
from trackwalker.launch.request.validate import Asked, check
from trackwalker.perf.analysis.diff_result import DiffReport, Fall, OpDelta
from trackwalker.perf.analysis.fixes import rules as perf_rules
from trackwalker.perf.analysis.result import JobPart
from trackwalker.stats.selection import Noise, best_by_luck, contrasts, local_level, run_noise, shrunk
from trackwalker.sweep.flags.catalogue import Variant, catalogue, choose, own_variant
from trackwalker.sweep.flags.course import Rules
from trackwalker.sweep.flags.request import Wanted, request_of
from trackwalker.sweep.flags.strategy import FlagSweep, build, sentences
from trackwalker.sweep.model import Conclusion, Result, Template, Trial

CELL = {cell.name: cell for cell in CELLS}


def sweep(flags: int = 30, **more: Any) -> FlagSweep:
    variants = [Variant(f"flag{n}", env={f"FLAG_{n}": "1"}) for n in range(flags)]
    return FlagSweep(Template("m", ("n1",), {"steps": "30"}, {"XLA_FLAGS": "--xla_a=1"}), variants, **more)


def finish(strategy: FlagSweep, world: Any, at_once: int = 99) -> tuple[Conclusion, dict[str, Result]]:
    done: dict[str, Result] = {}
    while not strategy.stop(done) and (wanted := strategy.next_trials(done)):
        for trial in wanted[:at_once]:
            assert trial.key not in done
            done[trial.key] = world(trial)
    assert len(done) <= strategy.at_most()
    return strategy.conclude(done), done


def test_of_thirty_flags_that_do_nothing_none_is_recommended() -> None:
    played = [play(CELL["30 flags that do nothing"], seed) for seed in range(10)]
    assert [p.chosen for p in played] == [()] * 10
    assert all(25 <= p.jobs <= 80 for p in played)


def test_one_flag_of_thirty_that_gives_three_per_cent_is_found_and_no_other() -> None:
    played = [play(CELL["one of 30 gives +3 %"], seed) for seed in range(10)]
    assert sum(p.chosen == (7,) for p in played) >= 9
    assert all(p.chosen in ((7,), ()) for p in played)
    assert np.mean([p.said for p in played if p.said]) == pytest.approx(0.03, abs=0.005)


def test_what_looked_good_in_screening_counts_for_nothing_when_it_is_confirmed() -> None:
    def lucky(trial: Trial) -> Result:
        first = trial.key.startswith(("screen", "again"))
        score = 1500.0 if first and trial.key.endswith(":flag4") else 1400.0
        return Result(trial.key, "ok", "1", score=score * (1 + 0.004 * np.sin(zlib.crc32(trial.key.encode()))))

    found, _ = finish(sweep(), lucky)
    assert found.recommend == {}
    assert "keep what is deployed; 30 variants, none above 2.0 %: the cell is structurally bounded" in found.headline
    assert any("flag4" in e and "not confirmed" in e for e in found.evidence)
    top, bottom, runs = found.tables
    assert (len(top.rows), len(bottom.rows)) == (8, 5)
    assert "30 variants" in runs.title


def test_a_gain_of_five_per_cent_ends_the_search_and_the_recipe_can_be_written_down(tmp_path: Path) -> None:
    found, done = finish(sweep(condition="fsdp > 1"), World(Cell("", effects={7: 0.08}), 5))
    assert found.recommend == {"_env_FLAG_7": "1"}
    assert found.headline.startswith("flag7 makes it ")
    assert len(done) < 70
    (rule,) = yaml.safe_load(found.recipe)["trackwalker"]["rules"]
    assert (rule["when"], rule["env"]) == ("fsdp > 1", {"FLAG_7": "1"})


def test_the_recipe_is_a_layer_of_the_model_file(tmp_path: Path) -> None:
    flag = "xla_gpu_all_gather_combine_threshold_bytes"
    variants = [Variant("ag=512MiB", flags={flag: "536870912"}), Variant("channels", env={"NCCL_MIN_NCHANNELS": "8"})]
    strategy = FlagSweep(Template("m", (), {"steps": "30"}, {}), variants, condition="fsdp > 1 and pipeline <= 1")

    def world(trial: Trial) -> Result:
        return Result(trial.key, "ok", "1", score=1400.0 * (1.04 if flag in trial.env.get("XLA_FLAGS", "") else 1))

    found, _ = finish(strategy, world)
    assert found.recommend == {"_env_XLA_FLAGS": f"--{flag}=536870912"}
    shipped = check(Asked("70b", [], 1)).resolved
    assert shipped is not None
    path = tmp_path / "tuned.yml"
    path.write_text(found.recipe + shipped.model.trainer_yaml())
    tuned = resolve(read_model(path), Target(1, 8))
    assert f"--{flag}=536870912" in str(tuned.env["XLA_FLAGS"].value)
    assert [r.name for r in tuned.rules] == ["tuned"]


def test_winners_are_combined_only_where_their_gains_add_up() -> None:
    add, other = CELL["+3 % and +4 %, which add up"], CELL["+3 % and +4 %, which do not"]
    assert play(add, 1).chosen == (7, 9)
    assert play(other, 1).chosen in other.right


def test_two_values_of_one_flag_are_never_combined() -> None:
    variants = [Variant(f"ag={v}", flags={"ag": v}) for v in ("1", "2")]
    strategy = FlagSweep(Template("m", (), {"steps": "30"}, {}), variants)

    def world(trial: Trial) -> Result:
        return Result(trial.key, "ok", "1", score=1400.0 * (1.03 if "ag" in trial.env.get("XLA_FLAGS", "") else 1))

    found, done = finish(strategy, world)
    assert len(found.details["confirmed"]) == 2
    assert not any(key.startswith("combine") for key in done)


def test_a_variant_that_fails_is_dropped_and_told_with_what_that_means() -> None:
    ends = {"flag3": ("config-error", "Unknown flag in XLA_FLAGS"), "flag8": ("oom", "RESOURCE_EXHAUSTED")}

    def world(trial: Trial) -> Result:
        if (arm := trial.key.partition(":")[2]) in ends:
            return Result(trial.key, ends[arm][0], "9", why=ends[arm][1])  # type: ignore[arg-type]
        return Result(trial.key, "ok", "1", score=1400.0)

    found, done = finish(sweep(), world)
    assert sum(key.endswith((":flag3", ":flag8")) for key in done) == 2
    failed = next(t for t in found.tables if t.title == "Failed and dropped")
    assert {row[0]: row[1] for row in failed.rows} == {"flag3": "config-error", "flag8": "oom"}
    assert "correct the variant" in failed.rows[0][4]
    assert found.recommend == {}


def test_one_that_was_fast_and_then_failed_is_not_recommended_and_the_past_is_not_rewritten() -> None:
    world = World(Cell("", effects={7: 0.04}), 2)

    def flaky(trial: Trial) -> Result:
        result = world(trial)
        late = trial.key.startswith("confirm2") and trial.key.endswith(":flag7")
        return Result(trial.key, "failed", "9", why="core dumped") if late else result

    found, done = finish(sweep(), flaky, at_once=1)
    assert found.recommend == {}
    assert any("flag7 was fast and then failed" in c for c in found.caveats)
    assert not any(key.startswith("confirm3") and key.endswith(":flag7") for key in done)


def test_whatever_is_known_so_far_the_sweep_goes_on_where_it_was() -> None:
    _, whole = finish(sweep(), World(Cell("", effects={7: 0.03, 9: 0.04}, out_of_memory=(4,)), 8))
    strategy, kept = sweep(), {}
    for at, (key, result) in enumerate(whole.items()):
        if at % 5 == 0:
            wanted = [t.key for t in strategy.next_trials(kept)]
            assert wanted[0] == key
            assert not set(wanted) & set(kept)
        kept[key] = result
    assert strategy.next_trials(whole) == []
    backwards = dict(reversed(whole.items()))
    assert strategy.conclude(backwards).recommend == strategy.conclude(whole).recommend


def test_without_a_baseline_there_is_no_sweep() -> None:
    bad = {f"screen{n}:baseline": Result(f"screen{n}:baseline", "failed", why="NCCL error") for n in (1, 8)}
    assert "the baseline itself failed 2 times (NCCL error)" in sweep().stop(bad)
    assert sweep().conclude(bad).headline.startswith("Stopped: the baseline")


def test_a_trial_carries_the_baselines_flags_and_its_own() -> None:
    variants = [Variant("b", flags={"xla_b": "2"}), Variant("a", flags={"xla_a": "3"}, config={"remat_policy": "full"})]
    trials = FlagSweep(Template("m", ("n1",), {"steps": "30"}, {"XLA_FLAGS": "--xla_a=1"}), variants).next_trials({})
    by_arm = {t.key.partition(":")[2]: t for t in trials}
    assert by_arm["b"].env["XLA_FLAGS"] == "--xla_a=1 --xla_b=2"
    assert by_arm["a"].env["XLA_FLAGS"] == "--xla_a=3"
    assert by_arm["a"].config == {"steps": "30", "remat_policy": "full"}
    assert by_arm["baseline"].env == {"XLA_FLAGS": "--xla_a=1"}


def test_baselines_stand_between_all_waves_of_the_screening() -> None:
    arms = [t.key.partition(":")[2] for t in sweep().next_trials({})]
    places = [at for at, arm in enumerate(arms) if arm == "baseline"]
    assert (places[0], places[-1]) == (0, len(arms) - 1)
    assert max(np.diff(places)) == Rules().wave + 1


def test_winner_and_baseline_are_traced_at_the_end_and_the_difference_is_told() -> None:
    asked = []

    def explain(baseline: str, winner: str) -> list[str]:
        asked.append((baseline, winner))
        return ["trace: exposed collectives -31 ms a step"]

    found, done = finish(sweep(profile=True, explain=explain), World(Cell("", effects={7: 0.08}), 5))
    traced = {key: result for key, result in done.items() if key.startswith("profile")}
    assert list(traced) == ["profile:baseline", "profile:flag7"]
    assert asked[-1] == tuple(r.job for r in traced.values())
    assert found.evidence[-1] == "trace: exposed collectives -31 ms a step"


def test_the_mechanism_names_what_changed_most() -> None:
    falls = [
        Fall(name=n, a_s=a, b_s=b, delta_s=b - a, share=b - a)
        for n, a, b in (("exposed_comm", 0.2, 0.1), ("x", 0.3, 0.3))
    ]
    gather = OpDelta(name="g", phase="all-gather", a_count=2, b_count=60, a_s=0.2, b_s=0.1, delta_s=-0.1,
                     count_effect_s=0, time_effect_s=-0.1, share=-0.1)  # fmt: skip
    job = JobPart(id="1", name="m", dir="")
    told = sentences(DiffReport(a=job, b=job, waterfall=falls, collectives=[gather]))
    assert told[0].startswith("trace: exposed comm -100 ms a step (-10.0 % of it)")
    assert told[1] == "trace: all-gather 2 → 60 times a step, -100 ms"
    assert "do not say why" in sentences(DiffReport(a=job, b=job, missing=["no trace of A"]))[0]


# The catalogue


def test_the_catalogue_names_findings_that_perf_can_make_and_says_why_and_what_it_risks() -> None:
    entries = catalogue()
    assert len({e.id for e in entries}) == len(entries)
    assert {f for e in entries for f in e.finding} <= {r.id for r in perf_rules()}
    assert all(e.why and e.risk and e.values for e in entries)


def test_variants_fit_the_mesh_and_what_is_set_already_is_not_tried() -> None:
    sharded, staged = (
        check(Asked("deepseek", words, 16, gpu="MI355X")).resolved
        for words in ([], ["dcn_pipeline_parallelism=2", "dcn_fsdp_parallelism=8", "sparse_matmul=False"])
    )
    assert sharded is not None
    assert staged is not None
    names = [v.name for v in choose(sharded, [], 100)]
    assert "all-gather-combine=512MiB" in names
    assert "all-gather-combine=1GiB" not in names  # the model file has it
    assert not any(n.startswith(("permute-decomposer", "user-buffers")) for n in names)
    assert "permute-decomposer=1GiB" in [v.name for v in choose(staged, [], 100)]
    assert choose(sharded, ["recomputation"], 3)[0].name == "memory-slop=90"
    assert len(choose(sharded, [], 30)) == 30
    tiny = check(Asked("tiny", [], 1)).resolved
    assert tiny is not None
    assert choose(tiny, [], 30) == []


def test_variants_of_ones_own_are_read() -> None:
    both = own_variant("--xla_gpu_x=true _env_NCCL_ALGO=Ring remat_policy=full")
    assert (both.flags, both.env, both.config) == (
        {"xla_gpu_x": "true"},
        {"NCCL_ALGO": "Ring"},
        {"remat_policy": "full"},
    )
    assert both.name == "x=true NCCL_ALGO=Ring remat_policy=full"
    for wrong in ("", "--xla_gpu_x", "words"):
        with pytest.raises(UsageError):
            own_variant(wrong)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"variants": []}, "name your own with --try"),
        ({"variants": [{"name": "a"}]}, "sets nothing"),
        ({"variants": [{"name": "baseline", "env": {"A": "1"}}]}, "is taken"),
        ({"variants": [{"name": "a", "env": {"A": "1"}}, {"name": "b", "env": {"A": "1"}}]}, "set the same"),
        ({"variants": [{"name": "a", "env": {"A": "1"}}, {"name": "a", "env": {"A": "2"}}]}, "two variants cannot"),
        ({"variants": [{"nam": "a"}]}, "no request of a flag sweep"),
        ({"steps": 1}, "no step is a steady one"),
    ],
)
def test_a_request_that_cannot_work_is_refused(change: dict[str, Any], complaint: str) -> None:
    good = {"model": "m", "steps": 30, "variants": [{"name": "a", "env": {"A": "1"}}]}
    assert build(good).at_most() > 8
    with pytest.raises(UsageError, match=complaint):
        build({**good, **change})


def test_a_request_carries_its_cell_and_its_variants(tmp_path: Path) -> None:
    made = request_of(Asked("deepseek", [], 8), Wanted(most=12), tmp_path)
    assert len(made["variants"]) == 12
    assert made["condition"] == "fsdp > 1 and expert > 1 and pipeline <= 1"
    own = request_of(Asked("tiny", [], 1), Wanted(["_env_OMP_NUM_THREADS=1"]), tmp_path)
    assert build({**own, "steps": 20}).next_trials({})[1].key.endswith(":OMP_NUM_THREADS=1")
    with pytest.raises(UsageError, match="unknown model"):
        request_of(Asked("nomodel", [], 1), Wanted(), tmp_path)


# The numbers behind it


def test_an_effect_is_found_through_drift_and_a_stray_run() -> None:
    rng = np.random.default_rng(1)
    blocks = [b for b in range(6) for _ in range(3)]
    arms = ["base", "a", "b"] * 6
    logs = [
        0.02 * b + {"base": 0.0, "a": 0.03, "b": 0.0}[arm] + rng.normal(0, 0.005)
        for b, arm in zip(blocks, arms, strict=True)
    ]
    logs[4] -= 0.08  # somebody else's job
    found = contrasts(blocks, arms, logs, "base", Noise(0.005, 20))
    assert found["a"].change == pytest.approx(0.03, abs=0.008)
    assert found["a"].bounds(0.01)[0] > 0
    assert found["b"].bounds(0.025)[0] < 0 < found["b"].bounds(0.025)[1]
    assert contrasts([1], ["a"], [0.1], "base", Noise(0.005, 20)) == {}


def test_the_interval_of_an_effect_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    blocks, arms = [b for b in range(4) for _ in range(4)], ["base", "a", "b", "base"] * 4
    missed = 0
    for _ in range(300):
        logs = rng.normal(0, 0.01, 16)
        low, high = contrasts(blocks, arms, list(logs), "base", Noise(0.009, 15))["a"].bounds(0.025)
        missed += not low < 0 < high
    assert missed <= 27  # 15 are expected of 300; twelve more is three standard deviations


def test_slow_drift_is_taken_out_and_noise_is_measured_without_the_outliers() -> None:
    rng = np.random.default_rng(3)
    drift = 0.01 * np.sin(np.arange(40) / 10)
    values = drift + rng.normal(0, 0.005, 40)
    values[5] += 0.2
    rest = values - local_level(values)
    assert run_noise(rest).sd == pytest.approx(0.005, rel=0.35)
    assert np.nanstd(np.delete(rest, 5)) < 0.008


def test_luck_and_shrinkage_have_the_size_that_theory_gives() -> None:
    assert best_by_luck(30, 0.01) == pytest.approx(0.0204, abs=0.0005)
    assert shrunk(0.02, 1, 0.01, Noise(0.01, 20)) == 0.0  # everything that is seen is noise
    assert 0.015 < shrunk(0.02, 1, 0.03, Noise(0.01, 20)) < 0.02
