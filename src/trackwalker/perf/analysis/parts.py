"""Where in the model a kernel comes from: op path, source line, part of the model, and pass (forward, backward)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from trackwalker.job.yaml_files import shipped
from trackwalker.perf.analysis.classes import Engine, class_of
from trackwalker.perf.formats.model import NONE, Int64, Kernels, Strings
from trackwalker.perf.hlo.program import FREE, Instruction, Program

FORWARD, BACKWARD, RECOMPUTE, OPTIMISER, OTHER = "forward", "backward", "recompute", "optimiser", "other"
PHASES = (FORWARD, BACKWARD, RECOMPUTE, OPTIMISER, OTHER)
_SCOPES = re.compile(r"[/()]+")


# Kernels in a CUDA graph (an XLA command buffer): which instruction each belongs to.
_PLAIN = re.compile(r"[^A-Za-z0-9]")
_NUMBER = re.compile(r"(_\d+)+$")
_LIBRARY = ("custom-call", "convolution", "dot")
_COPIES = ("copy", "copy-start", "async-start", "dynamic-slice", "dynamic-update-slice")
_MOST = 20_000_000  # kernels times instructions: the table that aligns them stays below 20 MB
_SAME, _CALL, _STEM, _COPY = 8, 5, 3, 1  # how much a pair speaks for itself


def plain(name: str) -> str:
    """A name as a kernel can have it: an instruction's dots and dashes become underscores."""
    return _PLAIN.sub("_", name)


def positions(kernels: Kernels) -> Int64:
    """For a kernel in a graph, its place among the kernels of the same launch; NONE for others."""
    position = np.full(len(kernels), NONE, np.int64)
    rows = np.flatnonzero((kernels.graph > 0) & (kernels.correlation > 0))
    if not len(rows):
        return position
    order = rows[np.lexsort((kernels.start[rows], kernels.correlation[rows]))]
    begin = np.flatnonzero(np.concatenate(([True], np.diff(kernels.correlation[order]) != 0)))
    position[order] = np.arange(len(order)) - np.repeat(begin, np.diff(np.append(begin, len(order))))
    return position


def graph_instructions(
    kernels: Kernels, position: Int64, strings: Strings, programs: dict[int, Program]
) -> dict[tuple[int, int, int], Instruction]:
    """(program, op of the graph, place in it) -> instruction, from the first launch of each graph."""
    found: dict[tuple[int, int, int], Instruction] = {}
    heads = np.flatnonzero(position == 0)
    _, first = np.unique(np.stack([kernels.program[heads], kernels.op[heads]]), axis=1, return_index=True)
    for head in map(int, heads[first]):
        program, op = int(kernels.program[head]), int(kernels.op[head])
        if program in programs:
            rows = np.flatnonzero((kernels.correlation == kernels.correlation[head]) & (position >= 0))
            names = [strings[int(name)] for name in kernels.name[rows[np.argsort(position[rows])]]]
            row = align(names, programs[program])
            found |= {(program, op, at): made for at, made in enumerate(row) if made is not None}
    return found


def align(kernels: list[str], program: Program) -> list[Instruction | None]:
    """The instruction of each of a graph's kernels; None where the order does not tell."""
    by_name = {plain(i.name): (i, c) for c in program.computations.values() for i in c.instructions}
    homes = [by_name[plain(name)][1].name for name in kernels if plain(name) in by_name]
    if not homes:
        return [None] * len(kernels)
    home = program.computations[max(set(homes), key=homes.count)]
    instructions = [i for i in home.instructions if i.opcode not in FREE and not i.opcode.endswith("-done")]
    if len(kernels) * len(instructions) > _MOST:
        return [by_name[plain(name)][0] if plain(name) in by_name else None for name in kernels]
    pairs = _best_pairs(kernels, instructions)
    found: list[Instruction | None] = []
    for name, pair in zip(kernels, pairs, strict=True):
        # A library call can launch more than one kernel: what is left over belongs to the call before it.
        extra = found[-1] if found and pair is None and class_of(name).engine == Engine.COMPUTE else None
        left = extra if extra is not None and extra.opcode in _LIBRARY else None
        found.append(instructions[pair] if pair is not None else left)
    return found


def _best_pairs(kernels: list[str], instructions: list[Instruction]) -> list[int | None]:
    """Pairs in the same order on both sides whose scores sum to the most."""
    names = np.array([plain(i.name) for i in instructions])
    stems = np.array([_NUMBER.sub("", name) for name in names])
    library = np.array([i.opcode in _LIBRARY for i in instructions])
    copies = np.array([i.opcode in _COPIES for i in instructions])
    best = np.zeros((len(kernels) + 1, len(instructions) + 1), np.int32)
    scores = np.zeros((len(kernels), len(instructions)), np.int8)
    for row, kernel in enumerate(kernels):
        name = plain(kernel)
        scores[row] = np.where(names == name, _SAME, np.where(stems == _NUMBER.sub("", name), _STEM, 0))
        if not scores[row].any():
            is_copy = class_of(kernel).engine == Engine.COPY
            if not kernel.lower().startswith("memset"):  # clears the workspace of some call
                scores[row] = np.where(copies, _COPY, 0) if is_copy else np.where(library, _CALL, 0)
        paired = np.where(scores[row] > 0, best[row, :-1] + scores[row], 0)
        best[row + 1, 1:] = np.maximum.accumulate(np.maximum(best[row, 1:], paired))
    pairs: list[int | None] = [None] * len(kernels)
    at = len(instructions)
    for row in range(len(kernels) - 1, -1, -1):
        while at > 0 and best[row + 1, at] == best[row + 1, at - 1]:
            at -= 1
        if at > 0 and best[row + 1, at] != best[row, at]:
            at -= 1
            pairs[row] = at
    return pairs


@dataclass(frozen=True)
class Origins:
    """For each kernel where it comes from; names are indices into the trace's strings."""

    path: Int64
    source: Int64
    inside: Int64  # opcodes of its fusion, as classes.yml reads them
    part: Int64  # index into part_names()
    phase: Int64  # index into PHASES


@cache
def _parts() -> tuple[tuple[str, re.Pattern[str]], ...]:
    data = shipped("perf", "parts.yml")
    return tuple((row["id"], re.compile(row["scope"], re.IGNORECASE)) for row in data["parts"])


def part_names() -> tuple[str, ...]:
    """The parts of a model that are told apart, and what is left."""
    return (*(part for part, _ in _parts()), OTHER)


def part_of(path: str) -> str:
    """The part of the model that an op path belongs to: its innermost scope that names one."""
    scopes = _SCOPES.split(path.split(";", 1)[0])[:-1]  # the last name is the operation itself
    for scope in reversed(scopes):
        for part, pattern in _parts():
            if pattern.search(scope):
                return part
    return OTHER


def phase_of(path: str) -> str:
    """The pass an op path belongs to."""
    if "rematted_computation" in path:
        return RECOMPUTE
    first = path.partition("/")[0]
    if "transpose(" in path or first == BACKWARD:  # the operation "transpose" has no parenthesis
        return BACKWARD
    if "jvp(" in path or first == FORWARD:
        return FORWARD
    return OPTIMISER if part_of(path) == "optimiser" else OTHER


def origins(kernels: Kernels, strings: Strings, programs: Mapping[int, Program]) -> Origins:
    """Where every kernel of a device comes from; each distinct kernel is looked up once."""
    position = positions(kernels)
    owner, which = np.unique(kernels.program, return_inverse=True)
    known = {int(program): programs[int(program)] for program in owner if int(program) in programs}
    width = len(strings) + 1
    tells = kernels.op if known else kernels.path  # without a program nothing but the trace's own path tells
    key = (which.astype(np.int64) * width + tells + 1) * width + kernels.name + 1
    key = key * (int(position.max(initial=0)) + 2) + position + 1
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    in_graphs = graph_instructions(kernels, position, strings, known)
    by_kernel = {key: {plain(n): made for n, made in p.instructions.items()} for key, p in known.items()}
    rows = []
    for row in map(int, first):
        program, op = int(kernels.program[row]), int(kernels.op[row])
        made = in_graphs.get((program, op, int(position[row])))
        if made is None and program in known:
            # XLA names a fusion's kernel after the fusion, which helps where the op names only a graph or a loop.
            named = by_kernel[program].get(plain(strings[int(kernels.name[row])]))
            made = known[program].instructions.get(strings[op], named)
        told = strings[int(kernels.path[row])]
        path = told if "/" in told else made.path if made else ""  # without a slash it names a module or an argument
        source = strings.add(made.source) if made else NONE
        inside = strings.add(_opcodes(made, known[program])) if made else NONE
        rows.append(
            (strings.add(path), source, inside, part_names().index(part_of(path)), PHASES.index(phase_of(path)))
        )
    return Origins(*np.array(rows, np.int64).reshape(-1, 5)[index].T)


def _opcodes(made: Instruction, program: Program) -> str:
    """What a fusion computes: its opcodes between spaces, in order of the alphabet."""
    if made.opcode != "fusion":
        return ""
    inner = [
        i.opcode for name in made.calls if name in program.computations for i in program.computations[name].instructions
    ]
    return f" {' '.join(sorted(set(inner) - {'parameter', 'constant'}))} "
