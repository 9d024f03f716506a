"""Where in the model a kernel comes from: op path, source line, part of the model, and pass (forward, backward)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import yaml

from trackwalker.perf.graphs import graph_instructions, plain, positions
from trackwalker.perf.hlo import Instruction, Program
from trackwalker.perf.model import NONE, Int64, Kernels, Strings

FORWARD, BACKWARD, RECOMPUTE, OPTIMISER, OTHER = "forward", "backward", "recompute", "optimiser", "other"
PHASES = (FORWARD, BACKWARD, RECOMPUTE, OPTIMISER, OTHER)
_SCOPES = re.compile(r"[/()]+")


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
    data = yaml.safe_load(resources.files("trackwalker.perf").joinpath("parts.yml").read_text(encoding="utf-8"))
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
