"""The collectives of a PyTorch trace: NCCL's and RCCL's kernels say what they move and between whom."""

from __future__ import annotations

import re
from typing import Any

from trackwalker.perf.collectives import Collective, kind_of
from trackwalker.perf.model import NONE, Gap, Strings

_BITS = re.compile(r"(?:float|int|uint|complex)(\d+)")
_SIZES = {
    "float": 4, "half": 2, "bfloat16": 2, "double": 8, "int": 4, "long": 8, "short": 2, "byte": 1, "char": 1, "bool": 1,
}  # fmt: skip
_UNNAMED = ("", "undefined")  # what a group that nobody described is called


class TorchCollectives:
    """Gives each collective a name that is the same on all ranks: kind, group and size."""

    def __init__(self) -> None:
        self._ops: dict[tuple[str, ...], int] = {}
        self._known: dict[int, Collective] = {}
        self._unknown: set[str] = set()

    def op(self, args: dict[str, Any], strings: Strings) -> int:
        """The index of the name of a kernel's collective; NONE for any other kernel."""
        called = args.get("Collective name")
        if not called:
            return NONE
        told = (
            "dtype", "In msg nelems", "Out msg nelems", "Group size", "Process Group Name",
            "Process Group Description", "Process Group Ranks",
        )  # fmt: skip
        key = (str(called), *(str(args.get(name, "")) for name in told))
        if key not in self._ops:
            self._ops[key] = self._add(*key, strings=strings)
        return self._ops[key]

    def planned(self, strings: Strings) -> dict[str, Collective]:
        """Every collective by its name."""
        return {strings[number]: made for number, made in self._known.items()}

    def gaps(self) -> list[Gap]:
        """What the sizes could not be told of."""
        if not self._unknown:
            return []
        return [Gap("bytes of some collectives", f"unknown types of numbers: {', '.join(sorted(self._unknown))}")]

    def _add(
        self, called: str, dtype: str, given: str, made: str, size: str, group: str, about: str, ranks: str,
        *, strings: Strings,
    ) -> int:  # fmt: skip
        kind = kind_of(called) or ("collective-broadcast" if "broadcast" in called else called.strip("_"))
        width = _width(dtype)
        if width is None:
            self._unknown.add(dtype)
        # As nccl-tests count: the larger of what a rank gives and what it gets.
        moved = max(_number(given), _number(made)) * (width or 0)
        members = _members(ranks, _number(size))
        label = about if about not in _UNNAMED else _shape(members) or group
        op = strings.add(f"{kind} {label} {moved} B")
        self._known[op] = Collective(
            op=strings[op], kind=kind, names=(strings[op],), asynchronous=True, runs=1, bytes=moved,
            groups=(members,) if members else (), operands=1, path="", source="", in_loop=False, recomputed=False,
        )  # fmt: skip
        return op


def _width(dtype: str) -> int | None:
    name = dtype.rpartition("::")[2].lower()
    if name in _SIZES:
        return _SIZES[name]
    found = _BITS.match(name)  # float32, and float8_e4m3fn
    bits = int(found[1]) if found else 0
    return bits // 8 if bits in (8, 16, 32, 64, 128) else 1 if name.startswith("float8") else None


def _members(ranks: str, size: int) -> tuple[int, ...]:
    """The group's ranks; a long list is printed only in part, and is filled up where its beginning has a stride."""
    listed = tuple(map(int, re.findall(r"\d+", ranks.partition("...")[0])))
    if len(listed) == size or size <= 0:
        return listed
    if len(listed) < 2:
        return ()
    stride = listed[1] - listed[0]
    filled = tuple(range(listed[0], listed[0] + stride * size, stride)) if stride > 0 else ()
    return filled if filled[: len(listed)] == listed else ()


def _shape(members: tuple[int, ...]) -> str:
    """Groups beside each other have the same shape and different names."""
    if len(members) < 2:
        return ""
    return f"{len(members)} ranks by {members[1] - members[0]}"


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
