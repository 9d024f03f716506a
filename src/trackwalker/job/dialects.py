"""How trainers report a finished step: one list, as data, for the node agent and for everybody who reads a job.

Standard library only and Python 3.9 syntax: the node agent carries this file and the list. A file that
TRACKWALKER_DIALECTS names adds dialects to it; a job's agent is given the list as it was when the job was submitted.
"""

from __future__ import annotations

import json
import os
import pkgutil
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Optional

from trackwalker.job.payload import payload_start

MOST_STEPS = 1 << 48  # no run has more: a larger number is damage
VARIABLE = "TRACKWALKER_DIALECTS"
NAME = "dialects.json"
SHORTEST = 7  # bytes of a needle: shorter words stand in too many lines that mean nothing
_NUMBER = r"[-+]?(?:nan|inf|\d[\d,]*\.?\d*(?:e[-+]?\d+)?)"
_FIELDS = {"name", "needles", "pattern", "first", "counts_on", "total_of_run", "smoothed", "about", "beside"}
_GROUPS = {"step", "total", "seconds", "ms", "rate", "tgs", "tflops", "mfu", "loss"}
_MOST_DIGITS = 15
NAN = float("nan")


class DialectError(ValueError):
    """A list of dialects that cannot be used, and why."""

    exit_code = 2


class StepTold(NamedTuple):
    """What a step line says; what it does not say is NaN, a step or total that it does not say is None."""

    step: Optional[int]
    seconds: float
    tgs: float
    tflops: float
    mfu: float  # of 1
    loss: float
    total: Optional[int]
    no_number: bool  # a loss was printed that is no number
    at: int  # where in the line it stands


@dataclass(frozen=True)
class Dialect:
    """How one trainer reports a finished step."""

    name: str
    needles: tuple[bytes, ...]  # one of these stands in each of its lines
    words: tuple[str, ...]  # the same as text
    expression: re.Pattern[str]
    first: int = 1  # the number of the first step
    counts_on: bool = False  # a number that falls back is a restart, not another epoch
    total_of_run: bool = False  # the total it prints is the run's, not an epoch's
    smoothed: bool = False  # the durations are running averages
    beside: str = ""  # the dialect whose lines have to stand beside its own: anything may draw a bar

    @property
    def numbered(self) -> bool:
        """Whether its lines tell the number of the step."""
        return "step" in self.expression.groupindex

    def read(self, text: str) -> StepTold | None:
        """What a line says; None where it is none of this trainer's."""
        match = self.expression.search(text)
        if match is None:
            return None
        told = match.groupdict()
        if len(told.get("step") or "") > _MOST_DIGITS or len(told.get("total") or "") > _MOST_DIGITS:
            return None  # no run has so many: a number that was torn or glued
        seconds = number(told.get("seconds"))
        if told.get("ms") is not None:
            seconds = number(told["ms"]) / 1000.0
        if told.get("rate"):
            seconds = 1.0 / max(number(told["rate"]), 1e-9)
        loss = told.get("loss")
        return StepTold(
            int(told["step"]) if told.get("step") else None,
            seconds,
            number(told.get("tgs")),
            number(told.get("tflops")),
            number(told.get("mfu")) / 100.0,
            number(loss),
            int(told["total"]) if told.get("total") else None,
            (loss or "").lower().strip("+-") in ("nan", "inf"),
            match.start(),
        )


def number(text: str | None) -> float:
    """A number of a step line, with or without commas; NaN where there is none."""
    try:
        return float(text.replace(",", "")) if text else NAN
    except ValueError:
        return NAN


def document() -> dict[str, Any]:
    """The list as it is used now: the package's own and what TRACKWALKER_DIALECTS adds."""
    data = pkgutil.get_data("trackwalker.job", NAME)
    own: dict[str, Any] = json.loads(data or b"{}")
    added = os.environ.get(VARIABLE)
    if not added:
        return own
    try:
        more = json.loads(Path(added).read_bytes())
        if not isinstance(more, dict) or not isinstance(more.get("dialects"), list):
            raise DialectError('it needs a list "dialects"')
    except (OSError, ValueError) as e:
        raise DialectError(f"{VARIABLE}={added}: {e}") from e
    named = {d.get("name") for d in more["dialects"] if isinstance(d, dict)}
    return {**own, "dialects": [*more["dialects"], *(d for d in own["dialects"] if d["name"] not in named)]}


def dialects() -> tuple[Dialect, ...]:
    """All dialects, those that were added first; a list is read once by a process."""
    return _loaded(os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=4)
def _loaded(added: str) -> tuple[Dialect, ...]:
    return tuple(_dialect(each) for each in document()["dialects"])


def _dialect(given: Any) -> Dialect:
    try:
        name = str(given["name"])
        unknown = set(given) - _FIELDS
        needles = tuple(n.encode() for n in given["needles"])
        expression = re.compile(given["pattern"].replace("NUM", _NUMBER), re.IGNORECASE)
    except (KeyError, TypeError, AttributeError, re.error) as e:
        raise DialectError(f"a step-line dialect needs name, needles and pattern: {given!r:.80}: {e}") from e
    wrong = set(expression.groupindex) - _GROUPS
    if unknown or wrong:
        raise DialectError(f"dialect {name}: unknown {', '.join(sorted(unknown | wrong))}")
    if not needles or min(map(len, needles)) < SHORTEST:
        raise DialectError(f"dialect {name}: each needle has at least {SHORTEST} bytes")
    counts_on, total_of_run, smoothed = (bool(given.get(f)) for f in ("counts_on", "total_of_run", "smoothed"))
    first, beside = int(given.get("first", 1)), str(given.get("beside", ""))
    return Dialect(name, needles, tuple(given["needles"]), expression, first, counts_on, total_of_run, smoothed, beside)


def read_step(line: str) -> StepTold | None:
    """What a step line of any trainer says; None for any other line, and for one that is only quoted."""
    for dialect in dialects():
        if dialect.beside or not any(needle in line for needle in dialect.words):
            continue
        told = dialect.read(line)
        if told is not None:
            quoted = payload_start(line)
            return told if quoted is None or told.at < quoted else None
    return None


def by_name(name: str | None) -> Dialect | None:
    """The dialect of this name."""
    return next((d for d in dialects() if d.name == name), None)


def needles() -> tuple[bytes, ...]:
    """What to look for: every step line holds one of these."""
    return tuple(needle for dialect in dialects() for needle in dialect.needles)
