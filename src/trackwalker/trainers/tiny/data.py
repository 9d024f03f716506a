"""Synthetic but learnable batches, and the prefetching pipeline that delivers them on time or, when told, late."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trackwalker.trainers.tiny.config import Config

if TYPE_CHECKING:
    import numpy as np

Batch = dict[str, "np.ndarray"]

# Each sequence follows one of a few affine rules, so the model has to find out which from the context.
_RULES = ((5, 3), (3, 7), (7, 1), (9, 11))
_NOISE = 0.05
_PREFETCH = 2
DELAY_FILE = "data-delay-r{rank}"  # in the run's folder: seconds that each batch is late while the file is there
_PATIENCE_S = 5.0  # after that a wait is worth telling: it may never end


def make_batch(config: Config, rank: int, step: int, rows: int) -> Batch:
    """The batch of one rank and step: a pure function, so that a resumed run sees what it would have seen."""
    import numpy as np

    rng = np.random.default_rng([config.data_shuffle_seed, rank, step])
    vocab, length = config.vocab_size, config.max_target_length
    rules = np.array(_RULES)[rng.integers(len(_RULES), size=rows)]
    noisy = rng.random((rows, length + 1)) < _NOISE
    noise = rng.integers(vocab, size=(rows, length + 1))
    tokens = np.empty((rows, length + 1), np.int32)
    tokens[:, 0] = noise[:, 0]
    for t in range(1, length + 1):
        follow = (rules[:, 0] * tokens[:, t - 1] + rules[:, 1]) % vocab
        tokens[:, t] = np.where(noisy[:, t], noise[:, t], follow)
    weights = np.ones((rows, length), np.float32)
    if step == config.nan_at_step and rank == 0:
        weights[0, 0] = np.nan  # one bad token on one rank: the all-reduce carries it to all
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights}


def batch_seconds(config: Config, rank: int, step: int) -> float:
    """How long the pipeline takes for this batch, by the configuration."""
    slow = 0 <= config.data_slow_from_step <= step and config.data_slow_rank in (-1, rank)
    missed = max(0, config.per_device_batch_size - config.data_rows_cached) if config.data_rows_cached else 0
    return (config.data_slow_seconds if slow else config.data_seconds) + missed * config.data_miss_seconds


class DataError(Exception):
    """A batch cannot be made of what was read."""


class Pipeline:
    """Makes batches ahead in a thread; `take` waits only when the pipeline is slower than the step."""

    def __init__(self, config: Config, rank: int, rows: int, start: int) -> None:
        self._queue: queue.Queue[Batch | BaseException] = queue.Queue(maxsize=_PREFETCH)
        self._batches = _paced(config, rank, rows, start)
        threading.Thread(target=self._fill, name="data", daemon=True).start()

    def take(self, overdue: Callable[[], None] = lambda: None) -> tuple[Batch, float]:
        """The next batch and the seconds spent waiting for it; `overdue` is called once when it does not come."""
        began = time.perf_counter()
        try:
            item = self._queue.get(timeout=_PATIENCE_S)
        except queue.Empty:
            overdue()
            item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item, time.perf_counter() - began

    def _fill(self) -> None:
        try:
            for batch in self._batches:
                self._queue.put(batch)
        except BaseException as error:  # the training thread has to see it, or it would wait for ever
            self._queue.put(error)


def _reader_memory(config: Config, rows: int) -> np.ndarray:
    """What decoding so many rows at a time needs; every byte is written, so the kernel has to find it."""
    import numpy as np

    return np.ones(int(rows * config.data_row_mb * 2**20), np.uint8)


def _delay(path: Path) -> float:
    """What a fault of the lab adds to each batch now."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return 0.0


def _paced(config: Config, rank: int, rows: int, start: int) -> Iterator[Batch]:
    kept = _reader_memory(config, rows)  # noqa: F841  (held as long as there are batches to make)
    delayed = config.run_directory / DELAY_FILE.format(rank=rank)
    due = time.perf_counter()
    for step in range(start, config.steps):
        if step == config.data_fails_at_step and config.data_fails_rank in (-1, rank):
            raise DataError(f"shard {rank:05d}: record {step} is truncated (DataLoss: 512 of 516 bytes)")
        began, seconds = time.perf_counter(), batch_seconds(config, rank, step) + _delay(delayed)
        # A reader keeps its pace: what a busy CPU made late, less than a batch, the next batch makes up for.
        due = due + seconds if began - due < seconds else began + seconds
        batch = make_batch(config, rank, step, rows)
        time.sleep(max(0.0, due - time.perf_counter()))
        yield batch
