"""The compiler's own plan of device memory: how much is reserved, and what is live at the worst moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trackwalker.perf.formats.wire import Value, fields, text
from trackwalker.perf.hlo.program import Memory

_LARGEST = 12  # buffers that a report shows
_FREE = 1  # kinds of event: 0 alloc, 1 free, 2 share


def read_memory(raw: memoryview, names: Mapping[int, str]) -> Memory:
    """What a BufferAssignmentProto says; `names` gives the name of an instruction by its id."""
    buffers: dict[int, tuple[int, str]] = {}
    sums = {"arguments": 0, "outputs": 0, "temporary": 0, "constants": 0}
    worst, at, live = 0, "", list[tuple[str, int]]()
    for key, value in fields(raw):
        if not isinstance(value, memoryview):
            continue
        if key == 1:
            identifier, size, name = _buffer(value, names)
            buffers[identifier] = size, name
        elif key == 3:
            kind, size = _allocation(value)
            if kind:
                sums[kind] += size
        elif key == 4:  # written last, so all buffers are known
            peak, where, held = _replay(value, buffers)
            if peak > worst:
                worst, at, live = peak, where, held
    return Memory(**sums, peak=sum(sums.values()), at=at, live=live)


def _buffer(raw: memoryview, names: Mapping[int, str]) -> tuple[int, int, str]:
    row = dict(fields(raw))
    place = row.get(3)
    where = dict(fields(place)) if isinstance(place, memoryview) else {}
    name = text(where[2]) if 2 in where else names.get(_int(where.get(4)), "")
    return _int(row.get(1)), _int(row.get(2)), name


def _allocation(raw: memoryview) -> tuple[str, int]:
    """Which sum an allocation belongs to; thread-local ones are not device memory of the program."""
    row = {key: value for key, value in fields(raw) if isinstance(value, int)}
    size = row.get(2, 0)
    if row.get(3):
        return "", 0
    if row.get(5):
        return "arguments", size
    if row.get(12):
        return "constants", size
    return ("outputs" if row.get(7) else "temporary"), size


def _replay(raw: memoryview, buffers: Mapping[int, tuple[int, str]]) -> tuple[int, str, list[tuple[str, int]]]:
    """Play the compiler's own simulation: the highest sum, where it was reached, and what was held then."""
    events = [dict(fields(value)) for key, value in fields(raw) if key == 1 and isinstance(value, memoryview)]
    sums = [now for now, _ in _held(events, buffers)]
    if not sums:
        return 0, "", []
    worst = sums.index(max(sums))
    held = next(held for i, (_, held) in enumerate(_held(events, buffers)) if i == worst)
    rows = sorted(((buffers.get(b, (0, ""))[1], size) for b, size in held.items()), key=lambda row: -row[1])
    return sums[worst], text(events[worst].get(4, memoryview(b""))), rows[:_LARGEST]


def _held(
    events: list[dict[int, Value]], buffers: Mapping[int, tuple[int, str]]
) -> Iterator[tuple[int, dict[int, int]]]:
    """After each event: bytes held, and by which buffers (one dictionary that changes)."""
    held: dict[int, int] = {}
    homes: dict[int, int] = {}  # a buffer may live in the memory of another one, which then lives as long
    users: dict[int, int] = {}
    now = 0
    for event in events:
        kind, identifier = _int(event.get(1)), _int(event.get(2))
        home = _int(event.get(5)) if kind > _FREE else homes.get(identifier, identifier)
        if kind == _FREE:
            users[home] = users.get(home, 1) - 1
            if users[home] <= 0:
                now -= held.pop(home, 0)
        else:
            homes[identifier] = home
            users[home] = users.get(home, 0) + 1
            if home not in held:
                held[home] = buffers.get(home, (0, ""))[0]
                now += held[home]
        yield now, held


def _int(value: Value | None) -> int:
    return value if isinstance(value, int) else 0
