"""The collectives of a program, as the compiler planned them: bytes, groups, and what may hide them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

from trackwalker.perf.hlo.cost import OpCost, is_recomputed, op_costs
from trackwalker.perf.hlo.groups import Groups
from trackwalker.perf.hlo.program import COLLECTIVES, FREE, Computation, Instruction, Program, most_first

# Longest first: a ragged all-to-all is no all-to-all.
_SPELLINGS = [
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in [
        (r"ragged[-_]?all[-_]?to[-_]?all", "ragged-all-to-all"),
        (r"all[-_]?gather", "all-gather"),
        (r"all[-_]?reduce|cross_device_reduce", "all-reduce"),
        (r"reduce[-_]?scatter", "reduce-scatter"),
        (r"all[-_]?to[-_]?all", "all-to-all"),
        (r"collective[-_]?permute", "collective-permute"),
        (r"collective[-_]?broadcast|nccl\w*broadcast", "collective-broadcast"),
        (r"send[-_]?recv", "send-recv"),
        (r"\bsend\b", "send"),
        (r"\brecv\b", "recv"),
    ]
]
# Who waits for whom: in these every member has what the others gave before it leaves.
MEETINGS = frozenset(["all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all"])


@dataclass(frozen=True)
class Collective:
    """One collective instruction of a program."""

    op: str  # as a trace names it: the start of an asynchronous one
    kind: str
    names: tuple[str, ...]  # every name a trace may give it
    asynchronous: bool
    runs: int  # in one run of the program
    bytes: int  # as nccl-tests count them: what a rank ends up with or starts from, the larger
    groups: Groups  # of device numbers; empty: all together
    path: str
    source: str
    recomputed: bool
    between: int = 0  # instructions with work between start and done
    between_flops: int = 0
    crosses: bool = False  # done in another iteration than it was started in

    @property
    def size(self) -> int | None:
        """Members of a group, None when all devices take part."""
        return max(map(len, self.groups)) if self.groups else None


def kind_of(*names: str) -> str:
    """The kind of collective that an instruction's or kernel's name tells; "" for anything else."""
    for name in names:
        for pattern, kind in _SPELLINGS:
            if pattern.search(name):
                return kind
    return ""


def bus_factor(kind: str, members: int) -> float:
    """What algorithm bandwidth is multiplied with to compare it with a link (nccl-tests' convention)."""
    if members < 2:
        return 0.0
    if kind == "all-reduce":
        return 2 * (members - 1) / members
    if kind in ("all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"):
        return (members - 1) / members
    return 1.0


def program_collectives(program: Program, devices: int | None = None) -> list[Collective]:
    """All collectives of a program in the order they are started; `devices` is how many take part in all."""
    costs = op_costs(program)
    wrapped = _wrapped(program)
    total = devices or len(program.devices) or None
    found = []
    for name, runs in program.runs.items():
        computation = program.computations.get(name)
        if computation is None or name in wrapped:
            continue
        for index, instruction in enumerate(computation.instructions):
            real, kind = _real(program, instruction)
            if not kind:
                continue
            made = _collective(instruction, real, kind, runs, total)
            if instruction.opcode.endswith("-start"):
                made = _with_overlap(made, computation, index, costs)
            found.append(made)
    return found


def by_kind(collectives: list[Collective]) -> dict[str, int]:
    """Executions in one run of the program, by kind."""
    counts = Counter[str]()
    for collective in collectives:
        counts[collective.kind] += collective.runs
    return most_first(counts)


def bytes_by_kind(collectives: list[Collective]) -> dict[str, int]:
    """Bytes in one run of the program, by kind."""
    sums = Counter[str]()
    for collective in collectives:
        sums[collective.kind] += collective.runs * collective.bytes
    return most_first(sums)


def by_name(collectives: list[Collective]) -> dict[str, Collective]:
    """Each collective under every name a trace may use."""
    return {name: collective for collective in collectives for name in collective.names}


def _wrapped(program: Program) -> frozenset[str]:
    """Computations that only wrap an instruction to make it asynchronous: counted where they are started."""
    starts = (i for i in program.instructions.values() if i.opcode == "async-start")
    return frozenset(c for i in starts for c in i.calls)


def _real(program: Program, instruction: Instruction) -> tuple[Instruction, str]:
    """The instruction that communicates, and its kind; kind "" when it does not."""
    opcode = instruction.opcode
    if opcode in COLLECTIVES:
        return instruction, opcode
    if opcode.endswith("-start") and opcode.removesuffix("-start") in COLLECTIVES:
        return instruction, opcode.removesuffix("-start")
    if opcode == "async-start":
        for name in instruction.calls:
            for inner in program.computations.get(name, Computation(name)).instructions:
                if inner.opcode in COLLECTIVES:
                    return inner, inner.opcode
    return instruction, ""


def _collective(start: Instruction, real: Instruction, kind: str, runs: int, devices: int | None) -> Collective:
    size = max(map(len, real.groups)) if real.groups else devices or 1
    given = sum(shape.bytes for shape in real.operand_shapes)
    path = start.path or real.path
    return Collective(
        op=start.name,
        kind=kind,
        names=(start.name,) if start is real else (start.name, real.name),
        asynchronous=start.opcode.endswith("-start") and '"is_sync":true' not in start.config.replace(" ", ""),
        runs=runs,
        bytes=given * size if kind == "all-gather" else given,
        groups=real.groups,
        path=path,
        source=start.source or real.source,
        recomputed=is_recomputed(start) or is_recomputed(real),
    )


def _with_overlap(made: Collective, computation: Computation, start: int, costs: dict[str, OpCost]) -> Collective:
    """What the schedule puts between a start and its done."""
    names = {made.op}
    count = flops = 0
    for instruction in computation.instructions[start + 1 :]:
        if names & set(instruction.operands):
            if instruction.opcode.endswith("-done"):
                return replace(made, between=count, between_flops=flops)
            names.add(instruction.name)  # an update, or a name for a part of it
            continue
        if instruction.opcode in FREE or instruction.opcode.endswith("-done"):
            continue
        if kind_of(instruction.opcode, instruction.name):
            continue
        count, flops = count + 1, flops + costs.get(instruction.name, OpCost(0, 0)).flops
    return replace(made, between=count, between_flops=flops, crosses=True)
