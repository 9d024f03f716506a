"""Reads a compiled program from HLO text, as `XLA_FLAGS=--xla_dump_to=…` writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from trackwalker.errors import EvidenceError
from trackwalker.perf.groups import chains, parse_groups, parse_pairs
from trackwalker.perf.hlo import Computation, Instruction, Program, Shape, element
from trackwalker.perf.hlo_proto import interpret_config

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
    program = Program(name[1] if name else "", entry, computations, scheduled="is_scheduled=true" in head)
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
