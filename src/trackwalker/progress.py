"""Three lines for a trainer of your own: `from trackwalker.progress import report`, then `report(step=…, loss=…)`.

Costs nothing and does nothing unless the process runs under `trackwalker record` (or was launched by Trackwalker). This
file needs the standard library only and Python 3.8: where Trackwalker is not installed, copy it beside the trainer.
"""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any, Dict, Optional  # noqa: UP035  older Pythons, too

_PLACE = "TRACKWALKER_PROGRESS"
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK")
_state: Dict[str, Any] = {"fd": None, "pid": 0, "last": None}  # noqa: UP006


def report(
    step: Optional[int] = None,  # noqa: UP045
    *,
    loss: Optional[float] = None,  # noqa: UP045
    seconds: Optional[float] = None,  # noqa: UP045
    data_wait: Optional[float] = None,  # noqa: UP045
    phase: str = "train",
    state: Optional[str] = None,  # noqa: UP045
    **more: float,
) -> None:
    """One finished step: its number, and what is known of its loss, duration, time waited for data (seconds).

    Without `seconds` a step lasted since the report before it. Further fields: tokens_per_s, tflops, mfu (of 1),
    grad_norm. Other phases (init, compile, restore, checkpoint, eval) have state="begin" and "end". It never raises.
    """
    try:
        fd = _open()
        if fd is None:
            return
        now = time.time()
        if phase == "train" and step is not None:
            last = _state["last"]
            seconds = now - last if seconds is None and last is not None else seconds
            _state["last"] = now
        fields = {"step": step, "seconds": seconds, "loss": loss, "data_wait_s": data_wait, "state": state, **more}
        record = {"v": 1, "t": now, "phase": phase}
        record.update({name: _plain(value) for name, value in fields.items() if value is not None})
        os.write(fd, (json.dumps(record) + "\n").encode())
    except Exception:  # whatever it is, it is not worth the run
        _state["fd"] = -1


def _open() -> Optional[int]:  # noqa: UP045
    if _state["pid"] != os.getpid():  # also in a process that was forked since
        _state.update(fd=None, pid=os.getpid(), last=None)
    if _state["fd"] is None:
        place = os.environ.get(_PLACE, "")
        rank = next((os.environ[name] for name in _RANKS if os.environ.get(name, "").isdigit()), "")
        if place and rank and any(name in os.environ for name in _LOCAL):  # a launcher's rank has a file of its own
            place = os.path.join(os.path.dirname(place), rank + ".progress.jsonl")
        _state["fd"] = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if place else -1
    return _state["fd"] if _state["fd"] >= 0 else None


def _plain(value: Any) -> Any:
    if isinstance(value, (str, bool, int)):
        return value
    number = float(value)  # a tensor of one element, too
    return number if math.isfinite(number) else str(number)


def hugging_face() -> Any:
    """A callback for transformers.Trainer(callbacks=[hugging_face()])."""
    from transformers import TrainerCallback  # type: ignore[import-not-found,unused-ignore]

    class Reports(TrainerCallback):  # type: ignore[misc,unused-ignore]
        """A step is told once its loss, where it is logged, is known."""

        waiting: Dict[str, Any] = {}  # noqa: UP006,RUF012

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            self._flush()
            self.waiting = {"step": int(state.global_step)}

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
            if self.waiting and logs and "loss" in logs:
                self.waiting["loss"] = logs["loss"]

        def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            self._flush()

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            self._flush()

        def _flush(self) -> None:
            if self.waiting:
                report(**self.waiting)
            self.waiting = {}

    return Reports()


def lightning() -> Any:
    """A callback for lightning.Trainer(callbacks=[lightning()])."""
    try:
        from lightning.pytorch import Callback  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        from pytorch_lightning import Callback  # type: ignore[import-not-found,unused-ignore]

    class Reports(Callback):  # type: ignore[misc,unused-ignore]
        """Every finished batch is a step."""

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            report(step=int(trainer.global_step), loss=None if loss is None else float(loss))

    return Reports()
