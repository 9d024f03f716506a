"""A trace on request: while it trains, a rank looks for a request in the job directory and traces the steps it names.

The request (`capture.json`, written by `trackwalker perf capture`) names the first step, so that all ranks trace the
same ones. Standard library only; JAX is asked for when there is something to trace. Nothing here can end the run.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trackwalker.trainers.progress import Progress, warn

REQUEST = "capture.json"
LATE = "the request came too late"
_LOOK_S = 0.5  # a file on a network file system is not asked for at every step
_LEVELS = 6  # folders between a rank's progress file and its job directory
_MOST_STEPS = 1000


class Capture:
    """One rank's side of a capture; call `begin_step` and `end_step` around every step."""

    def __init__(self, progress: Progress, progress_path: str, folder: str = "") -> None:
        self._progress = progress
        self._request = _request_file(progress_path)
        self.folder = folder  # where profiles go; empty: tensorboard/ in the job directory
        self._looked = 0.0
        self._order: dict[str, Any] | None = None
        self._done: set[str] = set()
        self._began: float | None = None
        self._last = 0

    @property
    def tracing(self) -> bool:
        """Whether the profiler runs now, because of a request."""
        return self._began is not None

    def begin_step(self, step: int) -> None:
        """Before a step: start the profiler when the step is the first of a request."""
        if self._request is None or self.tracing:
            return
        if self._order is None:
            self._look()
        if self._order is None:
            return
        if step == self._order["from_step"]:
            self._start(step, self._order)
        elif step > self._order["from_step"]:  # the other ranks may have begun: half a trace is no answer
            self._done.add(self._order["id"])
            self._fail(step, LATE)

    def end_step(self, step: int) -> None:
        """After a step: stop the profiler when the step was the last of a request."""
        if self.tracing and step >= self._last:
            self._stop(step)

    @contextlib.contextmanager
    def marked(self, step: int) -> Iterator[None]:
        """Around the work of a step: its number goes into the trace."""
        if not self.tracing:
            yield
            return
        profiler: Any = importlib.import_module("jax.profiler")
        with profiler.StepTraceAnnotation("train", step_num=step):
            yield

    def close(self) -> None:
        """The run is over: what was traced so far is written."""
        if self.tracing:
            self._stop(self._last)

    def _look(self) -> None:
        now = time.monotonic()
        if self._request is None or now - self._looked < _LOOK_S:
            return
        self._looked = now
        try:
            order = json.loads(self._request.read_text(encoding="utf-8"))
            order = {
                "id": str(order["id"]),
                "from_step": int(order["from_step"]),
                "steps": min(max(int(order["steps"]), 1), _MOST_STEPS),
                "python": bool(order.get("python")),
            }
        except (OSError, ValueError, KeyError, TypeError):
            return  # no request, or half of one
        if order["id"] not in self._done:
            self._order = order

    def _start(self, step: int, order: dict[str, Any]) -> None:
        self._done.add(order["id"])
        self._last = step + order["steps"] - 1
        self._progress.record("capture", state="begin", step=step, request=order["id"])
        began = time.time()  # starting the profiler takes a while, and lengthens this step
        try:
            profiler: Any = importlib.import_module("jax.profiler")
            folder = self._folder()
            os.makedirs(folder, exist_ok=True)
            options = _options(profiler, order["python"])
            profiler.start_trace(folder, **({"profiler_options": options} if options is not None else {}))
            self._began = began
        except Exception as error:  # somebody else is tracing, a full disk: training goes on
            self._fail(step, f"{type(error).__name__}: {error}"[:300])

    def _stop(self, step: int) -> None:
        order, began = self._order or {}, self._began or time.time()
        self._began = None
        try:
            profiler: Any = importlib.import_module("jax.profiler")
            profiler.stop_trace()
        except Exception as error:
            self._fail(step, f"{type(error).__name__}: {error}"[:300])
            return
        seconds = round(time.time() - began, 6)
        self._progress.record(
            "capture", state="end", step=step, seconds=seconds, request=order.get("id"), folder=self._folder()
        )
        self._order = None

    def _fail(self, step: int, said: str) -> None:
        order, self._order, self._began = self._order or {}, None, None
        self._progress.record("capture", state="end", step=step, seconds=0.0, request=order.get("id"), error=said)
        warn(f"no trace was taken ({said}); training goes on")

    def _folder(self) -> str:
        return self.folder or str(self._request.parent / "tensorboard" if self._request else "tensorboard")


def _request_file(progress_path: str) -> Path | None:
    """Where a request would lie: the job directory is the one above the progress file that has a run.json."""
    if not progress_path:
        return None
    for folder in list(Path(progress_path).absolute().parents)[:_LEVELS]:
        with contextlib.suppress(OSError):
            if (folder / "run.json").is_file():
                return folder / REQUEST
    return None


def _options(profiler: Any, python: bool) -> Any:
    """Python's own calls only when asked for: they slow the run and fill the trace."""
    with contextlib.suppress(Exception):
        options = profiler.ProfileOptions()
        options.python_tracer_level = 1 if python else 0
        return options
    return None
