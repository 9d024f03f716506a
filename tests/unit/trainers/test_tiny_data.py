"""The small trainer's batches: reproducible, learnable, and late exactly when told."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest

from trackwalker.trainers.tiny import data
from trackwalker.trainers.tiny.config import Config
from trackwalker.trainers.tiny.data import DataError, Pipeline, batch_seconds, make_batch

CONFIG = Config(steps=6, max_target_length=32, vocab_size=64)


def test_a_batch_is_a_function_of_seed_rank_and_step() -> None:
    one, again = make_batch(CONFIG, 1, 3, 4), make_batch(CONFIG, 1, 3, 4)
    for name in one:
        np.testing.assert_array_equal(one[name], again[name])
    others = [
        make_batch(CONFIG, 0, 3, 4),
        make_batch(CONFIG, 1, 4, 4),
        make_batch(dataclasses.replace(CONFIG, data_shuffle_seed=1), 1, 3, 4),
    ]
    assert all((other["inputs"] != one["inputs"]).any() for other in others)


def test_batch_shape_and_shift() -> None:
    batch = make_batch(CONFIG, 0, 0, 4)
    assert {name: (a.shape, a.dtype.name) for name, a in batch.items()} == {
        "inputs": ((4, 32), "int32"),
        "targets": ((4, 32), "int32"),
        "weights": ((4, 32), "float32"),
    }
    np.testing.assert_array_equal(batch["inputs"][:, 1:], batch["targets"][:, :-1])
    assert batch["inputs"].min() >= 0
    assert batch["inputs"].max() < 64


def test_most_tokens_follow_one_rule_per_sequence() -> None:
    batch = make_batch(CONFIG, 0, 0, 16)
    fits = [(batch["inputs"] * a + c) % 64 == batch["targets"] for a, c in data._RULES]
    best = np.stack([fit.mean(axis=1) for fit in fits]).max(axis=0)
    assert best.mean() > 0.85


def test_nan_poisons_one_rank_at_one_step() -> None:
    config = dataclasses.replace(CONFIG, nan_at_step=3)
    poisoned = {
        (rank, step): bool(np.isnan(make_batch(config, rank, step, 2)["weights"]).any())
        for rank in (0, 1)
        for step in (2, 3, 4)
    }
    assert [key for key, is_nan in poisoned.items() if is_nan] == [(0, 3)]


@pytest.mark.parametrize(("rank", "step", "seconds"), [(2, 4, 0.1), (2, 5, 3.0), (2, 9, 3.0), (1, 5, 0.1), (0, 9, 0.1)])
def test_slow_from_a_step_on_one_rank(rank: int, step: int, seconds: float) -> None:
    config = Config(data_seconds=0.1, data_slow_from_step=5, data_slow_seconds=3.0, data_slow_rank=2)
    assert batch_seconds(config, rank, step) == seconds


def test_slow_on_every_rank_or_never() -> None:
    everywhere = Config(data_slow_from_step=0, data_slow_seconds=3.0)
    assert [batch_seconds(everywhere, rank, 0) for rank in (0, 1)] == [3.0, 3.0]
    assert batch_seconds(Config(data_slow_seconds=3.0), 0, 100) == 0.0


@pytest.mark.parametrize(("rows", "seconds"), [(4, 0.1), (16, 0.1), (17, 0.15), (20, 0.3)])
def test_a_batch_larger_than_the_readers_cache_is_late(rows: int, seconds: float) -> None:
    config = Config(per_device_batch_size=rows, data_seconds=0.1, data_rows_cached=16, data_miss_seconds=0.05)
    assert batch_seconds(config, 0, 0) == pytest.approx(seconds)


def test_pipeline_delivers_in_order_from_the_start_step() -> None:
    pipeline = Pipeline(CONFIG, 0, 2, start=4)
    for step in (4, 5):
        batch, waited = pipeline.take()
        np.testing.assert_array_equal(batch["inputs"], make_batch(CONFIG, 0, step, 2)["inputs"])
        assert waited >= 0


@pytest.mark.real_clock
def test_pipeline_hides_its_time_behind_a_longer_step() -> None:
    pipeline = Pipeline(dataclasses.replace(CONFIG, data_seconds=0.1), 0, 2, start=0)
    assert pipeline.take()[1] > 0.05  # nothing was there to prefetch yet
    time.sleep(0.6)  # the wait is the subject: a step that is longer than the data
    assert pipeline.take()[1] < 0.05
    assert pipeline.take()[1] < 0.05


@pytest.mark.real_clock
def test_an_overdue_batch_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_PATIENCE_S", 0.05)
    told: list[float] = []
    pipeline = Pipeline(dataclasses.replace(CONFIG, data_seconds=0.4), 0, 2, start=0)
    _, waited = pipeline.take(lambda: told.append(time.perf_counter()))
    assert len(told) == 1
    assert waited > 0.2
    time.sleep(1.0)  # the wait is the subject: a step that is longer than the data
    pipeline.take(lambda: told.append(time.perf_counter()))
    assert len(told) == 1, "this one was there already"


def test_pipeline_hands_its_error_to_the_training_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no more data")

    monkeypatch.setattr(data, "make_batch", broken)
    pipeline = Pipeline(CONFIG, 0, 2, start=0)
    with pytest.raises(RuntimeError, match="no more data"):
        pipeline.take()


def test_a_pipeline_that_fails_tells_the_training_thread() -> None:
    config = dataclasses.replace(CONFIG, data_fails_at_step=1, data_fails_rank=2)
    failing, sound = Pipeline(config, 2, 2, 0), Pipeline(config, 0, 2, 0)
    failing.take()
    with pytest.raises(DataError, match="record 1 is truncated"):
        failing.take()
    sound.take()
    sound.take()
