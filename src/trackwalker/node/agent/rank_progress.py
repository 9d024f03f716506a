"""What one rank has done so far, added up from its progress records: steps, phases, checkpoints, bad values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

FIELDS = ("step", "seconds", "tokens_per_s", "tflops", "loss", "grad_norm", "data_wait_s")  # of a step's record
_MOST_PHASES = 16  # a trainer may name its own, but not without end
_DATA_WAIT = "data_wait"
_TAGS = {"loss": "learning/loss", "grad_norm": "learning/grad_norm"}  # TensorBoard's names of what a record may hold


@dataclass
class Ledger:
    """Totals of one rank. Its time is divided among phases without rest: what no record claims is init or train."""

    host: str
    step: int | None = None
    step_at: float | None = None
    steps: int = 0
    step_seconds: float = 0.0
    data_wait: float = 0.0
    nonfinite: dict[str, int] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)  # phases begun and not ended, the innermost last
    base: str = "init"
    phase_at: float | None = None  # since when the current phase lasts
    settled: float | None = None  # up to when the time is divided
    saves: int = 0
    save_s: float | None = None
    saving: float = 0.0
    blocking: float = 0.0
    saved_step: int | None = None
    restore_s: float | None = None
    reported: list[str] = field(default_factory=list)  # fields that its step records had

    @property
    def phase(self) -> str:
        """What the rank is doing."""
        return self.open[-1] if self.open else self.base

    def take(self, record: dict[str, Any]) -> None:
        """Take in one progress record of this rank."""
        phase, state, at = str(record.get("phase")), record.get("state"), float(record["t"])
        if phase not in self.phases and len(self.phases) >= _MOST_PHASES:
            phase = "other"
        if phase == "train":
            self._take_step(record, at)
        elif phase == "done":
            self._settle(at)
            self.open.clear()
            self._move_to("done", at)
        elif state == "begin":
            if phase == _DATA_WAIT:
                self._await_data(at)
            elif not record.get("background"):
                self._begin(phase, at)
        elif state == "end":
            seconds = _duration(record.get("seconds"))
            if not record.get("background"):
                self._end(phase, at, seconds)
            self._take_checkpoint(phase, record, seconds)

    def _take_step(self, record: dict[str, Any], at: float) -> None:
        step = number(record.get("step"))
        if step is None or not math.isfinite(step):
            return
        seconds, wait = _duration(record.get("seconds")), _duration(record.get("data_wait_s"))
        self.step, self.step_at = int(step), at
        self.steps += 1
        if _DATA_WAIT in self.open:
            self.open.remove(_DATA_WAIT)
            self.phase_at = at
        self.step_seconds += seconds
        if self.base != "train":
            self._settle(at - seconds)
            self._move_to("train", at - seconds)
        begun = at - seconds if self.settled is None else self.settled
        wait = min(wait, max(at - begun, 0.0))
        self.data_wait += wait
        self._settle(at, wait)
        for key, tag in _TAGS.items():
            value = number(record.get(key))
            if value is not None:
                self.nonfinite[tag] = self.nonfinite.get(tag, 0) + (not math.isfinite(value))
        self.reported += [k for k in FIELDS if k not in self.reported and number(record.get(k)) is not None]

    def _await_data(self, at: float) -> None:
        """A batch is overdue. The step that gets it tells how long that took, and only then is the time divided."""
        if _DATA_WAIT not in self.open:
            self.open.append(_DATA_WAIT)
            self.phase_at = at

    def _begin(self, phase: str, at: float) -> None:
        self._settle(at)
        if phase == "init":  # the trainer has started, perhaps again
            self.open.clear()
            self.base = "init"
        else:
            if phase in self.open:  # begun before and never ended: the trainer has started again
                del self.open[self.open.index(phase) :]
            self.open.append(phase)
        self.phase_at = at

    def _end(self, phase: str, at: float, seconds: float) -> None:
        if phase == "init":
            self._settle(at)
            return
        if phase in self.open:
            self._settle(at)
            del self.open[self.open.index(phase) :]
            if phase == "compile" and not self.open:
                self.base = "train"
        else:  # told only now: take it out of what went on meanwhile
            self._settle(at - seconds)
            self.phases[phase] = self.phases.get(phase, 0.0) + max(0.0, at - max(self.settled or 0.0, at - seconds))
            self.settled = at
        self.phase_at = at

    def _take_checkpoint(self, phase: str, record: dict[str, Any], seconds: float) -> None:
        if phase == "checkpoint" and record.get("saved", True):
            self.saves += 1
            self.save_s = seconds
            self.saving += seconds
            self.blocking += 0.0 if record.get("background") else seconds
            step = number(record.get("step"))
            if step is not None and math.isfinite(step) and record.get("committed", True):
                self.saved_step = int(step)
        elif phase == "restore" and record.get("restored", True):
            self.restore_s = seconds

    def _settle(self, at: float, wait: float = 0.0) -> None:
        """Give the time up to now to the current phase, less what was spent waiting for data."""
        if self.settled is not None and at > self.settled:
            self.phases[self.phase] = self.phases.get(self.phase, 0.0) + at - self.settled - wait
            if wait:
                self.phases[_DATA_WAIT] = self.phases.get(_DATA_WAIT, 0.0) + wait
        self.settled = at if self.settled is None else max(at, self.settled)

    def _move_to(self, base: str, at: float) -> None:
        self.base = base
        if not self.open:
            self.phase_at = at


def _duration(value: Any) -> float:
    seconds = number(value)
    return seconds if seconds is not None and 0 <= seconds < math.inf else 0.0


def number(value: Any) -> float | None:
    """A field as a number (journals write "nan" for NaN), None where it is none."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
