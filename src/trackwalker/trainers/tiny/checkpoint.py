"""Checkpoints in the run's directory: written aside, renamed when whole, and never passed over when damaged."""

from __future__ import annotations

import json
import os
import shutil
import time
import zipfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from trackwalker.trainers.progress import Progress
from trackwalker.trainers.tiny.runtime import say

if TYPE_CHECKING:
    import numpy as np

MARKER = "_CHECKPOINT_METADATA"
_STATE = Path("items") / "state.npz"


class CheckpointError(Exception):
    """A committed checkpoint cannot be used; the message is one line for the user."""


def latest_step(directory: Path) -> int | None:
    """The newest committed checkpoint's step; unfinished and foreign directories do not count."""
    try:
        entries = list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return None
    steps = [int(entry.name) for entry in entries if entry.name.isdecimal() and (entry / MARKER).is_file()]
    return max(steps, default=None)


def save(directory: Path, step: int, arrays: Mapping[str, np.ndarray], at_least_s: float = 0.0) -> None:
    """Write one checkpoint; it exists under its final name only when it is complete."""
    import numpy as np

    began = time.time()
    final, aside = directory / str(step), directory / f"{step}.tmp-{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    (aside / _STATE).parent.mkdir(parents=True)
    with (aside / _STATE).open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    # Slow storage is slow before the commit: a run killed meanwhile leaves only the unfinished directory.
    time.sleep(max(0.0, began + at_least_s - time.time()))
    marker = {"step": step, "init_timestamp": began, "commit_timestamp": time.time()}
    (aside / MARKER).write_text(json.dumps(marker) + "\n", encoding="utf-8")
    if final.exists():  # uncommitted, or restore would have started after it
        shutil.rmtree(final)
    aside.rename(final)


def load(directory: Path, step: int, expected: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a committed checkpoint; raises CheckpointError unless they are whole and fit the model."""
    import numpy as np

    path = directory / str(step) / _STATE
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"the newest checkpoint (step {step}) cannot be read: {path}: {' '.join(str(error).split())};"
            f" not starting over; move {path.parent.parent} away to resume from an older one"
        ) from error
    if set(arrays) != set(expected):
        odd = sorted(set(arrays) ^ set(expected))[0]
        raise CheckpointError(f"checkpoint step {step} is of another model: '{odd}' is in only one of them ({path})")
    for name, array in arrays.items():
        if array.shape != expected[name].shape:
            raise CheckpointError(
                f"checkpoint step {step} is of another model: '{name}' has shape {array.shape}, this run"
                f" needs {expected[name].shape} ({path})"
            )
    return arrays


class Saver:
    """Rank 0's checkpoint writer; with `background` the training goes on while the files are written."""

    def __init__(
        self, directory: Path, progress: Progress, at_least_s: float, *, background: bool, slow_from: int = 0
    ) -> None:
        self._directory, self._progress = directory, progress
        self._at_least_s, self._slow_from = at_least_s, slow_from
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint") if background else None
        self._pending: Future[None] | None = None

    def save(self, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Save now, or hand over to the background once the previous save is done."""
        if self._pool is None:
            self._write(step, arrays)
            return
        self.wait()
        self._pending = self._pool.submit(self._write, step, arrays)

    def wait(self) -> None:
        """Wait for the save in the background; its failure is raised here."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def _write(self, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        began, background = time.perf_counter(), self._pool is not None
        self._progress.record("checkpoint", state="begin", step=step, background=background)
        save(self._directory, step, arrays, self._at_least_s if step >= self._slow_from else 0.0)
        seconds = round(time.perf_counter() - began, 6)
        self._progress.record("checkpoint", state="end", step=step, seconds=seconds, background=background)
        say(f"Saved a checkpoint at step {step}")
