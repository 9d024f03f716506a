"""What tells that a program is compiled again and again: its compilers' own lines and counters."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from trackwalker.logs.excerpts.machines import Shown

_COMPILES = re.compile(
    r"(?i)\b(?:re)?(?:compiling|tracing)\b(?: function| module)? [`'\"]?(?P<what>[A-Za-z_][\w.<>]*)\b(?P<shapes>.{0,400})"  # noqa: E501
)
_COMPILE_ID = re.compile(r"\] \[(?P<frame>\d+)/(?P<count>\d+)\] ")
_OUT_OF = re.compile(r"(?P<much>\d+) out of the last \d+ calls to .{1,200}retrac")
_METRIC = re.compile(r"^(?:Metric|Counter): (?P<name>\w+)")
_VALUE = re.compile(r"^\s+(?:TotalSamples|Value): (?P<much>\d+)")
_AGAIN = 3  # times, in different shapes
_OFTEN = 8  # compilations of one frame
_MOSTLY = 0.5  # of a step's time
_A_STEP = re.compile(r"(?i)\b(?:it|iter|iteration|step|epoch)s?\b\W{0,3}\d")
_ROUNDS = 4  # times: the first ones of a training step, an evaluation and a shorter last batch are none


def compiled_again(lines: Sequence[str]) -> Iterator[Shown]:
    """One function in many shapes, or again and again after other work; counters of compilations."""
    yield from _in_rounds(lines)
    shapes: dict[str, set[str]] = defaultdict(set)
    frames: dict[str, set[int]] = defaultdict(set)
    metrics: dict[str, list[tuple[int, int]]] = defaultdict(list)
    name = ""
    for at, line in enumerate(lines):
        if match := _COMPILES.search(line, 0, 300):
            known = shapes[match["what"]]
            known.add(match["shapes"])
            if len(known) == _AGAIN:
                yield "recompilation", at, line.strip()
        if match := _COMPILE_ID.search(line, 0, 200):
            frames[match["frame"]].add(int(match["count"]))
            if max(frames[match["frame"]]) >= _OFTEN and len(frames[match["frame"]]) == _AGAIN:
                yield "recompilation", at, line.strip()
        if (match := _OUT_OF.search(line, 0, 300)) and int(match["much"]) >= _AGAIN:
            yield "recompilation", at, line.strip()
        if match := _METRIC.match(line):
            name = match["name"]
        elif name and (match := _VALUE.match(line)):
            metrics[name].append((int(match["much"]), at))
            name = ""
    compiles = metrics["UncachedCompile"] or metrics["CompileTime"] or [(0, 0)]
    ran = (metrics["ExecuteTime"] or [(0, 0)])[-1][0]
    compiled, at = compiles[-1]
    again = len(compiles) >= _AGAIN and all(b[0] > a[0] for a, b in pairwise(compiles))  # in every report
    if again or (compiled >= 2 * _OFTEN and compiled >= _MOSTLY * ran):
        yield "recompilation", at - 1, f"{lines[at - 1].strip()} {lines[at].strip()}"


def _in_rounds(lines: Sequence[str]) -> Iterator[Shown]:
    """One function that is compiled anew each time other work was done: several ranks compile it at one time."""
    seen: dict[str, int] = defaultdict(int)
    last: dict[str, int] = {}
    work = 0
    for at, line in enumerate(lines):
        if match := _COMPILES.search(line, 0, 300):
            if last.get(match["what"]) != work:
                last[match["what"]] = work
                seen[match["what"]] += 1
                if seen[match["what"]] == _ROUNDS:
                    yield "recompilation", at, line.strip()
        elif _A_STEP.search(line, 0, 300):
            work += 1
