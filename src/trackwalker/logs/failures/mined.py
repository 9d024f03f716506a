"""Error lines by their templates, in one pass: which are new against the run's healthy part, which ranks print them.

Numbers, addresses, paths and quoted names are cut out of a line; what remains is its template. Memory is bounded by the
number of templates, not by the log.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trackwalker.logs.failures.structure import Told, frame_of, read
from trackwalker.logs.scanning.lines import LAUNCHERS, Body
from trackwalker.logs.scanning.steps import Steps

_MOST = 2000  # templates
_MOST_RANKS = 512  # of one template
_MOST_SEEN = 20_000  # of all: below that a template that ten thousand ranks print leaves room for the odd one's
_KEPT = 3  # occurrences of one template on one rank, the latest
_QUOTED = 400
_TRACEBACK = 60  # lines of a traceback, interleaved with those of other ranks
_STEPS_AFTER = 3  # a run that completes this many further steps did not die of what came before
_MOST_NEW = 400
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|/[\w./@:+=-]+|'[^']{0,80}'|\"[^\"]{0,80}\"|\d+(?:[.:,_]\d+)*")


@dataclass
class Seen:
    """One template on one rank: the first line and the latest ones."""

    rank: int | None
    task: int | None
    host: str
    file: str
    line: int
    text: str
    clock: float | None
    told: Told
    template: str
    count: int = 1
    lines: list[int] = field(default_factory=list)
    frame: str = ""  # the innermost frame of the job's own code, of an exception
    actor: str = ""  # the process, as its launcher labels it

    @property
    def last_line(self) -> int:
        """Where it was seen last."""
        return self.lines[-1]


_Key = tuple[str, str, int | None, str, str]  # template, file, rank, host, process

_OF_DATA = re.compile(
    r"(?i)data_?(?:sets?|load)|utils/data/|__getitem__|preproc|collat|tokeniz|load_(?:data|sampl|batch|imag|audio)"
)


class Mined:
    """The error lines of a job that no signature knows, and the frames of its tracebacks."""

    def __init__(self) -> None:
        self._seen: dict[_Key, Seen] = {}
        self._ranks: dict[str, list[_Key]] = {}  # by template: where it was seen
        self._frames: dict[tuple[str, int | None], tuple[int, str]] = {}
        self.frames: dict[tuple[str, int | None], list[tuple[int, str]]] = {}  # innermost own frame of each traceback
        self._data: dict[tuple[str, int | None], int] = {}  # the last frame that works on data
        self.labels: Counter[str] = Counter()
        self.harmless: deque[tuple[str, int]] = deque(maxlen=_MOST)  # file and line of what looks like a failure only

    def frame(self, body: Body, file: str, number: int) -> None:
        """A line of a traceback: the innermost one outside libraries is remembered."""
        found = frame_of(body.text)
        if found is None:
            return
        where, library = found
        key = (file, body.rank)
        if _OF_DATA.search(body.text):
            self._data.setdefault(key, number)
        if not library:
            self._frames[key] = (number, where)
            kept = self.frames.setdefault(key, [])
            if kept and number - kept[-1][0] <= _TRACEBACK:
                kept[-1] = (number, where)
            elif len(kept) < _KEPT:
                kept.append((number, where))

    def stands(self, file: str, rank: int | None, line: int) -> tuple[str, bool]:
        """Where the traceback that ends with a line was raised, and whether the first one read data."""
        frames = self.frames.get((file, rank), ())
        where = next((where for at, where in frames if 0 <= line - at <= _TRACEBACK), "")
        return where, 0 <= line - self._data.get((file, rank), line + 1) <= _TRACEBACK

    def take(self, body: Body, file: str, number: int) -> Told | None:
        """A line that no signature knows: kept if its structure is an error's."""
        told = read(body)
        if told is None:
            return None
        template = template_of(body)
        host = body.host or body.named or body.label
        key = (template, file, body.rank, host, body.actor)
        seen = self._seen.get(key)
        if seen is not None:
            seen.count += 1
            seen.lines = [*seen.lines[-(_KEPT - 1) :], number]
            return told
        _, frame = self._frames.get((file, body.rank), (0, ""))
        near = number - self._frames.get((file, body.rank), (-_TRACEBACK, ""))[0] <= _TRACEBACK
        self._keep(key, Seen(
            body.rank, body.task, host, file, number, body.text.strip()[:_QUOTED], body.clock, told, template,
            lines=[number], frame=frame if near and told.exception else "", actor=body.actor,
        ))  # fmt: skip
        return told

    def join(self, later: Mined) -> None:
        """What files gave that come after these."""
        for key, seen in later._seen.items():
            self._keep(key, seen)
        self.frames = {**later.frames, **self.frames}
        self._data = {**later._data, **self._data}
        self.labels.update(later.labels)
        self.harmless += later.harmless

    def _keep(self, key: _Key, seen: Seen) -> None:
        """Within bounds: of a template that too many ranks print, those who printed it first."""
        mine = self._ranks.setdefault(seen.template, [])
        if not mine and len(self._ranks) > _MOST:
            del self._ranks[seen.template]
        elif not mine or (len(mine) < _MOST_RANKS and len(self._seen) < _MOST_SEEN):
            mine.append(key)
            self._seen[key] = seen
        elif seen.clock is not None:
            last = max(mine, key=lambda each: _clock(self._seen[each]))
            if seen.clock < _clock(self._seen[last]):
                mine[mine.index(last)] = key
                del self._seen[last]
                self._seen[key] = seen

    def lines(self, file: str, more: Sequence[Seen]) -> set[int]:
        """The lines that are an error's, also those of `more`, and those of one file that only look like it."""
        return {s.line for s in (*self.all(), *more)} | self.looks_bad(file)

    def looks_bad(self, file: str) -> set[int]:
        """The lines of one file that only look like an error's."""
        return {line for name, line in self.harmless if name == file}

    def all(self) -> list[Seen]:
        """Everything that was kept, in the order of the files and lines."""
        return list(self._seen.values())


def template_of(body: Body) -> str:
    """A line without what varies."""
    return _VARIES.sub("*", body.text[:300]).strip()


def new_errors(mined: Mined, steps: Steps, main: str, outputs: Sequence[int] = ()) -> list[Seen]:
    """What is an error here and was not printed while the run was well.

    Where steps stand in several `outputs` one below the other, what stands above a step is not before it.
    """
    healthy_until = int(np.partition(steps.line, -_STEPS_AFTER)[-_STEPS_AFTER]) if len(steps) >= _STEPS_AFTER else 0
    if len(steps) and any(int(steps.line.min()) < line < int(steps.line.max()) for line in outputs):
        healthy_until = 0
    usual = {s.template for s in mined.all() if s.file == main and s.line < healthy_until}
    found = [s for s in mined.all() if s.template not in usual and not s.told.is_end and not s.told.python]
    found = [s for s in found if s.task is None or not LAUNCHERS.match(s.text)]
    return found if len(found) <= _MOST_NEW else _first_of_each(found)


def _first_of_each(found: list[Seen]) -> list[Seen]:
    """The most that is kept, in their order: of every template the first in time, then the second ones, and so on."""
    turn: Counter[str] = Counter()
    turns = []
    for at, seen in sorted(enumerate(found), key=lambda each: _clock(each[1])):
        turns.append((turn[seen.template], at))
        turn[seen.template] += 1
    return [found[at] for at in sorted(at for _, at in sorted(turns)[:_MOST_NEW])]


def _clock(seen: Seen) -> float:
    return math.inf if seen.clock is None else seen.clock
