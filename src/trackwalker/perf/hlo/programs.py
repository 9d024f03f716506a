"""The compiled program of a step in figures: FLOPs, what is computed again, memory, collectives."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from trackwalker.errors import EvidenceError
from trackwalker.perf.analysis.result import PlannedRow, ProgramPart
from trackwalker.perf.formats.wire import unzipped
from trackwalker.perf.hlo.collectives import Collective, by_kind, bytes_by_kind, program_collectives
from trackwalker.perf.hlo.cost import Cost, cost
from trackwalker.perf.hlo.groups import chains, parse_groups, parse_pairs
from trackwalker.perf.hlo.program import Computation, Instruction, Program, Shape, element
from trackwalker.perf.hlo.proto import interpret_config, read_proto

# XLA's names of types, as the table of peaks has them.
_KINDS = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "s8": "int8", "u8": "int8"}
_MOST_OPCODES = 60
_MOST_BUFFERS = 20
_MOST_COLLECTIVES = 200
_MEMORY = ("arguments", "outputs", "temporary", "constants")


# Reads a compiled program from HLO text, as `XLA_FLAGS=--xla_dump_to=…` writes it.
_MODULE = re.compile(r"^HloModule ([^\s,]+)")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_ARRAY = re.compile(r"^([a-z]\w*)\[([^\]]*)\]")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_CALLED = re.compile(r"\b(body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_CALLED_LISTS = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")
_GROUPS = re.compile(
    r"replica_groups=(mesh\[[^\]]*\][^{]*\{[^}]*\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|\{\}|\{.*?\}\})"
)
_PAIRS = re.compile(r"source_target_pairs=(\{\}|\{.*?\}\})")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_LABELS = re.compile(r"dim_labels=\w*?_(\w+)->")
_KIND = re.compile(r"\bkind=(\w+)")
_CHANNEL = re.compile(r"channel_id=(\d+)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_PATH = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_FILE = re.compile(r'source_file="([^"]*)"')
_LINE = re.compile(r"source_line=(\d+)")
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_TABLE_ROW = re.compile(r"^(\d+) (?:\"(.*)\"|\{(.*)\})$")
_CALL_ORDER = {"body": 0, "calls": 0, "to_apply": 0, "true_computation": 0, "false_computation": 1, "condition": 1}
_OPEN, _CLOSE = "([{", ")]}"


def read_text(source: str) -> Program:
    """The program that a text describes."""
    lines = source.splitlines()
    head = next((line for line in lines if _MODULE.match(line)), None)
    if head is None:
        raise EvidenceError('this is no HLO text: no line begins with "HloModule"; give a *.hlo.txt of an XLA dump')
    name = _MODULE.match(head)
    stack = _tables(lines)
    computations: dict[str, Computation] = {}
    entry = ""
    current: Computation | None = None
    for line in lines:
        if current is None:
            if header := _HEADER.match(line):
                current = computations[header[2]] = Computation(header[2])
                entry = header[2] if header[1] else entry
        elif line.startswith("}"):
            current = None
        elif made := _instruction(line, stack):
            current.instructions.append(made)
    program = Program(name[1] if name else "", entry, computations)
    _resolve(program)
    return program


def _resolve(program: Program) -> None:
    """Give every instruction the shapes of what it reads; `name#2` is the third part of a tuple."""
    shapes = {n: i.shape for n, i in program.instructions.items()}
    for instruction in program.instructions.values():
        parts = [operand.split("#") for operand in instruction.operands]
        known = [(p[0], tuple(int(i) for i in p[1:])) for p in parts if p[0] in shapes]
        instruction.operands = tuple(name for name, _ in known)
        instruction.operand_shapes = tuple(element(shapes[name], index) for name, index in known)


def _instruction(line: str, stack: dict[int, str]) -> Instruction | None:
    head = _INSTRUCTION.match(line)
    if not head:
        return None
    rest = re.sub(r"/\*.*?\*/", "", line[head.end() :])
    end = _matching(rest, 0) if rest.startswith("(") else rest.find(" ")
    opcode = _OPCODE.match(rest, end)
    if not opcode:
        return None
    close = _matching(rest, opcode.end() - 1)
    attributes = rest[close:]
    made = Instruction(head[1], opcode[1], _shape(rest[:end]))
    made.operands = tuple(_operands(rest[opcode.end() : close - 1]))
    plain = _QUOTED.sub('""', attributes)
    called = sorted(_CALLED.findall(plain), key=lambda c: _CALL_ORDER[c[0]])
    listed = [n.strip().lstrip("%") for names in _CALLED_LISTS.findall(plain) for n in names.split(",")]
    made.calls = tuple(n for n in [*(c[1] for c in called), *listed] if n)
    if found := _GROUPS.search(attributes):
        made.groups = parse_groups(found[1])
    if found := _PAIRS.search(plain):
        made.pairs = parse_pairs(found[1])
        made.groups = made.groups or chains(made.pairs)
    if found := _CONTRACTED.search(plain):
        made.contracted = tuple(int(d) for d in found[1].split(",") if d)
    if found := _LABELS.search(plain):
        made.kernel_out = found[1].find("o")
    if found := _CHANNEL.search(plain):
        made.channel = int(found[1])
    made.fusion = _first(_KIND, plain)
    made.target = _first(_TARGET, attributes)
    made.path = _first(_PATH, attributes)
    file = _first(_FILE, attributes)
    frame = _first(_FRAME, plain)
    made.source = f"{file}:{_first(_LINE, plain)}" if file else stack.get(int(frame or 0), "")
    made.config = _config(attributes)
    interpret_config(made)
    return made


def _first(pattern: re.Pattern[str], line: str) -> str:
    found = pattern.search(line)
    return found[1] if found else ""


def _config(attributes: str) -> str:
    """The backend's settings: JSON as it is, or JSON in a quoted string (older dumps)."""
    at = attributes.find("backend_config=")
    if at < 0:
        return ""
    value = attributes[at + len("backend_config=") :]
    if value.startswith("{"):
        return value[: _matching(value, 0)]
    if quoted := _QUOTED.match(value):
        try:
            return str(json.loads(quoted[0]))
        except ValueError:
            return ""
    return ""


def _operands(inner: str) -> Iterator[str]:
    """Names, with or without a percent sign and a shape before them."""
    for part in _split(inner):
        word = part.split()[-1] if part.split() else ""
        if word and not word[0].isdigit():
            yield word.lstrip("%")


def _split(text: str) -> Iterator[str]:
    """Parts between commas that are not inside brackets."""
    depth = begin = 0
    for at, char in enumerate(text):
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif char == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
    if begin < len(text):
        yield text[begin:]


def _matching(text: str, at: int) -> int:
    """One past the bracket that closes the one at `at`; brackets in quotes do not count."""
    depth, quoted = 0, False
    for i in range(at, len(text)):
        char = text[i]
        if char == '"' and text[i - 1] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
            if depth == 0:
                return i + 1
    return len(text)


def _shape(text: str) -> Shape:
    text = text.strip()
    if text.startswith("("):
        return Shape("tuple", (), tuple(_shape(part) for part in _split(text[1:-1])))
    found = _ARRAY.match(text)
    if not found:
        return Shape(text.split("[", maxsplit=1)[0])
    return Shape(found[1], tuple(int(d.strip().lstrip("<=")) for d in found[2].split(",") if d.strip("<= ?")))


def _tables(lines: list[str]) -> dict[int, str]:
    """file:line of each stack frame, from the tables before the first computation."""
    tables: dict[str, dict[int, str]] = {}
    rows: dict[int, str] = {}
    for line in lines[1:]:
        if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            rows = tables.setdefault(line, {})
        elif found := _TABLE_ROW.match(line):
            rows[int(found[1])] = found[2] if found[2] is not None else found[3]
        elif _HEADER.match(line):
            break
    places = {}
    for number, row in tables.get("FileLocations", {}).items():
        values = dict(part.split("=") for part in row.split())
        file = tables.get("FileNames", {}).get(int(values.get("file_name_id", 0)), "")
        places[number] = f"{file}:{values.get('line', 0)}" if file else ""
    frames = {}
    for number, row in tables.get("StackFrames", {}).items():
        values = dict(part.split("=") for part in row.split())
        frames[number] = places.get(int(values.get("file_location_id", 0)), "")
    return frames


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
