"""Progress from inside a MaxText process: its own functions, wrapped so that they leave a record.

Neither MaxText's output nor its results are touched. What a version of MaxText does not have is not reported; without
the function that writes a step's metrics nothing is installed, and the agent reads the step lines instead.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from trackwalker.job.gpus import by_name, gpus
from trackwalker.trainers.capture import Capture
from trackwalker.trainers.progress import Progress, warn

_LONG_COMPILE_S = 0.5  # JAX compiles hundreds of small functions; only the long ones are news
_COMPILED = "/jax/core/compile/backend_compile_duration"
_SCALARS = {
    "seconds": "perf/step_time_seconds",
    "loss": "learning/loss",
    "grad_norm": "learning/grad_norm",
    "tokens_per_s": "perf/per_device_tokens_per_sec",
    "tflops": "perf/per_device_tflops_per_sec",
}


# Dense peak of GPUs in TFLOP/s, as their makers publish it: what model FLOP/s utilisation is measured against.
OVERRIDE = "HARDWARE_PEAK_TFLOPS"


def peak_tflops(device: str, quantization: str, env: Mapping[str, str] = os.environ) -> float | None:
    """The peak of a device with the matrix products' type; None where it is not known. The user's own number wins."""
    own = _number(env.get(OVERRIDE, ""))
    if own is not None:
        return own
    name = by_name(device)
    if name is None:
        return None
    peaks = gpus()[name]["tflops"]
    return float(peaks["float8"] if "float8" in peaks and "fp8" in quantization.lower() else peaks["bfloat16"])


def local_peak(config: Any) -> float | None:
    """The peak of this process's first device for a MaxText config; JAX must be up."""
    jax: Any = importlib.import_module("jax")
    device = jax.local_devices()[0]
    return peak_tflops(str(device.device_kind), str(getattr(config, "quantization", "") or ""))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def install(progress: Progress) -> Hook:
    """Wrap what MaxText calls while it trains; where this MaxText cannot be hooked one warning says so."""
    hook = Hook(progress)
    checkpointing = _module("checkpointing")
    hook.wait = getattr(checkpointing, "wait_until_finished", None) or _wait
    _wrap(checkpointing, "save_checkpoint", hook.save)
    logger = getattr(_module("metric_logger"), "MetricLogger", None)
    if not progress.is_wanted:
        return hook
    if not hasattr(logger, "write_metrics"):
        progress.close()  # a record would stop the agent from reading the lines
        warn("this MaxText has no MetricLogger.write_metrics to hook: its progress is read from its step lines")
        return hook
    _wrap(logger, "write_metrics", hook.write_metrics)
    _wrap(logger, "__init__", hook.start)
    _wrap(logger, "reset_eval_metrics", hook.begin_eval)
    loaders = _module("data_loader")
    for name in ("DataLoader", "RampUpDataLoader"):
        _wrap(getattr(loaders, name, None), "load_next_batch", hook.load)
    _wrap(checkpointing, "load_state_if_possible", hook.restore)
    with contextlib.suppress(ImportError, AttributeError):
        importlib.import_module("jax.monitoring").register_event_duration_secs_listener(hook.compiled)
    progress.record("init", state="begin")
    return hook


class Hook:
    """What the wrappers do, each around the `call` of the wrapped function. Only `call` may raise."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.wait: Callable[[Any], Any] = _wait
        self._capture = Capture(progress, os.environ.get("TRACKWALKER_PROGRESS", ""))
        self._managers: list[Any] = []
        self._peak: float | None = None
        self._asked_peak = False
        self._began = time.perf_counter()
        self._eval_began: float | None = None
        self._loading = False
        # MaxText writes a step's metrics one step later, when the next batch is already there: first in, first out.
        self._waits: deque[float] = deque(maxlen=64)

    def commit(self) -> None:
        """Wait until every save is complete; raises what went wrong with one."""
        for manager in self._managers:
            self.wait(manager)

    def write_metrics(
        self, call: Callable[[], Any], logger: Any, metrics: Any, step: Any, *rest: Any, **named: Any
    ) -> Any:
        kind = rest[0] if rest else named.get("metric_type", named.get("is_training", "train"))
        with _contained():
            if kind in ("train", True):  # before the call: it may end the process because of a NaN
                self._record_step(metrics["scalar"], int(step), getattr(logger, "config", None))
                self._trace_on_request(int(step), getattr(logger, "config", None))
            elif kind == "eval" and self._eval_began is not None:
                self._progress.record("eval", state="end", seconds=_since(self._eval_began))
                self._eval_began = None
        return call()

    def _trace_on_request(self, step: int, config: Any) -> None:
        # The next step is under way already: a trace begins within it and ends within the one behind the last.
        self._capture.folder = self._capture.folder or str(getattr(config, "tensorboard_dir", "") or "")
        self._capture.end_step(step)
        self._capture.begin_step(step + 1)

    def _record_step(self, scalars: Any, step: int, config: Any) -> None:
        # Reading a value waits until the device has it, as MaxText's own log line of this step does next.
        fields = {key: float(scalars[tag]) for key, tag in _SCALARS.items() if tag in scalars}
        peak = self._peak_tflops(config)
        if peak and "tflops" in fields:
            fields["mfu"] = round(fields["tflops"] / peak, 6)
        if self._waits:
            fields["data_wait_s"] = round(self._waits.popleft(), 6)
        self._progress.record("train", step=step, **fields)

    def _peak_tflops(self, config: Any) -> float | None:
        if not self._asked_peak:
            self._asked_peak = True
            with _contained():
                self._peak = local_peak(config)
        return self._peak

    def start(self, call: Callable[[], Any], *_: Any, **__: Any) -> Any:
        result = call()
        self._progress.record("init", state="end", seconds=_since(self._began))
        return result

    def begin_eval(self, call: Callable[[], Any], *_: Any, **__: Any) -> Any:
        self._eval_began = time.perf_counter()
        self._progress.record("eval", state="begin")
        return call()

    def load(self, call: Callable[[], Any], *_: Any, **__: Any) -> Any:
        if self._loading:  # one loader hands over to another
            return call()
        self._loading, began = True, time.perf_counter()
        try:
            return call()
        finally:
            self._loading = False
            self._waits.append(time.perf_counter() - began)

    def save(
        self, call: Callable[[], Any], manager: Any, step: Any, state: Any, config: Any = None, *rest: Any, **named: Any
    ) -> Any:
        if manager is not None and not any(manager is known for known in self._managers):
            self._managers.append(manager)
        number, due, background = 0, False, False
        with _contained():
            number, background = int(step), bool(config.async_checkpointing)
            force = named.get("force", rest[1] if len(rest) > 1 else False)
            due = bool(force) or number % int(config.checkpoint_period) == 0
        if due:
            self._progress.record("checkpoint", state="begin", step=number)
        began, saved = time.perf_counter(), False
        try:
            result = call()
            saved = bool(result)
            return result
        finally:
            if due or saved:
                # An asynchronous save is only begun here: how long it blocked is known, that it is complete is not.
                end = {"seconds": _since(began), "saved": saved, "committed": saved and not background}
                self._progress.record("checkpoint", state="end", step=number, **end)

    def restore(self, call: Callable[[], Any], *_: Any, **__: Any) -> Any:
        began = time.perf_counter()
        self._progress.record("restore", state="begin")
        result = call()
        parts = result if isinstance(result, tuple) else (result,)
        found = any(part is not None for part in parts)
        self._progress.record("restore", state="end", seconds=_since(began), restored=found)
        return result

    def compiled(self, event: str, seconds: float, **_: Any) -> None:
        if event == _COMPILED and seconds >= _LONG_COMPILE_S:
            self._progress.record("compile", state="end", seconds=round(seconds, 6))


def _wait(manager: Any) -> None:
    manager.wait_until_finished()


def _module(name: str) -> ModuleType | None:
    for package in ("maxtext.common", "MaxText"):  # as of 2026, and before
        with contextlib.suppress(ImportError):
            return importlib.import_module(f"{package}.{name}")
    return None


def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    original = vars(owner).get(name) if owner is not None else None
    if original is None:
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **named: Any) -> Any:
        return around(functools.partial(original, *args, **named), *args, **named)

    setattr(owner, name, wrapper)


@contextlib.contextmanager
def _contained() -> Iterator[None]:
    with contextlib.suppress(Exception):  # whatever we misunderstand, it is not worth the run
        yield


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 6)
