"""The compiled program of a step in figures: FLOPs, what is computed again, memory, collectives."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

from trackwalker.errors import EvidenceError
from trackwalker.perf.collectives import Collective, by_kind, bytes_by_kind, program_collectives
from trackwalker.perf.hlo import Program
from trackwalker.perf.hlo_cost import Cost, cost
from trackwalker.perf.hlo_proto import read_proto
from trackwalker.perf.hlo_text import read_text
from trackwalker.perf.result import PlannedRow, ProgramPart
from trackwalker.perf.unzip import unzipped

# XLA's names of types, as the table of peaks has them.
_KINDS = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "s8": "int8", "u8": "int8"}
_MOST_OPCODES = 60
_MOST_BUFFERS = 20
_MOST_COLLECTIVES = 200
_MEMORY = ("arguments", "outputs", "temporary", "constants")


def read_program(path: Path) -> Program:
    """The program of a dump, as proto or text, compressed or not."""
    try:
        with path.open("rb") as file:
            raw = b"".join(unzipped(file, path.name)) if path.name.endswith(".gz") else file.read()
        return read_proto(raw) if ".hlo.pb" in path.name else read_text(raw.decode("utf-8", "replace"))
    except (zlib.error, EOFError, ValueError, IndexError, KeyError, OverflowError, RecursionError) as e:
        raise EvidenceError(f"{path.name} is damaged ({type(e).__name__}: {e}): dump it again") from e


def program_part(program: Program) -> tuple[ProgramPart, dict[str, float]]:
    """The figures of a program, and its FLOPs by type."""
    spent, memory = cost(program), program.memory
    planned = program_collectives(program)
    part = ProgramPart(
        name=program.name,
        fingerprint=fingerprint(program),
        tflops=spent.flops / 1e12,
        remat_share=spent.recomputed / spent.flops if spent.flops else None,
        peak_bytes=memory.peak if memory else None,
        memory={name: getattr(memory, name) for name in _MEMORY} if memory else {},
        live_at_peak=memory.live[:_MOST_BUFFERS] if memory else [],
        collectives=by_kind(planned),
        collective_bytes=bytes_by_kind(planned),
        planned=[_planned(c) for c in sorted(planned, key=lambda c: -c.runs * c.bytes)[:_MOST_COLLECTIVES]],
        fusions=sum(program.fusions().values()),
        ops=dict(list(program.opcodes().items())[:_MOST_OPCODES]),
        notes=_notes(program, spent),
    )
    executed: dict[str, float] = {}
    for dtype, flops in spent.by_dtype.items():
        kind = _KINDS.get(dtype) or ("float8" if dtype.startswith("f8") else dtype)
        executed[kind] = executed.get(kind, 0.0) + flops
    return part, executed


def _planned(made: Collective) -> PlannedRow:
    groups = "all together"
    if made.groups:
        first = ", ".join(map(str, made.groups[0][:8])) + (" …" if len(made.groups[0]) > 8 else "")
        groups = f"{len(made.groups)} groups of {made.size}, first {first}" if len(made.groups) > 1 else first
    return PlannedRow(
        name=made.op, kind=made.kind, runs=made.runs, bytes=made.bytes, groups=groups, asynchronous=made.asynchronous,
        between=made.between, between_gflop=made.between_flops / 1e9, crosses=made.crosses,
        recomputed=made.recomputed, source=made.source or made.path,
    )  # fmt: skip


def fingerprint(program: Program) -> str:
    """The same for two compilations that do the same: what is done to which shapes, not how it is numbered."""
    digest = hashlib.sha256()
    for name in program.runs:
        for instruction in program.computations[name].instructions if name in program.computations else []:
            digest.update(f"{instruction.opcode} {instruction.shape} {instruction.target}\n".encode())
    return digest.hexdigest()[:16]


def _notes(program: Program, spent: Cost) -> list[str]:
    notes = []
    if spent.unknown:
        names = ", ".join(f"{target} x {runs}" for target, runs in list(spent.unknown.items())[:4])
        notes.append(f"FLOPs of custom calls are not known ({names}): executed FLOPs are a lower bound")
    if program.unknown_loops:
        notes.append(f"{len(program.unknown_loops)} loops of unknown length are counted once")
    return notes
