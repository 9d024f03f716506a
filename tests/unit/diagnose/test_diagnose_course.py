"""Single slow steps, saves and the loss: what is normal, what is not."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from triage_logs import triage_text

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.episodes import course
from trackwalker.job.layout import Job
from trackwalker.logs.facts import LogFacts, Quote
from trackwalker.logs.scanning.steps import Steps
from trackwalker.record.masks import masks, single_slow
from trackwalker.record.phases import KEEN, find_phases
from trackwalker.record.timeline import Timeline
from trackwalker.stats.segments import _bouts_above_a_floor


def case_of(
    seconds: list[float],
    losses: list[float] | None = None,
    config: dict[str, str] | None = None,
    compiles: list[int] | None = None,
) -> Case:
    steps = np.arange(len(seconds))
    facts = LogFacts(Path("job.log"))
    facts.config = {k: (v, Quote(0, 1, f"Config param {k}: {v}")) for k, v in (config or {}).items()}
    told = losses or [2.0] * len(seconds)
    loss = np.array(told, float)
    facts.steps = Steps(
        0,
        "maxtext",
        step=steps,
        seconds=np.array(seconds),
        tgs=np.full(len(seconds), np.nan),
        loss=loss,
        line=10 * (steps + 1),
        has_loss=~np.isfinite(loss),
    )
    facts.compiles = compiles or []
    values = np.array(seconds)
    timeline = Timeline(steps, 1000.0 + np.cumsum(values), values, np.full(len(values), np.nan), True, "job.log")
    return Case(Job("1", None, None), facts, None, [], None, timeline, ["a"], 900.0, None, False)


def noisy(n: int, level: float = 10.0, seed: int = 3) -> list[float]:
    return [float(v) for v in level * (1 + np.random.default_rng(seed).normal(0, 0.01, n))]


def test_a_single_slow_step_is_found_and_the_first_ones_are_not() -> None:
    seconds = noisy(60)
    seconds[0], seconds[2], seconds[40] = 90.0, 30.0, 26.0
    assert [s.step for s in course.spikes(case_of(seconds))] == [40]


def test_ordinary_noise_has_no_slow_steps() -> None:
    for seed in range(20):
        assert course.spikes(case_of(noisy(80, seed=seed))) == []


def test_a_slow_step_after_a_save_is_the_save() -> None:
    seconds = noisy(60)
    seconds[21] = 55.0
    saving = {"enable_checkpointing": "true", "checkpoint_period": "20"}
    assert [s.step for s in course.spikes(case_of(seconds))] == [21]
    assert course.spikes(case_of(seconds, config=saving)) == []
    assert max(s.extra_s for s in course.saves(case_of(seconds, config=saving))) == pytest.approx(45, abs=1)


@pytest.mark.parametrize("late", [-1, 0, 1])  # trainers count from 0 or from 1, and tell before or after
def test_a_slow_step_of_an_evaluation_is_the_evaluation(late: int) -> None:
    seconds = noisy(90)
    for step in (20, 40, 60, 80):
        seconds[step + late] = 60.0
    assert len(course.spikes(case_of(seconds, config={"enable_checkpointing": "false"}))) == 4
    assert course.spikes(case_of(seconds, config={"eval_interval": "20"})) == []
    seconds[50] = 60.0
    assert [s.step for s in course.spikes(case_of(seconds, config={"eval_interval": "20"}))] == [50]
    assert len(course.spikes(case_of(seconds, config={"eval_interval": "-1"}))) == 5


def test_saves_are_long_only_when_they_last_minutes_and_many_steps() -> None:
    saving = {"enable_checkpointing": "true", "checkpoint_period": "20"}
    for extra, long in ((90.0, False), (280.0, False), (420.0, True)):
        seconds = noisy(60)
        seconds[21] += extra
        assert bool(course.long_saves(case_of(seconds, config=saving))) == long
    slow_steps = noisy(60, level=60.0)
    slow_steps[21] += 420.0  # seven steps' worth: unremarkable
    assert not course.long_saves(case_of(slow_steps, config=saving))


@pytest.mark.parametrize(
    ("costs", "grows"),
    [
        ([60, 60, 62, 58, 61, 60], False),
        ([60, 65, 80, 110, 150, 190], True),
        ([60, 300, 60, 60, 60, 60], False),
        ([62, 68, 62, 65, 320, 400, 360, 430, 380], True),  # most are slow: the usual ones are saves all the same
    ],
)
def test_saves_that_take_longer_and_longer(costs: list[float], grows: bool) -> None:
    seconds = noisy(20 * len(costs) + 5)
    for i, cost in enumerate(costs):
        seconds[20 * i + 1] += cost
    saving = {"enable_checkpointing": "true", "checkpoint_period": "20"}
    assert (course.growing_saves(case_of(seconds, config=saving)) is not None) == grows


def test_a_save_in_a_slow_phase_is_measured_by_the_steps_around_it() -> None:
    saving = {"enable_checkpointing": "true", "checkpoint_period": "20"}
    seconds = [*noisy(240), *noisy(160, level=60.0)]
    for step in range(21, 400, 20):
        seconds[step] += 15.0
    assert max(s.extra_s for s in course.saves(case_of(seconds, config=saving))) == pytest.approx(15, abs=3)
    assert course.growing_saves(case_of(seconds, config=saving)) is None


def test_saves_that_cost_a_blink_are_no_incident_however_many_times_the_usual() -> None:
    saving = {"enable_checkpointing": "true", "checkpoint_period": "20"}
    for extra, told in ((0.2, False), (2.0, True)):
        seconds = [s / 250 for s in noisy(400)]
        for step in range(21, 400, 20):
            seconds[step] += extra if step > 200 else 0.03
        assert (course.growing_saves(case_of(seconds, config=saving)) is not None) == told


def falling(n: int) -> list[float]:
    rng = np.random.default_rng(5)
    return [float(v) for v in 2.5 + 8 * np.exp(-np.arange(n) / 30) + rng.normal(0, 0.02, n)]


def test_a_falling_loss_is_fine_and_nan_is_not() -> None:
    losses = falling(100)
    assert course.loss_trouble(case_of(noisy(100), losses)) is None
    losses[70:] = [math.nan] * 30
    trouble = course.loss_trouble(case_of(noisy(100), losses))
    assert trouble is not None
    assert trouble.step == 70


def test_a_loss_that_jumps_and_stays_is_trouble_one_that_returns_is_not() -> None:
    stays, returns = falling(120), falling(120)
    for i in range(60, 120):
        stays[i] += 4.0
    for i in range(60, 66):
        returns[i] += 4.0
    trouble = course.loss_trouble(case_of(noisy(120), stays))
    assert trouble is not None
    assert abs(trouble.step - 60) <= 2
    assert course.loss_trouble(case_of(noisy(120), returns)) is None


def test_the_lowest_of_thousands_of_noisy_losses_is_no_level_to_be_measured_by() -> None:
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(20):
        lively = list(2.0 + 0.6 * rng.standard_normal(4000) + 0.5 * np.sin(np.arange(4000) / 3.0))
        lively[-9:] = [3.1] * 9  # nine unlucky batches in the end
        alarms += course.loss_trouble(case_of([0.006] * 4000, lively)) is not None
    assert alarms == 0
    rose = [2.0 + 0.1 * float(x) for x in rng.standard_normal(4000)]
    rose[3000:] = [x + 2.0 for x in rose[3000:]]
    assert course.loss_trouble(case_of([0.006] * 4000, rose)) is not None


def test_a_run_is_slow_where_it_leaves_all_that_its_full_speed_had_strayed_to() -> None:
    """A real run's levels of three seconds each, in ms: it settled at first, and then others took its CPUs."""
    settling = [38.8, 40.4, 46.5, 41.1, 36.3, 34.7, 34.5, 34.0]
    slow = [63.9, 55.9, 56.3, 55.3, 58.0, 60.0, 61.8, 58.3, 58.2, 56.4, 75.6, 56.8, 56.6]
    found = 0
    for seed in range(30):
        noise = np.exp(0.2 * np.random.default_rng(seed).standard_normal(600 + 650))
        seconds = 1e-3 * np.r_[np.repeat(settling, 75), np.repeat(slow, 50)] * noise
        case = case_of(list(map(float, seconds)))
        found += any(p.slow and abs(p.first_step - 600) < 30 for p in find_phases(case.timeline, case.masks, False))
        calm = case_of(list(map(float, seconds[:600])))
        assert not any(p.slow for p in find_phases(calm.timeline, calm.masks, False))
    assert found == 30


def test_a_speed_that_the_run_comes_back_to_is_full_speed_though_each_stretch_was_short() -> None:
    parts = [noisy(16), noisy(36, level=12.0), noisy(11), noisy(47, level=12.3)]
    case = case_of([s for part in parts for s in part])
    assert [p.slow for p in find_phases(case.timeline, case.masks, False)] == [False, True, False, True]
    once = case_of([*noisy(16), *noisy(94, level=12.0)])
    assert not any(p.slow for p in find_phases(once.timeline, once.masks, False)), "a lucky stretch is no yardstick"


def test_a_run_of_restless_milliseconds_at_half_its_speed_is_slow() -> None:
    """Steps of 6 ms on a busy machine: moments of a few dozen steps differ by a quarter, and half is not that."""
    slow = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        moments = np.repeat(np.exp(0.25 * rng.standard_normal(110)), 37)[:4000]
        seconds = 0.006 * moments * np.exp(0.15 * rng.standard_normal(4000))
        seconds[2000:] *= 2.0
        case = case_of(list(map(float, seconds)))
        slow += any(p.slow and abs(p.first_step - 2000) < 150 for p in find_phases(case.timeline, case.masks, False))
        calm = case_of(list(map(float, np.concatenate([seconds[:2000], seconds[2000:] / 2.0]))))
        assert not any(p.slow for p in find_phases(calm.timeline, calm.masks, False))
    assert slow == 6


def test_compilations_are_put_to_the_step_they_delay() -> None:
    case = case_of(noisy(40), compiles=[5, 115, 118, 245])  # step i ends on line 10 * (i + 1)
    assert course.compiled_steps(case) == [11, 24]  # the first is start-up


def test_what_the_log_tells_between_two_steps_lengthened_the_second() -> None:
    case = case_of(noisy(40))
    case.log.evals, case.log.profiles = [215], [[305, 335], [395]]
    timeline = case.timeline
    assert timeline is not None
    found = masks(timeline.steps, timeline.seconds, case.log, line=10.0 * (timeline.steps + 1))
    assert np.flatnonzero(found.of("eval")).tolist() == [21]
    assert np.flatnonzero(found.of("profiler")).tolist() == [30, 31, 32, 33, 34, 39], "a dump slows one step more"


def test_profiled_steps_follow_the_settings() -> None:
    settings = {"profiler": "xplane", "skip_first_n_steps_for_profiler": "10", "profiler_steps": "3"}
    assert course.profiled_steps(case_of(noisy(40), config=settings)) == {10, 11, 12, 13, 14}
    assert course.profiled_steps(case_of(noisy(40), config={"profiler": ""})) == set()


def test_saves_that_were_slow_for_a_while_count_and_single_ones_do_not() -> None:
    rng = np.random.default_rng(4)
    jitter = list(70.0 * rng.uniform(0.6, 1.5, 11))
    assert course._slow_for_a_while(jitter) is None
    assert course._slow_for_a_while([*jitter[:5], 280.0, *jitter[6:]]) is None
    usual, slow = course._slow_for_a_while([*jitter[:4], 220.0, 260.0, 280.0, 240.0, *jitter[8:]]) or (0.0, 0.0)
    assert usual < 105.0  # the longest of the usual ones
    assert slow == pytest.approx(250.0)


def test_small_slow_steps_count_where_they_come_often() -> None:
    often, seldom = noisy(200, level=60.0), noisy(200, level=60.0)
    for i in range(20, 200, 6):
        often[i] *= 1.25
    seldom[90] *= 1.25
    assert len(course.spikes(case_of(often))) > 20
    assert course.spikes(case_of(seldom)) == []


def test_long_steps_at_equal_distances_are_saves_that_nobody_tells_of() -> None:
    seconds = noisy(300)
    for i in (60, 120, 180, 240):
        seconds[i] += 45.0
    seconds[77] += 30.0  # something else, once
    assert course.save_steps(case_of(seconds)) == {59, 119, 179, 239}
    assert [s.step for s in course.spikes(case_of(seconds))] == [77]
    off = {"enable_checkpointing": "false"}
    assert course.save_steps(case_of(seconds, config=off)) == set()
    early = list(seconds)
    early[180], early[179] = early[179], early[180]
    assert len(course.save_steps(case_of(early))) == 4


@pytest.mark.parametrize("places", [(60, 95, 180, 240), (60, 66, 72, 78)], ids=["no rhythm", "too often"])
def test_other_long_steps_are_no_saves(places: tuple[int, ...]) -> None:
    seconds = noisy(300)
    for i in places:
        seconds[i] += 45.0
    assert course.save_steps(case_of(seconds)) == set()


def test_long_steps_that_begin_in_the_middle_of_a_run_are_no_saves() -> None:
    seconds = noisy(300)
    for i in range(120, 300, 24):
        seconds[i] += 60.0
    assert course.save_steps(case_of(seconds)) == set()
    assert len(course.spikes(case_of(seconds))) > 5


@pytest.mark.parametrize(("tokens", "slow"), [(2.0, False), (1.0, True)], ids=["twice the batch", "the same batch"])
def test_longer_steps_with_as_many_tokens_a_second_are_not_slow(tokens: float, slow: bool) -> None:
    case = case_of(noisy(150) + noisy(150, level=20.0, seed=4))
    assert case.timeline is not None
    batch = np.where(np.arange(300) < 150, 1.0, tokens)
    case.timeline = replace(case.timeline, tgs=20_000.0 * batch / case.timeline.seconds)
    assert [p.slow for p in find_phases(case.timeline, case.masks, case.live)] == [False, slow]


def test_a_percent_less_with_the_same_batch_is_no_larger_batch() -> None:
    steady = np.r_[np.full(150, 10.0), np.full(150, 10.12)] * (1 + np.random.default_rng(5).normal(0, 5e-4, 300))
    case = case_of(steady.tolist())
    assert case.timeline is not None
    case.timeline = replace(case.timeline, tgs=20_000.0 / case.timeline.seconds)
    assert [p.slow for p in find_phases(case.timeline, case.masks, case.live, KEEN)] == [False, True]


MEGATRON = " [2027-03-29 17:06:46] iteration {step:8d}/      40 | elapsed time per iteration (ms): 10542.0 | lm loss: 2.5E+00\n"  # noqa: E501


@pytest.mark.parametrize(("last", "done"), [(40, True), (39, False)])
def test_all_steps_are_done_when_the_log_says_so_however_others_count(tmp_path: Path, last: int, done: bool) -> None:
    case = case_of([10.0] * last)  # the event file counts from 0
    case.seen = triage_text(tmp_path, "".join(MEGATRON.format(step=s) for s in range(1, last + 1)))
    assert (case.total_steps, case.all_done) == (40, done)


def test_bouts_side_by_side_do_not_hide_each_other() -> None:
    rng = np.random.default_rng(5)
    seconds = 20.0 * rng.normal(1.0, 0.004, 120)
    bouts = [i for at in (40, 48, 56, 64) for i in range(at, at + 4)]  # within 21 steps more of them are slow than not
    seconds[bouts] *= 1.25
    found, level = single_slow(seconds, np.ones(120, dtype=bool))
    assert found.tolist() == bouts
    assert np.abs(level - 20.0).max() < 0.3


def often_long(before: float, after: float, seed: int, steps: int = 1200) -> list[float]:
    """Steps of which some, by chance, take several times as long: other shares of them before and after the middle."""
    chance = np.random.default_rng(seed)
    share = np.where(np.arange(steps) < steps // 2, before, after)
    long = (chance.random(steps) < share) * 0.05 * chance.exponential(5.0, steps)
    return [float(v) for v in 0.05 * (1 + chance.normal(0, 0.1, steps)).clip(0.3) + long]


def test_a_run_whose_long_steps_become_many_is_slow_though_the_usual_step_is_as_before() -> None:
    found = 0
    for seed in range(20):
        case = case_of(often_long(0.01, 0.2, seed))
        assert case.timeline is not None
        phases = find_phases(case.timeline, case.masks, False)
        found += not phases[0].slow and phases[-1].slow
        if phases[-1].slow:
            assert phases[-1].by_mean
            assert phases[-1].seconds == pytest.approx(float(case.timeline.seconds[-600:].mean()), rel=0.15)
    assert found >= 16


def test_a_run_with_as_many_long_steps_all_along_is_not() -> None:
    slow = 0
    for seed in range(20):
        case = case_of(often_long(0.1, 0.1, seed))
        assert case.timeline is not None
        slow += any(p.slow for p in find_phases(case.timeline, case.masks, False))
    assert slow <= 1


def bouts(seed: int, wandering: bool) -> list[float]:
    """Full speed twice, restless slow stretches between; or the same with a full speed that strays as they do."""
    chance = np.random.default_rng(seed)
    level = np.cumsum(chance.normal(0.0, 0.03, 75)).clip(-0.3, 0.3) if wandering else np.zeros(75)
    steps = 8.7 * np.exp(level) * (1.0 + 0.005 * chance.normal(0.0, 1.0, 75))
    for a, b in ((23, 41), (51, 75)) if not wandering else ():
        steps[a:b] *= chance.uniform(1.1, 1.7, b - a)
    return [float(v) for v in steps]


def test_restless_bouts_above_a_floor_that_the_run_comes_back_to_are_slow() -> None:
    for seed in range(10):
        case = case_of(bouts(seed, wandering=False))
        assert case.timeline is not None
        phases = find_phases(case.timeline, case.masks, False)
        slow = [(p.first_step, p.last_step) for p in phases if p.slow]
        assert len(slow) == 2
        assert abs(slow[0][0] - 23) <= 2
        assert abs(slow[1][0] - 51) <= 2


def test_a_speed_that_wanders_has_no_floor() -> None:
    found = [_bouts_above_a_floor(np.log(np.array(bouts(seed, wandering=True))), 5) for seed in range(20)]
    assert sum(f is not None for f in found) <= 1
