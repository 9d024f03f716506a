"""PyTorch's flight recorder: which collectives every rank has entered, and who is behind.

Its dumps are pickles, and a pickle is a program. They are read here by a reader of our own that knows plain values only
(dictionaries, lists, tuples, numbers, text, None): there is no instruction in it that could name or call anything.
"""

from __future__ import annotations

import json
import pickletools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trackwalker.errors import EvidenceError

_MOST_BYTES = 64 << 20
_MOST_STEPS = 20_000_000
_MOST_STACK = 100_000
_LARGEST = 1 << 128
_VALUES = frozenset(
    {
        "BININT", "BININT1", "BININT2", "INT", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
        "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    }
)  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = frozenset({"PROTO", "FRAME"})
_KEYS = (str, int, float, bool, bytes)


def load(data: bytes) -> Any:
    """The plain value that a dump holds (pickle or JSON); anything else in it is refused with one line."""
    if len(data) > _MOST_BYTES:
        raise EvidenceError(f"flight-recorder dump of {len(data)} bytes: too large to be one")
    if data[:1] in (b"{", b"["):
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as e:
            raise EvidenceError(f"flight-recorder dump is not readable: {e}") from e
    try:
        return _Reader().read(data)
    except EvidenceError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, RecursionError, MemoryError) as e:
        raise EvidenceError(f"flight-recorder dump is not readable: {e}") from e


class _Reader:
    """A stack machine with the harmless instructions only."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._marks: list[int] = []  # how deep the stack was at each mark

    def read(self, data: bytes) -> Any:
        for steps, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if steps > _MOST_STEPS or len(self._stack) > _MOST_STACK:
                raise EvidenceError("flight-recorder dump is longer than any real one")
            if opcode.name == "STOP":
                return self._stack.pop()
            self._step(opcode.name, argument)
        raise EvidenceError("flight-recorder dump is cut off")

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _VALUES:
            if isinstance(argument, int) and abs(argument) > _LARGEST:
                raise EvidenceError("flight-recorder dump holds an absurd number")
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name in ("APPEND", "APPENDS"):
            items = self._items(name == "APPENDS", 1)
            self._container(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._items(name == "SETITEMS", 2)
            self._container(dict).update(_pairs(items))
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack.append(tuple(self._items(False, count)) if count else ())
        elif name in ("TUPLE", "LIST"):
            items = self._items(True, 0)
            stack.append(tuple(items) if name == "TUPLE" else items)
        elif name == "DICT":
            items = self._items(True, 0)
            stack.append(_pairs(items))
        elif name not in _IGNORED:
            raise EvidenceError(f"flight-recorder dump asks for '{name}', which plain values do not need: not read")

    def _items(self, marked: bool, count: int) -> list[Any]:
        stack = self._stack
        if marked:
            at = self._marks.pop()
            items = stack[at:]
            del stack[at:]
        else:
            items = stack[-count:]
            if len(stack) - (self._marks[-1] if self._marks else 0) < count:
                raise ValueError("its stack is empty")
            del stack[-count:]
        return items

    def _container(self, kind: type) -> Any:
        if not self._stack or type(self._stack[-1]) is not kind:
            raise ValueError("its values do not fit together")
        return self._stack[-1]


def _pairs(items: list[Any]) -> dict[Any, Any]:
    # A tuple of tuples of the same tuple is short to write and takes for ever to hash.
    if not all(key is None or type(key) in _KEYS for key in items[::2]):
        raise EvidenceError("flight-recorder dump has keys that are neither text nor numbers: not read")
    return dict(zip(items[::2], items[1::2], strict=True))


_Groups = dict[tuple[str, tuple[int, ...]], dict[int, "_Place"]]


@dataclass
class _Place:
    """How far one rank is in one process group."""

    entered: int = -1  # the last collective that it has put on its device's queue
    open: int | None = None  # the first of them that its device has not finished


def behind(dumps: Mapping[int, Any]) -> dict[int, str]:
    """Ranks that hold the others up, each with why; empty where the dumps do not tell.

    A device that has not finished what its peers have finished is stuck by itself. Otherwise a rank waits for the
    members of its group that have not entered the collective it is in; whoever is late because it waits in another
    group is a witness, so only the ends of these chains are named.
    """
    groups = _groups(dumps)
    found = _stuck(groups) or _absent(groups, set(dumps))
    return found if 2 * len(found) < len(dumps) else {}


def _stuck(groups: _Groups) -> dict[int, str]:
    found: dict[int, str] = {}
    for (name, _), places in sorted(groups.items()):
        for rank, place in sorted(places.items()):
            if place.open is None:
                continue
            passed = [r for r, other in places.items() if other.open is not None and other.open > place.open]
            if passed and rank not in found:
                others = ", ".join(str(r) for r in sorted(passed)[:4])
                found[rank] = f"its device has not finished collective {place.open} of {name}, which rank {others} has"
    return found


def _absent(groups: _Groups, known: set[int]) -> dict[int, str]:
    waits: dict[int, set[int]] = {}
    why: dict[int, str] = {}
    for (name, members), places in sorted(groups.items()):
        waiting = {rank: place.open for rank, place in places.items() if place.open is not None}
        for rank, at in waiting.items():
            late = {m for m in members if m != rank and places.get(m, _Place()).entered < at}
            waits.setdefault(rank, set()).update(late)
            for one in late:
                said = "it has not entered" if one in known else "it left no dump, and the others wait for it in"
                why.setdefault(one, f"{said} collective {at} of {name}")
    ends = sorted({one for late in waits.values() for one in late if not waits.get(one)})
    return {rank: why[rank] for rank in ends}


def _groups(dumps: Mapping[int, Any]) -> _Groups:
    """Every process group with the places of those of its ranks that have something in it."""
    found: _Groups = {}
    for rank, dump in dumps.items():
        config = dump.get("pg_config") if isinstance(dump, dict) else None
        entries = dump.get("entries") if isinstance(dump, dict) else None
        if not isinstance(config, dict) or not isinstance(entries, list):
            continue
        for entry in entries:
            said = _collective(entry)
            if said is None:
                continue
            name, number, done = said
            about = config.get(name)
            members = _members(about.get("ranks")) if isinstance(about, dict) else ()
            if not isinstance(about, dict) or rank not in members:
                continue
            desc = about.get("desc", name)
            place = found.setdefault((desc if isinstance(desc, str) else name, members), {}).setdefault(rank, _Place())
            place.entered = max(place.entered, number)
            if not done:
                place.open = number if place.open is None else min(place.open, number)
    return found


def _collective(entry: Any) -> tuple[str, int, bool] | None:
    """Group, number and whether it is finished; None for what is no collective, such as a message between two."""
    if not isinstance(entry, dict) or entry.get("is_p2p"):
        return None
    group, number = entry.get("process_group"), entry.get("collective_seq_id")
    name = group[0] if isinstance(group, list | tuple) and group else group
    if not isinstance(name, str) or not isinstance(number, int):
        return None
    return name, number, entry.get("state") == "completed"


def _members(text: Any) -> tuple[int, ...]:
    """The ranks of a group, which the dump writes as text: "[0, 1, 4]"."""
    words = text.strip("[] ").split(",") if isinstance(text, str) else text if isinstance(text, list | tuple) else ()
    try:
        return tuple(sorted(int(word) for word in words))
    except (TypeError, ValueError):
        return ()


_ALONE = re.compile(
    r"^\s*Rank (?P<rank>\d+) has (?:launched up to operation (?P<operation>\d+)|not launched any operations)"
    r" -- GPU \S+ managed by process (?P<pid>\d+) on node (?P<node>\S+)"
)
_COUNT = re.compile(r"^\s*\d+ ranks have (?:launched up to operation (?P<operation>\d+)|not launched any operations)")
_MEMBER = re.compile(r"^\s*Rank (?P<rank>\d+) -- GPU \S+ managed by process (?P<pid>\d+) on node (?P<node>\S+)")
_PROCESS = re.compile(r"^\s*Process (?P<pid>\d+) on node (?P<node>\S+) managing GPU")
_SECTION = re.compile(r"^\s*(?:#\d+-\d+ \([0-9a-fx]+\) )?(?P<name>MISMATCH|INCOMPLETE|DEAD|TIMEOUT)\b")


@dataclass(frozen=True)
class Straggler:
    """A process that RAS tells apart from the rest."""

    pid: int
    node: str  # as NCCL names it: mostly an address
    why: str


def stragglers(text: str) -> list[Straggler]:
    """Processes that are behind, silent or dead; the highest operation of a communicator is what the rest reached."""
    found: list[tuple[int, str, int | None, str]] = []  # pid, node, operation, section
    section, operation, reached = "", None, 0
    for line in text.splitlines():
        if head := _SECTION.match(line):
            section, operation = head["name"], None
        elif alone := _ALONE.match(line):
            at = int(alone["operation"] or 0)
            reached = max(reached, at)
            found.append((int(alone["pid"]), alone["node"], at, section))
        elif count := _COUNT.match(line):
            operation = int(count["operation"] or 0)
            reached = max(reached, operation)
        elif (member := _MEMBER.match(line)) and operation is not None:
            found.append((int(member["pid"]), member["node"], operation, section))
        elif (process := _PROCESS.match(line)) and section in ("INCOMPLETE", "DEAD"):
            found.append((int(process["pid"]), process["node"], None, section))
    told: dict[int, Straggler] = {}
    for pid, node, at_, part in found:
        if at_ is None:
            why = "is considered dead by NCCL" if part == "DEAD" else "does not answer NCCL's RAS"
            told.setdefault(pid, Straggler(pid, node, why))
        elif at_ < reached:
            told.setdefault(pid, Straggler(pid, node, f"has launched {at_} operations, the others {reached}"))
    return list(told.values())
