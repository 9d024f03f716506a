"""The compiler's own plan of device memory: how much is reserved, and what is live at the worst moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trackwalker.perf.formats.wire import Message
from trackwalker.perf.hlo.program import Memory

_LARGEST = 12  # buffers that a report shows
_FREE = 1  # kinds of event: 0 alloc, 1 free, 2 share


def read_memory(raw: Message, names: Mapping[int, str]) -> Memory:
    """What a BufferAssignmentProto says; `names` gives the name of an instruction by its id."""
    buffers = {row.number(1): (row.number(2), _name(row.one(3), names)) for row in raw.all(1)}
    sums = {"arguments": 0, "outputs": 0, "temporary": 0, "constants": 0}
    for row in raw.all(3):
        if kind := _kind(row):
            sums[kind] += row.number(2)
    worst, at, live = 0, "", list[tuple[str, int]]()
    for simulated in raw.all(4):
        peak, where, held = _replay(simulated, buffers)
        if peak > worst:
            worst, at, live = peak, where, held
    return Memory(**sums, peak=sum(sums.values()), at=at, live=live)


def _name(place: Message | None, names: Mapping[int, str]) -> str:
    return (place.text(2) or names.get(place.number(4), "")) if place else ""


def _kind(row: Message) -> str:
    """Which sum an allocation belongs to; thread-local ones are not device memory of the program."""
    if row.number(3):
        return ""
    kinds = ((5, "arguments"), (12, "constants"), (7, "outputs"))
    return next((kind for key, kind in kinds if row.number(key)), "temporary")


def _replay(raw: Message, buffers: Mapping[int, tuple[int, str]]) -> tuple[int, str, list[tuple[str, int]]]:
    """Play the compiler's own simulation: the highest sum, where it was reached, and what was held then."""
    events = list(raw.all(1))
    sums = [now for now, _ in _held(events, buffers)]
    if not sums:
        return 0, "", []
    worst = sums.index(max(sums))
    held = next(held for i, (_, held) in enumerate(_held(events, buffers)) if i == worst)
    rows = sorted(((buffers.get(b, (0, ""))[1], size) for b, size in held.items()), key=lambda row: -row[1])
    return sums[worst], events[worst].text(4), rows[:_LARGEST]


def _held(events: list[Message], buffers: Mapping[int, tuple[int, str]]) -> Iterator[tuple[int, dict[int, int]]]:
    """After each event: bytes held, and by which buffers (one dictionary that changes)."""
    held: dict[int, int] = {}
    homes: dict[int, int] = {}  # a buffer may live in the memory of another one, which then lives as long
    users: dict[int, int] = {}
    now = 0
    for event in events:
        kind, identifier = event.number(1), event.number(2)
        home = event.number(5) if kind > _FREE else homes.get(identifier, identifier)
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
