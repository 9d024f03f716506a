"""Each room says at its front door what others may import; what they import beside that may only become less."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "src" / "trackwalker"
# The hallway is everybody's, and two rooms hold data only. The lab is a distribution of its own.
OPEN = {"job", "stats", "models", "playbooks", "lab"}
ROOMS = {p.parent.name for p in PACKAGE.glob("*/__init__.py")} - OPEN
PAST_THE_DOOR = 312  # imports (308 on 2026-11-16, of about 930); lower it when there are fewer, never raise it
_FROM = re.compile(r"^ *from trackwalker\.([\w.]+) import (?:\(([^)]*)\)|([^\n(]*))", re.MULTILINE)
_DIRECT = re.compile(r"^ *import trackwalker\.([\w.]+)", re.MULTILINE)


def door(room: str) -> set[str]:
    """The modules that a room names for others."""
    told = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text())) or ""
    return set(re.findall(r"`([\w.]+)`\s\(", told.partition("For other rooms:")[2]))


def is_module(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


def imported(text: str) -> Iterator[str]:
    """The modules of the package that a source imports, as `room.module`."""
    yield from _DIRECT.findall(text)
    for module, many, few in _FROM.findall(text):
        names = re.findall(r"(\w+)(?: as \w+)?(?:,|$|\s)", re.sub(r"#.*", "", many or few))
        inner = {f"{module}.{name}" for name in names if is_module(f"{module}.{name}")}
        yield from inner or {module}


def past_the_door() -> list[tuple[str, str]]:
    """Who imports what of another room that its door does not name."""
    doors = {room: door(room) for room in ROOMS}
    found = []
    for source in sorted(PACKAGE.rglob("*.py")):
        place = source.relative_to(PACKAGE)
        for module in sorted(set(imported(source.read_text()))):
            room, _, inner = module.partition(".")
            if room in ROOMS and room != place.parts[0] and inner and inner not in doors[room]:
                found.append((place.as_posix(), module))
    return found


def test_every_room_names_what_others_may_import() -> None:
    assert {room: door(room) for room in ROOMS if not door(room)} == {}
    gone = {f"{room}.{name}" for room in ROOMS for name in door(room) if not is_module(f"{room}.{name}")}
    assert gone == set()


def test_what_is_imported_past_the_doors_only_becomes_less() -> None:
    found = past_the_door()
    told = "\n".join(f"{who}: {what}" for who, what in found)
    assert len(found) <= PAST_THE_DOOR, f"{len(found)} imports past a front door:\n{told}"
    assert len(found) > PAST_THE_DOOR - 25, f"{len(found)} imports past a front door: lower PAST_THE_DOOR"
