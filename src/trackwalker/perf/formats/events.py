"""The events of one line of a trace, decoded in columns: id, offset, duration, and the few stats somebody reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trackwalker.perf.formats.model import NONE, Int64, Strings
from trackwalker.perf.formats.wire import Bytes, Source, Words, chain, field_at, unfolded, varint, varints, windows

_EVENT = 0x22  # field 4 of XLine; a stat is field 4 of XEvent, so its tag is the same
_ID, _OFFSET, _DURATION = 0x08, 0x10, 0x18
_UNSIGNED, _SIGNED, _TEXT, _REFERENCE = 0x18, 0x20, 0x2A, 0x38  # a reference is the id of a stat: its name is meant
_BYTE = [np.uint64(8 * n) for n in range(8)]
_LOW = np.uint64(0xFF)
_THREE = np.uint64(1 << 23)  # the highest bit of a third byte
_BLOCK = 2 << 20  # bytes decoded at a time: the columns of a block stay in the processor's cache


class Lookup:
    """A map from ids to small numbers that a whole column goes through at once; unknown ids give NONE."""

    def __init__(self, known: dict[int, int]) -> None:
        self._keys = np.array(sorted(known), np.int64)
        self._values = np.array([known[int(key)] for key in self._keys], np.int64)
        dense = len(known) > 0 and self._keys[0] >= 0 and self._keys[-1] < 1 << 22
        self._dense = np.full(int(self._keys[-1]) + 3, NONE, np.int64) if dense else None
        if self._dense is not None:
            self._dense[self._keys + 1] = self._values  # NONE comes first and last: for all that lies outside

    def values(self) -> set[int]:
        """The numbers it can give for known ids."""
        return set(self._values.tolist())

    def __call__(self, ids: Int64) -> Int64:
        if self._dense is not None:
            return self._dense.take(ids + 1, mode="clip")
        if not len(self._keys):
            return np.full(len(ids), NONE, np.int64)
        place = np.searchsorted(self._keys, ids).clip(max=len(self._keys) - 1)
        return np.where(self._keys[place] == ids, self._values[place], NONE)


@dataclass(frozen=True)
class Wanted:
    """Which stats become columns of numbers and which of names, in terms of one plane's ids."""

    numbers: tuple[str, ...]
    names: tuple[str, ...]
    column: Lookup  # stat id -> index of its column
    refers: Lookup  # stat id -> index in Strings: a stat's value can refer to another stat's name
    strings: Strings

    @staticmethod
    def of(stats: dict[int, str], numbers: tuple[str, ...], names: tuple[str, ...], strings: Strings) -> Wanted:
        """The columns asked for, in a plane whose stat metadata is given."""
        places = {name: place for place, name in enumerate(numbers + names)}
        column = Lookup({key: places[name] for key, name in stats.items() if name in places})
        return Wanted(numbers, names, column, Lookup({key: strings.add(name) for key, name in stats.items()}), strings)


@dataclass
class Events:
    """Columns of events in file order; stats that an event lacks are NONE."""

    metadata: Int64
    offset: Int64
    duration: Int64
    stats: dict[str, Int64]

    def __len__(self) -> int:
        return len(self.metadata)


def read_events(source: Source, start: int, end: int, wanted: Wanted) -> Iterator[Events]:
    """The events between two bytes of a line, block by block; CutError at one that is not whole."""
    at, size = start, _BLOCK
    while at < end:
        stop = min(end, at + size)
        block = source.block(at, stop)
        starts, ends, done = chain(block, 0, stop - at, _EVENT)
        if len(starts):
            yield _decode(block, starts, ends, wanted)
            source.release(at, at + done)
            at, size = at + done, _BLOCK
        elif source.view[at] == _EVENT and stop < end:
            size *= 2  # one event is larger than the block
        else:
            at = field_at(source.view, at, end)[2]  # the line's own fields, after the events


def _decode(block: Bytes, starts: Int64, ends: Int64, wanted: Wanted) -> Events:
    """A loop per field of an event, each over all events: every writer writes the fields in this order."""
    count = len(starts)
    cursor = starts
    head: list[Int64] = []
    for tag in (_ID, _OFFSET, _DURATION):
        there = (block.take(cursor) == tag) & (cursor < ends)
        values, width = varints(block, cursor + 1)
        head.append(values * there)  # a zero is not written
        cursor = np.minimum(cursor + (width + 1) * there, ends)
    names = wanted.numbers + wanted.names
    table = {place: np.full(count, NONE, np.int64) for place in wanted.column.values()}
    rows = np.arange(count)
    while len(rows):
        more = (cursor < ends) & (block.take(cursor) == _EVENT)
        if not more.all():
            rows, cursor, ends = rows[more], cursor[more], ends[more]
        if len(rows):
            cursor = np.minimum(_stat(block, rows, cursor, wanted, table), ends)
    absent = np.broadcast_to(np.int64(NONE), count)  # what no event of the plane can have takes no memory
    stats = {name: table.get(place, absent) for place, name in enumerate(names)}
    return Events(head[0], head[1], head[2], stats)


def _stat(block: Bytes, rows: npt.NDArray[np.intp], cursor: Int64, wanted: Wanted, table: dict[int, Int64]) -> Int64:
    """The next stat of each of these events goes into the column that wants it; gives where the stats end."""
    window = windows(block, cursor)  # tag, length, tag of the id, id, tag of the value, first bytes of the value
    size = ((window >> _BYTE[1]) & _LOW).astype(np.int64)
    key = ((window >> _BYTE[3]) & _LOW).astype(np.int64)
    at = cursor + 4  # of the value's tag
    after = cursor + 2 + size
    long = np.flatnonzero((size >= 0x80) | (key >= 0x80))
    if len(long):
        size[long], width = varints(block, cursor[long] + 1)
        body = cursor[long] + 1 + width
        after[long] = body + size[long]
        key[long], width = varints(block, body + 1)
        at[long] = body + 1 + width
    place = wanted.column(key)
    if (place == place[0]).all():  # the usual case: events of a line have the same stats in the same order
        if place[0] >= 0:
            short = window if not len(long) else None
            table[int(place[0])][rows] = _values(block, at, wanted, bool(place[0] >= len(wanted.numbers)), short)
        return after
    for column in np.unique(place[place >= 0]):
        chosen = np.flatnonzero(place == column)
        table[int(column)][rows[chosen]] = _values(block, at[chosen], wanted, bool(column >= len(wanted.numbers)))
    return after


def _values(block: Bytes, at: Int64, wanted: Wanted, named: bool, window: Words | None = None) -> Int64:
    """The values whose tags are at these places; what does not fit the column (a text among numbers) is NONE."""
    kind = block.take(at, mode="clip")
    if window is not None:  # three bytes of the value were read with the stat's head: often that is all of it
        values, stop = unfolded(window >> _BYTE[5])
        if stop.max() > _THREE:
            values = varints(block, at + 1)[0]
    else:
        values = varints(block, at + 1)[0]
    if not named:
        return np.where((kind == _UNSIGNED) | (kind == _SIGNED), values, NONE)
    found = np.where(kind == _REFERENCE, wanted.refers(values), NONE)
    for row in np.flatnonzero(kind == _TEXT):
        size, begin = varint(block.data, int(at[row]) + 1, len(block))
        found[row] = wanted.strings.add(bytes(block[begin : begin + size]).decode("utf-8", "replace"))
    return found
