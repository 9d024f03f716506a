"""The step lines of a log, read with the dialects of job/dialects.json: one rank's in full, or every rank's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

import numpy as np
from numpy.typing import NDArray

from trackwalker.job.dialects import Dialect, dialects
from trackwalker.job.payload import payload_start
from trackwalker.logs.scanning.chunk import LABEL
from trackwalker.logs.scanning.lines import clean, parse
from trackwalker.logs.scanning.scan import StepLines, at_once
from trackwalker.logs.scanning.stamps import durations, written_at
from trackwalker.logs.scanning.steptable import Columns, read_table

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FRONT = 400  # lines: enough for a median
_MOST_CLOCKS = 512  # ranks of one file
_PROCESS = re.compile(rb"^(?:\x1b\[[0-9;]*m)*\(((?:[\w.]+ )?pid=\d+(?:, ip=[^)\s]+)?)\)")


@dataclass
class Steps:
    """The steps of the rank that was read in full, and how far every rank came."""

    rank: int | None = None
    dialect: str | None = None
    total: int | None = None  # as the step lines state it
    first_number: int = 0
    step: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    seconds: Floats = field(default_factory=lambda: np.zeros(0))
    tgs: Floats = field(default_factory=lambda: np.zeros(0))
    loss: Floats = field(default_factory=lambda: np.zeros(0))
    line: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    last_by_rank: dict[int, int] = field(default_factory=dict)
    has_loss: NDArray[np.bool_] = field(
        default_factory=lambda: np.zeros(0, np.bool_)
    )  # a loss was printed that is no number
    written: Floats = field(default_factory=lambda: np.zeros(0))  # each line's own time, nan where it has none
    others: dict[int, Steps] = field(default_factory=dict)  # the other ranks' where every rank was read
    front: tuple[bytes, ...] = ()  # the first lines as they stand: trainers tell more in them than a table keeps

    def __len__(self) -> int:
        return len(self.step)

    @property
    def last(self) -> int | None:
        """The last step any rank completed."""
        known = [*self.last_by_rank.values(), *([int(self.step.max())] if len(self) else [])]
        return max(known, default=None)

    def place(self, step: int) -> int | None:
        """Where the last line that tells of a step stands among these."""
        found = np.flatnonzero(self.step == step)
        return int(found[-1]) if len(found) else None

    @property
    def losses(self) -> dict[int, float]:
        """The loss of every step that tells one, a number or not; of a step done again the later."""
        told = np.isfinite(self.loss) | (self.has_loss if len(self.has_loss) else False)
        return dict(zip(self.step[told].tolist(), self.loss[told].tolist(), strict=True))


class StepReader:
    """Collects step lines chunk by chunk; the scan may give one rank's or, asked for them, every rank's."""

    def __init__(
        self, rank: int | None = None, lead: int | None = None, front: int = _FRONT, brief: bool = False
    ) -> None:
        self._given = rank
        self.brief = brief and rank is not None  # of a rank's own file, beside the main log, only the last step counts
        self._lead = lead  # the rank to read, instead of the lowest
        self._others: dict[int, StepReader] = {}
        self._rows: list[tuple[int, float, float, float, int]] = []
        self._dialect: Dialect | None = None
        self._table: Dialect | None = None  # where a piece may be read at once
        self.total: int | None = None
        self.label: bytes | None = None
        self._last: dict[bytes, bytes] = {}
        self._inner: int | None = None
        self._processes: dict[bytes, int] = {}
        self._with_loss: list[int] = []  # lines whose loss is printed as no number
        self._written: dict[int, float] = {}  # by line
        self._columns = Columns()
        self._mixed = False  # some lines were read one by one
        self._given_out = 0  # lines that left `_rows`
        self._front: list[bytes] = []
        self._most_front = front
        self._paired = False  # the lines that have to stand beside this dialect's do
        self.rank: int | None = rank

    def choose(self, labels: list[bytes]) -> bytes | None:
        """Whose steps to read: the lowest rank's, or the one that was asked for."""
        ranks = {label: _rank(label, self._given) or 0 for label in labels}
        by_rank = sorted(labels, key=lambda label: (ranks[label] != self._lead, ranks[label], label))
        self.label = by_rank[0] if by_rank else None
        if self.label is not None:
            self.rank = _rank(self.label, self._given)
        return self.label

    def take(self, lines: StepLines) -> None:
        """One chunk's step lines."""
        if self.brief and self._numbered(lines):
            self._last.update(lines.last)
            return
        if lines.starts is not None:
            lines = self._apart(lines, lines.starts)
        if self.rank is None:
            lines = self._by_parsed_rank(lines)
        self._last.update(lines.last)
        if len(self._front) < self._most_front:
            self._front += lines.lines[: self._most_front - len(self._front)]
        if self._table is not None and self._take_many(lines, self._table):
            return
        unknown, texts = self._table is None, lines.lines
        for at, (raw, number) in enumerate(zip(texts, lines.numbers.tolist(), strict=True), 1):
            if (row := self._read(raw, number)) is not None:
                self._rows.append(row)
            if unknown and self._table is not None:  # the first line told how the others are written
                rest = StepLines(b"\n".join(texts[at:]), lines.numbers[at:])
                if len(rest.numbers) and self._take_many(rest, self._table):
                    return
                unknown = False

    def _numbered(self, lines: StepLines) -> bool:
        """Whether its lines tell their step: of those that do not, all have to be counted."""
        if self._dialect is None and lines.last:
            self._read(next(iter(lines.last.values())), 0)
        return self._dialect is not None and "step" in self._dialect.expression.groupindex

    def _apart(self, lines: StepLines, starts: list[bytes]) -> StepLines:
        """The lines of the rank to read; the others' go to readers of their own."""
        known = {s: -1 if (rank := _rank(s, self._given)) is None else rank for s in set(starts)}
        ranks = np.array([known[s] for s in starts], np.int64)
        own = -1 if self.rank is None else self.rank
        for rank in sorted({*ranks.tolist()} - {own, -1}):
            reader = self._others.setdefault(rank, StepReader(rank, front=0))
            mine = lines.pick((ranks == rank).tolist(), {})
            reader._dialect, reader._table = self._dialect, self._table
            reader.take(mine)
        return lines.pick((ranks == own).tolist(), lines.last)

    def _by_parsed_rank(self, lines: StepLines) -> StepLines:
        """Lines that begin with a time or an actor's name show their rank only when taken apart; read one rank's."""
        bodies = [(parse(raw), raw) for raw in lines.lines]
        ranks = {b.rank for b, _ in bodies if b is not None and b.rank is not None}
        if not ranks:
            return self._by_process(lines)
        self._inner = min(ranks) if self._inner is None else self._inner
        last = {b"%d: " % (b.rank or 0): raw for b, raw in bodies if b is not None}
        own = [b is not None and b.rank == self._inner for b, _ in bodies]
        return lines.pick(own, last)

    def _by_process(self, lines: StepLines) -> StepLines:
        """Ray's driver log without task labels: only process and address tell the ranks apart; read the first one's."""
        texts = lines.lines
        owners = [m[1] if (m := _PROCESS.match(raw)) else None for raw in texts]
        if None in owners:
            return lines
        numbered = [self._processes.setdefault(owner, len(self._processes)) for owner in owners if owner is not None]
        last = {b"%d: " % n: raw for n, raw in zip(numbered, texts, strict=True)}
        return lines.pick([n == 0 for n in numbered], last)

    def _take_many(self, lines: StepLines, dialect: Dialect) -> bool:
        """A piece whose lines are all plain ones of their dialect, all of them at once."""
        table = lines.table if lines.table is not None else read_table(lines.lines, dialect)
        if table is None:
            return False
        self._move_rows()
        self._columns.add(table, lines.numbers)
        return True

    def _move_rows(self) -> None:
        """What was read line by line so far joins the table."""
        if self._rows:
            few = np.array(self._rows, float)
            self._columns.add(few[:, :4], few[:, 4].astype(np.int64))
            self._given_out += len(few)
            self._mixed, self._rows = True, []

    def _read(self, raw: bytes, number: int) -> tuple[int, float, float, float, int] | None:
        text = raw.decode("utf-8", "replace") if b"\x1b" not in raw and b"\r" not in raw else clean(raw)
        given = self._dialect
        settled = given is not None and not given.beside and all(d.beside != given.name for d in dialects())
        for dialect in (given,) if given is not None and settled else dialects():
            told = dialect.read(text)
            if told is None or ((quoted := payload_start(text)) is not None and told.at >= quoted):
                continue
            if given is not None and given.beside == dialect.name:  # what a bar does not tell
                self._paired = True
                if number and self._rows:
                    self._rows[-1] = (*self._rows[-1][:3], told.loss, self._rows[-1][4])
                return None
            if given is dialect and dialect.beside and (self._paired or not number) and told.total != self.total:
                return None  # a bar of something else: an evaluation
            other = given is not None and (dialect is not given or (dialect.beside and told.total != self.total))
            if number and other:  # whose lines these are shows only now
                self._paired |= given is not None and given.name == dialect.beside
                self._rows, self._columns, self._dialect = [], Columns(), None
            if dialect.beside and self._rows and self._rows[-1][0] == told.step:
                return None  # drawn again
            if self._dialect is None:
                self._dialect, self._table = dialect, at_once(dialect, raw)
            self.total = self.total if told.total is None else told.total
            if number and told.no_number:
                self._with_loss.append(number)
            if number and self._table is None and (at := written_at(text)) == at:
                self._written[number] = at
            step = told.step if told.step is not None else self._given_out + len(self._rows)
            return (step, told.seconds, told.tgs, told.loss, number)
        return None

    def cut_off(self, number: int, raw: bytes) -> None:
        """The last line of the file has no end: its last number may lack digits, and does not count."""
        readers = [self, *self._others.values()]
        if self.brief and not self._rows:
            self._last = {key: raw.rpartition(b",")[0] if last == raw else last for key, last in self._last.items()}
            return
        if not any(number in (row[4] for row in r._rows) or number in r._columns.all()[4] for r in readers):
            return
        for reader in readers:
            reader._rows = [row for row in reader._rows if row[4] != number]
            reader._columns.without(number)
            reader._last = {
                label: raw.rpartition(b",")[0] if last == raw else last for label, last in reader._last.items()
            }
        rank = _rank(raw, self._given)
        owner = self if rank is None or rank == self.rank else self._others.get(rank, self)
        if (row := owner._read(raw.rpartition(b",")[0], number)) is not None:
            owner._rows.append(row)

    @property
    def ranks(self) -> dict[int, int]:
        """The last step of every rank."""
        found: dict[int, int] = {}
        for label, raw in self._last.items():
            row = self._read(raw, 0)
            if row is not None:
                rank = _rank(label, self._given) or 0
                found[rank] = max(found.get(rank, -1), row[0])
        return dict(sorted(found.items()))

    @property
    def clocks(self) -> dict[int, tuple[int, float]]:
        """Of every rank whose last step line says when it was written: that step, and when."""
        found: dict[int, tuple[int, float]] = {}
        for label, raw in islice(self._last.items(), _MOST_CLOCKS):
            row, body = self._read(raw, 0), parse(raw)
            if row is not None and body is not None and body.clock is not None:
                rank = _rank(label, self._given)
                rank = body.rank if rank is None and body.rank is not None else rank or 0
                found[rank] = max(found.get(rank, (-1, 0.0)), (row[0], body.clock))
        return found

    def drain(self) -> Steps:
        """What was read since the last time: for whoever follows a log that grows and keeps no table of it."""
        found = self.result()
        for reader in (self, *self._others.values()):
            reader._columns, reader._mixed = Columns(), False
            reader._with_loss, reader._written = [], {}
        return found

    def result(self) -> Steps:
        """All steps read, as arrays in the order of the log."""
        if self._dialect is not None and self._dialect.beside and not self._paired:
            return Steps(rank=self.rank if self.rank is not None else self._inner)
        self._move_rows()
        columns = self._columns.all()
        if self._mixed and (columns[4][1:] < columns[4][:-1]).any():
            order = np.argsort(columns[4], kind="stable")
            columns = [c[order] for c in columns]
        step, seconds, tgs, loss, line = columns
        written = np.array([self._written.get(int(n), np.nan) for n in line]) if self._written else np.zeros(0)
        if len(written) and not np.isfinite(seconds).any():
            seconds = durations(step, written, tgs)
        return Steps(
            rank=self.rank if self.rank is not None else self._inner,
            dialect=self._dialect.name if self._dialect else None,
            total=self.total,
            first_number=self._dialect.first if self._dialect else 0,
            step=step,
            seconds=seconds,
            tgs=tgs,
            loss=loss,
            line=line,
            last_by_rank=self.ranks,
            has_loss=np.isin(line, self._with_loss) if self._with_loss else np.zeros(len(line), np.bool_),
            written=written,
            front=tuple(self._front),
            others={rank: reader.result() for rank, reader in sorted(self._others.items())},
        )


_KEY = re.compile(rb"^\s*0*(\d{1,6}): |^\[(?:rank|default|worker)?[ _-]?(\d{1,6})\]?")


def _rank(label: bytes, given: int | None) -> int | None:
    match = _KEY.match(label[:LABEL])
    return int(match[1] or match[2]) if match else given


_ENOUGH = 4  # ranks that tell when they completed the same step
_LEAST_S = 1.0


def clocks_off(seen: Mapping[int, tuple[int, float]], hosts: Mapping[int, str]) -> dict[int, float]:
    """By rank, how many seconds its clock is ahead of most; `seen` has each rank's last step and when it was written.

    A host has one clock: a rank that did not live to complete that step has its neighbours'.
    """
    common = Counter(step for step, _ in seen.values()).most_common(1)
    if not common or common[0][1] < max(_ENOUGH, len(seen) // 2):
        return {}
    at = {rank: clock for rank, (step, clock) in seen.items() if step == common[0][0]}
    middle = median(at.values())
    of_host: dict[str, list[float]] = {}
    for rank, clock in at.items():
        if rank in hosts:
            of_host.setdefault(hosts[rank], []).append(clock - middle)
    known = {host: median(each) for host, each in of_host.items()}
    off = {rank: clock - middle for rank, clock in at.items()}
    off |= {rank: known[host] for rank, host in hosts.items() if host in known}
    return {rank: seconds for rank, seconds in off.items() if abs(seconds) > _LEAST_S}
