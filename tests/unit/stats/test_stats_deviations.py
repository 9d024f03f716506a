"""Which of many series changed: against their own past, their peers, and chance."""

from __future__ import annotations

import numpy as np
import pytest

from trackwalker.stats import deviations as stats

REFERENCE, WINDOW = 60, 30
HOSTS = 12


def bins() -> tuple[stats.Bools, stats.Bools]:
    at = np.arange(REFERENCE + WINDOW)
    return at >= REFERENCE, at < REFERENCE


def wander(rng: np.random.Generator, series: int, memory: float = 0.9) -> stats.Floats:
    """Noise as machines have it: what is high now is still high in a minute."""
    shocks = rng.normal(0, 1, (series, REFERENCE + WINDOW + 100))
    for i in range(1, shocks.shape[1]):
        shocks[:, i] += memory * shocks[:, i - 1]
    return shocks[:, 100:]


def compared(values: stats.Floats, **options: object) -> stats.Changes:
    now, past = bins()
    peers, hosts = np.zeros(len(values), dtype=np.intp), np.arange(len(values))
    return stats.changes(values, now, past, peers, hosts, **options)  # type: ignore[arg-type]


def test_one_host_that_changes_stands_out_and_nobody_else() -> None:
    values = 700.0 + 3.0 * wander(np.random.default_rng(1), HOSTS)
    values[4, REFERENCE:] -= 90.0
    result = compared(values)
    assert np.flatnonzero(stats.discoveries(result.score, HOSTS)).tolist() == [4]
    assert result.score[4] < 0
    assert result.before[4] - result.after[4] == pytest.approx(90.0, abs=15.0)


def test_what_all_hosts_do_together_accuses_none_of_them() -> None:
    values = 700.0 + 3.0 * wander(np.random.default_rng(2), HOSTS)
    values[:, REFERENCE:] -= 200.0
    assert not stats.discoveries(compared(values).score, HOSTS).any()


def test_the_one_that_stays_while_all_others_fall_stands_out() -> None:
    values = 700.0 + 3.0 * wander(np.random.default_rng(3), HOSTS)
    values[:, REFERENCE:] -= 200.0
    values[7, REFERENCE:] += 200.0
    result = compared(values, relative=True)
    assert np.flatnonzero(stats.discoveries(result.score, HOSTS)).tolist() == [7]
    assert result.score[7] > 0


def test_three_hosts_have_a_past_but_no_peers() -> None:
    values = 50.0 + wander(np.random.default_rng(4), 3)
    values[:, REFERENCE:] += 60.0
    assert stats.discoveries(compared(values).score, 3).all()


@pytest.mark.parametrize("memory", [0.0, 0.7, 0.95])
def test_wandering_machines_are_hardly_ever_accused(memory: float) -> None:
    found = 0
    for seed in range(8):
        values = 500.0 + 4.0 * wander(np.random.default_rng(seed), 250, memory)
        found += int(stats.discoveries(compared(values).score, 250).sum())
    assert found <= 1, f"{found} false deviations in 2,000 series"


def test_a_level_that_is_known_to_a_third_of_a_per_cent_does_not_move_by_less() -> None:
    values = np.full((HOSTS, REFERENCE + WINDOW), 1000.0)
    values[2, REFERENCE:] = 1004.0
    assert not stats.discoveries(compared(values).score, HOSTS).any()
    values[2, REFERENCE:] = 1040.0
    assert np.flatnonzero(stats.discoveries(compared(values).score, HOSTS)).tolist() == [2]


def test_one_clump_of_errors_is_chance_and_errors_all_along_are_not() -> None:
    values = np.zeros((HOSTS, REFERENCE + WINDOW))
    values[3, REFERENCE + 5] = 4000.0
    values[5, REFERENCE:] = 0.5
    result = compared(values, counter_s=30.0)
    assert np.flatnonzero(stats.discoveries(result.score, HOSTS)).tolist() == [5]


def test_errors_that_were_there_before_are_no_news() -> None:
    rng = np.random.default_rng(6)
    values = np.zeros((HOSTS, REFERENCE + WINDOW))
    values[3] = rng.poisson(2.0, REFERENCE + WINDOW)
    values[5] = rng.random(REFERENCE + WINDOW) < 0.2
    assert not stats.discoveries(compared(values, counter_s=30.0).score, HOSTS).any()


def test_counters_that_were_never_shipped_count_as_quiet_peers() -> None:
    values = np.zeros((1, REFERENCE + WINDOW))
    values[0, REFERENCE:] = 3.0
    alone = compared(values, counter_s=30.0)
    among = compared(values, counter_s=30.0, silent=191)
    assert stats.discoveries(among.score, 192).all()
    assert among.score[0] == pytest.approx(alone.score[0])


def test_more_comparisons_need_a_larger_deviation() -> None:
    scores = np.array([4.3])
    assert stats.discoveries(scores, 10).all()
    assert not stats.discoveries(scores, 100_000).any()


def test_a_yardstick_measures_by_some_hosts_only() -> None:
    values = 500.0 + wander(np.random.default_rng(8), 6, 0.5)
    values[:5, REFERENCE:] += 80.0
    by_all = compared(values)
    by_last = compared(values, yardstick=np.arange(6) == 5)
    assert abs(by_all.score[0]) < stats.LEAST_SCORE < by_last.score[0]


def test_a_gpu_that_vanishes_beside_its_siblings_is_noticed_and_a_silent_host_is_not() -> None:
    now, past = bins()
    values = np.full((4, REFERENCE + WINDOW), 600.0)
    values[1, REFERENCE:] = np.nan  # one GPU of the first host
    values[2:, REFERENCE:] = np.nan  # the whole second host
    present = np.ones_like(values, dtype=bool)
    present[2:, REFERENCE:] = False
    assert np.flatnonzero(stats.vanished(values, now, past, present) >= stats.LEAST_SCORE).tolist() == [1]


def test_a_sensor_that_stands_still_is_noticed() -> None:
    now, past = bins()
    values = 60.0 + wander(np.random.default_rng(9), 5)
    values[2, REFERENCE:] = values[2, REFERENCE]
    assert np.flatnonzero(stats.frozen(values, now, past) >= stats.LEAST_SCORE).tolist() == [2]


def test_series_with_holes_are_compared_by_what_is_there() -> None:
    rng = np.random.default_rng(10)
    values = 700.0 + 3.0 * wander(rng, HOSTS)
    values[4, REFERENCE:] -= 90.0
    values[rng.random(values.shape) < 0.2] = np.nan
    assert np.flatnonzero(stats.discoveries(compared(values).score, HOSTS)).tolist() == [4]


def test_a_rare_count_that_becomes_steady_is_judged_by_its_size() -> None:
    rng = np.random.default_rng(3)
    values = rng.poisson(0.3, (24, 60)) / 30.0  # events in every fourth bin or so, everywhere
    now = np.arange(60) >= 50
    faint, strong = values.copy(), values.copy()
    strong[5, now] = rng.poisson(5000, int(now.sum())) / 30.0
    peers, hosts = np.zeros(24, dtype=np.intp), np.arange(24)
    scores = [stats.changes(v, now, ~now, peers, hosts, counter_s=30.0).score for v in (faint, strong)]
    assert np.abs(scores[0]).max() < 4.0
    assert scores[1][5] > 8.0
    assert np.abs(np.delete(scores[1], 5)).max() < 4.0


def test_a_series_that_began_late_is_compared_with_the_past_it_has() -> None:
    values = 700.0 + 3.0 * wander(np.random.default_rng(7), HOSTS, memory=0.0)
    values[:, : REFERENCE - 10] = np.nan  # a sixth of the reference
    values[4, REFERENCE:] -= 90.0
    assert np.flatnonzero(stats.discoveries(compared(values).score, HOSTS)).tolist() == [4]


def test_a_series_full_of_holes_or_only_just_begun_is_not_compared() -> None:
    values = 700.0 + 3.0 * wander(np.random.default_rng(8), HOSTS, memory=0.0)
    values[:, REFERENCE:] -= 300.0 * (np.arange(HOSTS) == 4)[:, None]
    holes, young = values.copy(), values.copy()
    holes[4, 1:REFERENCE:3] = np.nan
    holes[4, 2:REFERENCE:3] = np.nan
    young[4, : REFERENCE - 3] = np.nan
    assert compared(holes).score[4] == 0.0
    assert compared(young).score[4] == 0.0


def test_bins_without_a_value_make_a_series_no_quieter() -> None:
    values = 700.0 + 3.0 * wander(np.random.default_rng(9), 1, memory=0.0)
    thin = values.copy()
    thin[0, 1:REFERENCE:5] = np.nan
    thin[0, 2:REFERENCE:5] = np.nan
    assert compared(thin).error[0] >= compared(values).error[0]


def test_bursts_that_come_to_this_and_that_host_are_weather() -> None:
    values = np.zeros((3, 40))
    values[0, 5:9] = 4.0  # another host's bad hour, long before
    values[1, 30:38], values[2, 31] = 1.9, 50.0
    window, reference = np.arange(40) >= 30, np.arange(40) < 30
    highest = stats.weather(values, window, reference, np.arange(3))
    assert highest.tolist() == [0.0, 1.6, 1.6]  # over ten bins; nobody is his own weather
