"""Each room says at its front door (`__init__`) which of its modules others may import; nobody imports another."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "src" / "trackwalker"
# The hallway is everybody's, and two rooms hold data only. The lab is a distribution of its own; it keeps to the doors.
OPEN = {"job", "stats", "models", "playbooks", "lab"}
ROOMS = {p.parent.name for p in PACKAGE.glob("*/__init__.py")} - OPEN
_FROM = re.compile(r"^ *from trackwalker\.([\w.]+) import (?:\(([^)]*)\)|([^\n(]*))", re.MULTILINE)
_DIRECT = re.compile(r"^ *import trackwalker\.([\w.]+)", re.MULTILINE)
MOST_NAMES = 30  # of a door: who needs more of a room does its work


def door(room: str) -> set[str]:
    """The modules that a room names for others."""
    told = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text())) or ""
    return set(re.findall(r"`([\w.]+)`\s\(", told.partition("For other rooms:")[2]))


@cache
def is_module(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def imported(text: str) -> Iterator[str]:
    """The modules of the package that a source imports, wherever in it, as `room.module`."""
    yield from _DIRECT.findall(text)
    for module, many, few in _FROM.findall(text):
        names = re.findall(r"(\w+)(?: as \w+)?(?:,|$|\s)", re.sub(r"#.*", "", many or few))
        inner = [f"{module}.{name}" for name in names]
        yield from (name if is_module(name) else module for name in inner)


@cache
def imports() -> list[tuple[str, str, str]]:
    """Who imports which module of which other room."""
    found = []
    for source in sorted(PACKAGE.rglob("*.py")):
        place = source.relative_to(PACKAGE)
        for module in sorted(set(imported(source.read_text()))):
            room, _, inner = module.partition(".")
            if room in ROOMS and room != place.parts[0] and inner:
                found.append((place.as_posix(), room, inner))
    return found


def test_every_room_names_what_others_may_import() -> None:
    assert {room: door(room) for room in ROOMS if not door(room)} == {}
    gone = {f"{room}.{name}" for room in ROOMS for name in door(room) if not is_module(f"{room}.{name}")}
    assert gone == set()
    assert {room: len(door(room)) for room in ROOMS if len(door(room)) > MOST_NAMES} == {}


def test_nobody_imports_past_a_door() -> None:
    doors = {room: door(room) for room in ROOMS}
    past = [f"{who}: {room}.{inner}" for who, room, inner in imports() if inner not in doors[room]]
    assert past == [], "\n".join(past)


def test_a_door_names_nothing_that_nobody_takes() -> None:
    taken = {(room, inner) for _, room, inner in imports()}
    unused = {f"{room}.{name}" for room in ROOMS for name in door(room) if (room, name) not in taken}
    assert unused - {"cli.app"} == set()  # the command itself: pyproject.toml takes it
