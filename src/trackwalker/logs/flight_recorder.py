"""PyTorch's flight recorder: which collectives every rank has entered, and who is behind.

Its dumps are pickles, and a pickle is a program. They are read here by a reader of our own that knows plain values only
(dictionaries, lists, tuples, numbers, text, None): there is no instruction in it that could name or call anything.
"""

from __future__ import annotations

import json
import pickletools
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
            self._container(dict).update(zip(items[::2], items[1::2], strict=True))
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack.append(tuple(self._items(False, count)) if count else ())
        elif name in ("TUPLE", "LIST"):
            items = self._items(True, 0)
            stack.append(tuple(items) if name == "TUPLE" else items)
        elif name == "DICT":
            items = self._items(True, 0)
            stack.append(dict(zip(items[::2], items[1::2], strict=True)))
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


@dataclass(frozen=True)
class _Place:
    """How far one rank is in one process group."""

    enqueued: int
    completed: int


def behind(dumps: Mapping[int, Any]) -> dict[int, str]:
    """Ranks that others wait for and that wait for nobody, each with why; empty where the dumps do not tell.

    A rank waits for the members of a group that have not entered the collective it is in. Whoever is behind because it
    waits in another group is a witness: only the ends of these chains are named.
    """
    groups = _groups(dumps)
    waits: dict[int, set[int]] = {}
    why: dict[int, str] = {}
    for (name, members), places in groups.items():
        last = max(place.enqueued for place in places.values())
        late = {rank for rank, place in places.items() if place.enqueued < last}
        gone = set(members) - set(dumps)
        for rank, place in places.items():
            if place.enqueued == last and place.completed < last and late | gone:
                waits.setdefault(rank, set()).update(late | gone)
        for rank in late:
            why.setdefault(rank, f"it has not entered collective {last} of {name}, the others wait in it")
        for rank in gone:
            why.setdefault(rank, f"it left no flight-recorder dump, the others of {name} wait")
    wanted = {rank for ones in waits.values() for rank in ones}
    ends = sorted(rank for rank in wanted if not waits.get(rank))
    return {rank: why[rank] for rank in ends} if 2 * len(ends) < len(dumps) else {}


def _groups(dumps: Mapping[int, Any]) -> dict[tuple[str, tuple[int, ...]], dict[int, _Place]]:
    found: dict[tuple[str, tuple[int, ...]], dict[int, _Place]] = {}
    for rank, dump in dumps.items():
        if not isinstance(dump, dict):
            continue
        config, status = dump.get("pg_config"), dump.get("pg_status")
        if not isinstance(config, dict) or not isinstance(status, dict):
            continue
        for number, said in config.items():
            at = status.get(number)
            if not isinstance(said, dict) or not isinstance(at, dict):
                continue
            members = _members(said.get("ranks"))
            enqueued, completed = at.get("last_enqueued_collective"), at.get("last_completed_collective")
            if len(members) < 2 or not isinstance(enqueued, int) or not isinstance(completed, int) or enqueued < 0:
                continue
            found.setdefault((str(said.get("desc", number)), members), {})[rank] = _Place(enqueued, completed)
    return found


def _members(text: Any) -> tuple[int, ...]:
    """The ranks of a group, which the dump writes as text: "[0, 1, 4]"."""
    words = text.strip("[] ").split(",") if isinstance(text, str) else text if isinstance(text, list | tuple) else ()
    try:
        return tuple(sorted(int(word) for word in words))
    except (TypeError, ValueError):
        return ()
