"""The pictures behind a verdict: what a report draws, already reduced to what a page can hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trackwalker.record.phases import Phase


@dataclass(frozen=True)
class StepPoint:
    """One completed step of the job (the slowest rank decides its time)."""

    step: int
    time: float  # seconds since the epoch, when the step ended
    seconds: float
    tgs: float | None = None


@dataclass(frozen=True)
class Mark:
    """Something that happened at a moment: a save, an exit, the onset of a cause."""

    time: float
    kind: Literal["onset", "checkpoint", "exit", "cancel", "restart", "end"]
    label: str
    host: str | None = None


@dataclass(frozen=True)
class Lane:
    """One host over time: its deciding metric, when it was seen, and whether it is accused."""

    host: str
    accused: bool
    times: tuple[float, ...] = ()
    values: tuple[float | None, ...] = ()  # None where nothing was recorded: a gap is drawn as a gap


@dataclass(frozen=True)
class Story:
    """Throughput timeline and host lanes of one job."""

    steps: tuple[StepPoint, ...] = ()
    phases: tuple[Phase, ...] = ()
    marks: tuple[Mark, ...] = ()
    lanes: tuple[Lane, ...] = ()
    lane_metric: str = ""  # what the lanes show, in words with its unit
    lane_query: str = field(default="", kw_only=True)  # what gives the numbers back
    start: float | None = None
    end: float | None = None
    notes: tuple[str, ...] = field(default=())
