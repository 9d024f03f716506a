"""progress.jsonl: what the ranks wrote down themselves, record by record; the one place that knows its fields."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from trackwalker.job import journal
from trackwalker.job.dialects import MOST_STEPS

NAME = "progress.jsonl"


class Done(NamedTuple):
    """One rank's step, completed; what the trainer did not tell is NaN."""

    rank: int
    step: int
    at: float
    seconds: float
    tgs: float
    tflops: float
    mfu: float
    data_wait_s: float
    loss: float | None  # None where none was told: a loss may be no number


class Pause(NamedTuple):
    """The begin or the end of something that is no step: init, compile, restore, checkpoint, eval, capture."""

    rank: int
    phase: str
    state: str
    at: float
    seconds: float  # of an end: how long it took
    background: bool
    request: str = ""  # of a capture: which order it answers, where its trace lies, what went wrong
    folder: str = ""
    error: str = ""


@dataclass
class Told:
    """A whole journal: the steps in the order of the file, and what was done between them."""

    done: list[Done] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    begin: float | None = None  # the first sign of a rank
    unreadable: int = 0  # lines of something else; an unfinished last one is a writer at work

    @property
    def last(self) -> int | None:
        """The last step that any rank completed."""
        return max((d.step for d in self.done), default=None)


def entry(record: dict[str, Any]) -> Done | Pause | None:
    """What a record says; None where it is not one of ours."""
    try:
        rank, at, phase = int(record.get("rank", 0)), float(record["t"]), record.get("phase")
        if not math.isfinite(at):
            return None
        if phase == "train":
            step = int(record["step"])
            if not 0 <= step < MOST_STEPS:
                return None
            names = ("seconds", "tokens_per_s", "tflops", "mfu", "data_wait_s")
            seconds, tgs, tflops, mfu, wait = (_number(record.get(name)) for name in names)
            loss = None if record.get("loss") is None else _number(record["loss"])
            return Done(rank, step, at, seconds, tgs, tflops, mfu, wait, loss)
        if record.get("state") in ("begin", "end") and phase:
            seconds = _number(record.get("seconds"))
            asked = tuple(str(record.get(name) or "") for name in ("request", "folder", "error"))
            return Pause(rank, str(phase), record["state"], at, seconds, bool(record.get("background")), *asked)
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    return None


def read_progress(path: Path | None) -> Told:
    """The journal of a job; empty where there is none."""
    out = Told()
    if path is None:
        return out
    records = journal.read(path)
    out.unreadable = records.damaged - (1 if records.torn_tail and records.damaged else 0)
    for record in records.items:
        found = entry(record)
        if found is None:
            continue
        out.begin = found.at if out.begin is None else min(out.begin, found.at)
        if isinstance(found, Done):
            out.done.append(found)
        else:
            out.pauses.append(found)
    return out


def _number(value: Any) -> float:
    """A number of a record; "nan" and "inf" travel as words."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
