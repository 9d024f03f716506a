"""Where in a PyTorch model a kernel was launched: the modules, ops and annotations that were open at that moment.

The backward pass runs on a thread of its own, without modules. But autograd gives a forward op and its backward node
the same sequence number, so a backward kernel gets the modules of the op that it belongs to.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from trackwalker.perf.formats.model import NONE, Int64, Strings

OP, ANNOTATION, PYTHON, CALL = range(4)  # kinds of host events
FORWARD, BACKWARD, EAGER = "forward", "backward", "eager"
_MODULE = "$nn.Module: "
_NODE = "autograd::engine::evaluate_function: "


class HostRows:
    """The events of one thread as columns, in the order in which calls open."""

    columns = ("start", "end", "correlation", "step", "name", "kind", "sequence")

    def __init__(self, values: array[int]) -> None:
        table = np.frombuffer(values, np.int64).reshape(-1, len(self.columns))
        self.table: Int64 = table[np.lexsort((-table[:, 1], table[:, 0]))]


def launch_paths(threads: Sequence[HostRows], strings: Strings) -> dict[int, int]:
    """For each correlation number the path of its launch, as an index into the strings."""
    scopes = _Scopes(strings)
    places: dict[int, str] = {}  # sequence number -> modules around the forward op
    for thread in threads:
        for sequence, name, around in scopes.opened(thread):
            if sequence >= 0 and not name.startswith(_NODE):
                places.setdefault(sequence, around)
    found: dict[int, int] = {}
    for thread in threads:
        found |= scopes.launches(thread, places)
    return found


class _Scopes:
    """Walks a thread's calls with a stack of what is open."""

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self._scope: dict[int, str] = {}

    def opened(self, thread: HostRows) -> Iterator[tuple[int, str, str]]:
        """Each op with its sequence number and the modules around it."""
        for row, stack in self._walk(thread):
            if row[5] == OP and row[6] >= 0:
                yield row[6], self._strings[row[4]], "/".join(s for s, kind, _ in stack if kind == PYTHON)

    def launches(self, thread: HostRows, places: dict[int, str]) -> dict[int, int]:
        """Correlation number -> path."""
        found = {}
        for row, stack in self._walk(thread):
            if row[5] == CALL and row[2] > 0 and stack:
                found[row[2]] = self._strings.add(_path(stack, places))
        return found

    def _walk(self, thread: HostRows) -> Iterator[tuple[list[int], list[tuple[str, int, int]]]]:
        """Each event with the scopes (name, kind, sequence number) that are open around it."""
        stack: list[tuple[str, int, int]] = []
        ends: list[int] = []
        for row in map(np.ndarray.tolist, thread.table):
            start, end, kind = row[0], row[1], row[5]
            while ends and ends[-1] <= start:
                ends.pop()
                stack.pop()
            yield row, stack
            if kind != CALL and (scope := self._name(row[4], kind, row[3])):
                stack.append((scope, kind, row[6]))
                ends.append(end)

    def _name(self, name: int, kind: int, step: int) -> str:
        """What an event adds to a path; nothing for step markers and plain Python frames."""
        if step != NONE:
            return ""
        if name not in self._scope:
            text = self._strings[name]
            if kind == PYTHON:
                text = text.removeprefix(_MODULE) if text.startswith(_MODULE) else ""
            elif text.startswith("Optimizer."):
                text = "optimizer"
            self._scope[name] = text.replace("/", "|")
        return self._scope[name]


def _path(stack: list[tuple[str, int, int]], places: dict[int, str]) -> str:
    names = [scope for scope, _, _ in stack]
    if stack[-1][1] != OP:
        names.append("launch")  # a path ends with an operation, and the call around it is none
    for at, (scope, _, sequence) in enumerate(stack):
        if scope.startswith(_NODE):
            around = places.get(sequence, "")
            inner = [scope.removeprefix(_NODE), *names[at + 1 :]]
            return "/".join([BACKWARD, *([around] if around else []), *inner])
    forward = any(kind == PYTHON or sequence >= 0 for _, kind, sequence in stack) and "optimizer" not in names
    return "/".join([FORWARD if forward else EAGER, *names])
