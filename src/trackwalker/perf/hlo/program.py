"""A compiled program: its computations and instructions, however it was written down (proto or text)."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from trackwalker.perf.hlo.groups import Groups

_BITS = {"pred": 8, "token": 0, "opaque": 0, "tuple": 0, "s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4}
_WIDTH = re.compile(r"^(?:bf|f|s|u|c)(\d+)")

COLLECTIVES = (
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute",
    "collective-broadcast", "send", "recv",
)  # fmt: skip
# Names for something that exists already: no work of their own.
FREE = frozenset(
    ["parameter", "constant", "tuple", "get-tuple-element", "bitcast", "partition-id", "replica-id", "after-all",
     "opt-barrier", "optimization-barrier", "domain", "iota"]
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """An array, or a tuple of shapes."""

    dtype: str
    dims: tuple[int, ...] = ()
    parts: tuple[Shape, ...] = ()

    @property
    def elements(self) -> int:
        """How many numbers an array holds."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Its size in memory, with all parts of a tuple."""
        if self.parts:
            return sum(part.bytes for part in self.parts)
        return -(-self.elements * bits(self.dtype) // 8)

    def __str__(self) -> str:
        if self.dtype == "tuple":
            return f"({', '.join(map(str, self.parts))})"
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


def bits(dtype: str) -> int:
    """Bits of one number; formats below a byte are packed."""
    if dtype in _BITS:
        return _BITS[dtype]
    found = _WIDTH.match(dtype)
    return int(found[1]) if found else 0


@dataclass
class Instruction:
    """One operation of a program."""

    name: str
    opcode: str
    shape: Shape
    operands: tuple[str, ...] = ()
    operand_shapes: tuple[Shape, ...] = ()
    calls: tuple[str, ...] = ()  # computations; of a while: body first, then condition
    path: str = ""  # jit(train_step)/jvp(layer)/dot_general
    source: str = ""  # file:line
    target: str = ""  # of a custom call
    fusion: str = ""  # kind of a fusion
    groups: Groups = ()
    pairs: Groups = ()  # of a permutation
    channel: int = 0
    trips: int | None = None  # of a while, where the compiler knows
    contracted: tuple[int, ...] = ()  # dimensions of the left operand that a product sums over
    kernel_out: int | None = None  # output-feature dimension of a convolution's kernel
    config: str = ""  # backend_config


@dataclass
class Computation:
    """Instructions in the order they run (where the program is scheduled)."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class Memory:
    """What the compiler reserved on each device, and what is live at the worst moment."""

    arguments: int
    outputs: int  # not counted where they reuse an argument
    temporary: int
    constants: int
    peak: int  # all of it together
    at: str = ""  # the instruction at which temporary memory is fullest
    live: list[tuple[str, int]] = field(default_factory=list)  # largest buffers at that moment: instruction, bytes


@dataclass
class Program:
    """One compiled module."""

    name: str
    entry: str
    computations: dict[str, Computation]
    id: int | None = None
    devices: tuple[int, ...] = ()  # global device of each participant, where the program says
    memory: Memory | None = None

    @cached_property
    def instructions(self) -> dict[str, Instruction]:
        """By name; names are unique in a program."""
        return {i.name: i for c in self.computations.values() for i in c.instructions}

    @cached_property
    def runs(self) -> dict[str, int]:
        """How often each computation runs in one run of the program; a loop of unknown length counts once."""
        counts: dict[str, int] = {}
        for name in self._callers_first():
            times = counts.setdefault(name, 1 if name == self.entry else 0)
            for instruction in self.computations[name].instructions:
                for called in set(instruction.calls):
                    trips = instruction.trips or 1 if instruction.opcode == "while" else 1
                    if instruction.opcode.endswith(("-done", "-update")):
                        continue  # the start has run it
                    counts[called] = counts.get(called, 0) + times * trips
        return counts

    @property
    def unknown_loops(self) -> list[str]:
        """Loops whose length the compiler does not know: what runs in them is counted once."""
        return [i.name for i in self.instructions.values() if i.opcode == "while" and i.trips is None]

    def _callers_first(self) -> list[str]:
        """Computations reached from the entry, every caller before what it calls."""
        order: list[str] = []
        done: set[str] = set()
        stack: list[tuple[str, bool]] = [(self.entry, False)]
        while stack:
            name, left = stack.pop()
            if left:
                order.append(name)
            elif name not in done and name in self.computations:
                done.add(name)
                stack.append((name, True))
                stack += [(c, False) for i in self.computations[name].instructions for c in i.calls]
        return order[::-1]

    def opcodes(self) -> dict[str, int]:
        """Instructions by opcode, most frequent first; those that only name things are left out."""
        every = (i for computation in self.computations.values() for i in computation.instructions)
        return most_first(Counter(i.opcode for i in every if i.opcode not in FREE))

    def fusions(self) -> dict[str, int]:
        """Fusions by kind."""
        return most_first(Counter(i.fusion for i in self.instructions.values() if i.opcode == "fusion"))


def most_first(counts: Counter[str]) -> dict[str, int]:
    """The largest numbers first, equal ones by name."""
    return dict(sorted(counts.items(), key=lambda row: (-row[1], row[0])))


def element(shape: Shape, indices: tuple[int, ...]) -> Shape:
    """A part of a tuple."""
    for index in indices:
        if index >= len(shape.parts):
            break
        shape = shape.parts[index]
    return shape
