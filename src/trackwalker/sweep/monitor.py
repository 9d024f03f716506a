"""Is a running job of a sweep still moving? By the rules of `watch`: its own pace, its phase, and a second signal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from trackwalker.errors import TrackwalkerError
from trackwalker.job.layout import Job
from trackwalker.watch.confirm import Second, is_hang, second_signal
from trackwalker.watch.detect import detect
from trackwalker.watch.incident import Condition
from trackwalker.watch.jobs import Watched

_CONFIRM_EVERY_S = 15.0
_ODD_S = 30.0  # until a job whose files could not be understood is looked at again
# As the failure policy names them; an evaluation or a missing batch belongs to training.
_PHASES = {"init": "init", "restore": "init", "compile": "compile", "checkpoint": "checkpoint"}


@dataclass(frozen=True)
class Hang:
    """A job that no longer moves."""

    phase: str
    says: str


def _second(job: Job) -> Second:
    return second_signal(job.dir, job.id)


class Monitor:
    """Follows one running job."""

    def __init__(self, job: Job, confirm: Callable[[Job], Second] = _second) -> None:
        self._watched = Watched(job)
        self._confirm = confirm
        self._asked = 0.0

    @property
    def step(self) -> int | None:
        """The last completed step."""
        return self._watched.signs.course.last_step

    def look(self, now: float | None = None) -> Hang | None:
        """Take in what is new; a hang is told only when a second signal does not speak against it."""
        now = time.time() if now is None else now
        watched = self._watched
        if now < watched.look_at:
            return None
        try:
            watched.read(now)
            silent = next((c for c in detect(watched.signs, now, {}) if _is_silence(c)), None)
        except (TrackwalkerError, ValueError, KeyError, TypeError, OSError):
            watched.look_at = now + _ODD_S  # odd files of one job; the scheduler still tells of its end
            return None
        if silent is None or watched.ended_at is not None:
            return None
        return self._sure(silent, now)

    def _sure(self, silent: Condition, now: float) -> Hang | None:
        says = silent.title
        if silent.kind != "data-stall":  # there the trainer itself says that its batch is overdue
            if now - self._asked < _CONFIRM_EVERY_S:
                return None
            self._asked = now
            second = self._confirm(self._watched.job)
            if not is_hang(second, silent.silent_s, silent.limit_s):
                return None
            says = f"{says}; {second.says}"
        return Hang(self._phase(now), says)

    def _phase(self, now: float) -> str:
        course = self._watched.signs.course
        quiet = course.quiet(now)
        if quiet is not None and quiet.phase in _PHASES:
            return _PHASES[quiet.phase]
        return "first-step" if course.last_step is None else "train"


def _is_silence(condition: Condition) -> bool:
    return condition.kind in ("hang", "data-stall") or (condition.kind == "checkpoint" and condition.subject == "stuck")
