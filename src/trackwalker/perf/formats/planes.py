"""The outer layers of an xplane file: planes, their lines, and the tables of names each plane carries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from trackwalker.errors import EvidenceError
from trackwalker.perf.formats.wire import CutError, Source, Value, double, field_at, fields, signed, text, varint

_PLANE, _ERRORS, _WARNINGS, _HOSTNAMES = 1, 2, 3, 4


@dataclass
class Line:
    """One row of a plane: a stream of a device or a thread of the host."""

    id: int
    name: str
    timestamp_ns: int
    start: int  # bytes of its events in the file
    end: int


@dataclass
class Plane:
    """One plane: where its lines are, and what the ids in them mean."""

    name: str = ""
    lines: list[Line] = field(default_factory=list)
    event_names: dict[int, str] = field(default_factory=dict)
    stat_names: dict[int, str] = field(default_factory=dict)
    programs: dict[int, tuple[str, bytes]] = field(default_factory=dict)  # id -> module(id), HloProto
    stats: dict[str, int | float | str] = field(default_factory=dict)
    cut: bool = False


@dataclass
class Contents:
    """Everything of a file but its events."""

    planes: list[Plane] = field(default_factory=list)
    hostnames: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    cut: str = ""  # where the file breaks off, "" for a whole one


def read_contents(source: Source, name: str) -> Contents:
    """Walks over the planes without touching their events."""
    contents = Contents()
    for number, start, end, cut in _outer(source, name):
        if number == _PLANE:
            contents.planes.append(_plane(source, start, end, cut))
            cut = contents.planes[-1].cut
        if cut:
            inside = contents.planes[-1].name if number == _PLANE else ""
            contents.cut = f"inside the plane {inside}" if inside else f"after {len(contents.planes)} planes"
        elif number in (_ERRORS, _WARNINGS, _HOSTNAMES):
            into = {_ERRORS: contents.errors, _WARNINGS: contents.warnings, _HOSTNAMES: contents.hostnames}[number]
            into.append(text(source.view[start:end]))
    return contents


def _outer(source: Source, name: str) -> Iterator[tuple[int, int, int, bool]]:
    """The fields of the file; the last one may be cut, and is then given as far as it goes."""
    view, at, end = source.view, 0, len(source)
    while at < end:
        if not (view[at] & 7 == 2 and 1 <= view[at] >> 3 <= _HOSTNAMES):
            if at == 0:
                raise EvidenceError(f"{name}: not an XLA trace; a trace of JAX is named *.xplane.pb")
            raise EvidenceError(f"{name}: damaged at byte {at}; copy the trace again")
        try:
            number, start, stop = field_at(view, at, end)
        except CutError:
            try:
                start = varint(view, at + 1, end)[1]
            except CutError:
                start = end
            yield view[at] >> 3, start, end, True
            return
        yield number, start, stop, False
        at = stop


def _plane(source: Source, start: int, end: int, cut: bool) -> Plane:
    plane = Plane(cut=cut)
    stats: list[memoryview] = []
    protos: list[tuple[int, str, list[memoryview]]] = []
    at = start
    try:
        while at < end:
            number, body, at = field_at(source.view, at, end)
            if number == 2:
                plane.name = text(source.view[body:at])
            elif number == 3:
                plane.lines.append(_line(source, body, at))
            elif number == 4:
                key, name, own = _metadata(source.view[body:at])
                plane.event_names[key] = name
                if own:
                    protos.append((key, name, own))
            elif number == 5:
                key, name, _ = _metadata(source.view[body:at])
                plane.stat_names[key] = name
            elif number == 6:
                stats.append(source.view[body:at])
    except CutError:
        plane.cut = True
        _cut_line(source, plane, at, end)
    try:
        plane.stats = dict(_stat(stat, plane.stat_names) for stat in stats)
        for key, name, own in protos:
            for stat in own:
                if proto := _proto(stat, plane.stat_names):
                    plane.programs[key] = (name, proto)
    except CutError:
        plane.cut = True
    return plane


def _cut_line(source: Source, plane: Plane, at: int, end: int) -> None:
    """The line in which the file breaks off is kept as far as it goes."""
    try:
        if source.view[at] == 0x1A:  # field 3
            plane.lines.append(_line(source, varint(source.view, at + 1, end)[1], end))
    except (CutError, IndexError):
        pass


def _line(source: Source, start: int, end: int) -> Line:
    line = Line(0, "", 0, end, end)
    at = start
    while at < end:
        if source.view[at] == 0x22:  # the first event: all that follow are read later, by the column
            line.start = at
            break
        number, body, at = field_at(source.view, at, end)
        if number == 1:
            line.id = signed(varint(source.view, body, at)[0])
        elif number == 2:
            line.name = text(source.view[body:at])
        elif number == 3:
            line.timestamp_ns = signed(varint(source.view, body, at)[0])
    return line


def _metadata(entry: memoryview) -> tuple[int, str, list[memoryview]]:
    """One entry of an id -> metadata map: the id, the name, and the metadata's own stats."""
    key, name, stats = 0, "", []
    for number, value in fields(entry):
        if number == 1:
            key = signed(value)
        elif number == 2 and isinstance(value, memoryview):
            for inner, own in fields(value):
                if inner == 2:
                    name = text(own)
                elif inner == 5 and isinstance(own, memoryview):
                    stats.append(own)
    return key, name, stats


def _stat(stat: memoryview, names: dict[int, str]) -> tuple[str, int | float | str]:
    key: str = ""
    value: int | float | str = 0
    for number, raw in fields(stat):
        if number == 1:
            key = names.get(signed(raw), "")
        else:
            value = _value(number, raw, names)
    return key, value


def _value(number: int, raw: Value, names: dict[int, str]) -> int | float | str:
    if number == 2:
        return double(raw)
    if number == 7:
        return names.get(signed(raw), "")
    return text(raw) if isinstance(raw, memoryview) else signed(raw)


def _proto(stat: memoryview, names: dict[int, str]) -> bytes | None:
    """The compiled program that a metadata's stat carries."""
    found = dict(fields(stat))
    key, value = found.get(1), found.get(6)
    if isinstance(key, int) and names.get(key, "").lower().replace("_", " ") == "hlo proto":
        return bytes(value) if isinstance(value, memoryview) else None
    return None
