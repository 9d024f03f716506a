"""Reads a compiled program from its proto: the one XLA leaves in every trace, or a dump's `.hlo.pb`."""

from __future__ import annotations

import json
from collections import defaultdict

from trackwalker.errors import EvidenceError
from trackwalker.perf.formats.wire import CutError, Value, fields, packed, signed, text
from trackwalker.perf.hlo.buffers import read_memory
from trackwalker.perf.hlo.groups import Groups, chains, iota_groups, mesh_groups
from trackwalker.perf.hlo.program import Computation, Instruction, Program, Shape

# Numbers of XLA's PrimitiveType.
_DTYPES = dict(
    enumerate(
        ["", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f16", "f32", "f64", "tuple", "opaque",
         "c64", "bf16", "token", "c128", "f8e5m2", "f8e4m3fn", "s4", "u4", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz",
         "s2", "u2", "f8e4m3", "f8e3m4", "s1", "u1", "f4e2m1fn", "f8e8m0fnu"]
    )
)  # fmt: skip


def read_proto(raw: bytes | memoryview, identifier: int | None = None) -> Program:
    """The program in an HloProto."""
    try:
        return _Reader(memoryview(raw)).program(identifier)
    except (CutError, ValueError) as error:
        raise EvidenceError(f"this is no whole HLO proto ({error}); take the trace or the dump again") from error


class _Reader:
    """Ids become names as soon as all of them are known."""

    def __init__(self, raw: memoryview) -> None:
        self._raw = raw
        self._stack = _Stack()

    def program(self, identifier: int | None) -> Program:
        """The whole module."""
        whole = dict(fields(self._raw))
        module = whole.get(1)
        if not isinstance(module, memoryview):
            raise CutError("no module in it")
        name = entry_name = ""
        entry_id: Value = 0
        bodies: list[memoryview] = []
        schedule: dict[int, list[int]] = {}
        devices: tuple[int, ...] = ()
        for key, value in fields(module):
            if key == 1:
                name = text(value)
            elif key == 2:
                entry_name = text(value)
            elif key == 6:
                entry_id = value
            elif isinstance(value, int):
                continue
            elif key == 3:
                bodies.append(value)
            elif key == 7:
                schedule = _schedule(value)
            elif key == 15:
                devices = _devices(value)
            elif key == 17:
                self._stack.read(value)
        computations = self._computations(bodies, schedule)
        by_id = {i: c.name for i, c in computations.items()}
        entry = by_id.get(int(entry_id) if isinstance(entry_id, int) else 0, entry_name)
        named = {c.name: c for c in computations.values()}
        result = Program(name, entry, named, identifier, bool(schedule), devices)
        assignment = whole.get(3)
        if isinstance(assignment, memoryview):
            result.memory = read_memory(assignment, self._names)
        return result

    def _computations(self, bodies: list[memoryview], schedule: dict[int, list[int]]) -> dict[int, Computation]:
        found: dict[int, Computation] = {}
        rows: list[tuple[Instruction, list[int], list[int]]] = []
        by_id: dict[int, Instruction] = {}
        for body in bodies:
            name, identifier, own = "", 0, {}
            for key, value in fields(body):
                if key == 1:
                    name = text(value)
                elif key == 5 and isinstance(value, int):
                    identifier = value
                elif key == 2 and isinstance(value, memoryview):
                    number, instruction, operands, called = self._instruction(value)
                    own[number] = instruction
                    rows.append((instruction, operands, called))
            by_id.update(own)
            order = [i for i in schedule.get(identifier, own) if i in own]
            found[identifier] = Computation(name, [own[i] for i in order])
        for instruction, operands, called in rows:
            known = [by_id[i] for i in operands if i in by_id]
            instruction.operands = tuple(i.name for i in known)
            instruction.operand_shapes = tuple(i.shape for i in known)
            instruction.calls = tuple(found[c].name for c in called if c in found)
        self._names = {i: instruction.name for i, instruction in by_id.items()}
        return found

    def _instruction(self, raw: memoryview) -> tuple[int, Instruction, list[int], list[int]]:
        many: dict[int, list[Value]] = defaultdict(list)
        for key, value in fields(raw):
            many[key].append(value)
        one = {key: values[-1] for key, values in many.items()}
        config = _text(one.get(43))
        made = Instruction(_text(one.get(1)), _text(one.get(2)), _shape(one.get(3)), config=config)
        made.target = _text(one.get(28))
        made.fusion = _text(one.get(11))
        channel = one.get(26)
        made.channel = signed(channel) if channel is not None else 0
        if isinstance(meta := one.get(7), memoryview):
            made.path, made.source = self._metadata(meta)
        if isinstance(dot := one.get(30), memoryview):
            made.contracted = tuple(n for key, value in fields(dot) if key == 1 for n in packed(value))
        if isinstance(ragged := one.get(90), memoryview) and isinstance(dot := dict(fields(ragged)).get(1), memoryview):
            made.contracted = tuple(n for key, value in fields(dot) if key == 1 for n in packed(value))
        if isinstance(convolution := one.get(16), memoryview):
            made.kernel_out = next((v for k, v in fields(convolution) if k == 4 and isinstance(v, int)), 0)
        interpret_config(made)
        made.groups = _groups(many)
        made.pairs = tuple(_pair(v) for v in many[52] if isinstance(v, memoryview))
        if made.pairs and not made.groups:
            made.groups = chains(made.pairs)
        number = one.get(35)
        operands = [n for value in many[36] for n in packed(value)]
        called = [n for value in many[38] for n in packed(value)]
        return int(number) if isinstance(number, int) else 0, made, operands, called

    def _metadata(self, raw: memoryview) -> tuple[str, str]:
        path = file = ""
        line = frame = 0
        for key, value in fields(raw):
            if key == 2:
                path = text(value)
            elif key == 3:
                file = text(value)
            elif key == 4 and isinstance(value, int):
                line = value
            elif key == 15 and isinstance(value, int):
                frame = value
        return path, f"{file}:{line}" if file else self._stack.source(frame)


class _Stack:
    """The frames that instructions refer to. They come after the instructions, so they are looked up first."""

    def __init__(self) -> None:
        self._files: list[str] = []
        self._places: list[tuple[int, int]] = []
        self._frames: list[int] = []

    def read(self, raw: memoryview) -> None:
        """The index of a module."""
        for key, value in fields(raw):
            if key == 1:
                self._files.append(text(value))
            elif isinstance(value, memoryview) and key == 3:
                place = dict(fields(value))
                self._places.append((_int(place.get(1)), _int(place.get(3))))
            elif isinstance(value, memoryview) and key == 4:
                self._frames.append(_int(dict(fields(value)).get(1)))

    def source(self, frame: int) -> str:
        """file:line of a frame, by its number from one."""
        if not 0 < frame <= len(self._frames):
            return ""
        place = self._frames[frame - 1]
        if not 0 < place <= len(self._places):
            return ""
        file, line = self._places[place - 1]
        return f"{self._files[file - 1]}:{line}" if 0 < file <= len(self._files) else ""


def interpret_config(made: Instruction) -> None:
    """What a backend's settings say about loops, products and fusions: the same JSON in proto and text."""
    if not made.config.startswith("{") or made.opcode not in ("while", "custom-call", "fusion"):
        return
    try:
        config = json.loads(made.config)
    except ValueError:
        return
    if made.opcode == "while" and (trips := config.get("known_trip_count")):
        made.trips = int(trips["n"])
    gemm = config.get("gemm_backend_config")
    if gemm and "dot_dimension_numbers" in gemm:
        made.contracted = tuple(int(d) for d in gemm["dot_dimension_numbers"].get("lhs_contracting_dimensions", []))
    fusion = config.get("fusion_backend_config") or config.get("fusion_config")
    if made.opcode == "fusion" and fusion and fusion.get("kind"):
        made.fusion = fusion["kind"]


def _text(value: Value | None) -> str:
    return text(value) if value is not None else ""


def _int(value: Value | None) -> int:
    return value if isinstance(value, int) else 0


def _shape(value: Value | None) -> Shape:
    if not isinstance(value, memoryview):
        return Shape("")
    kind, dims, parts = 0, [], []
    for key, part in fields(value):
        if key == 2:
            kind = _int(part)
        elif key == 3:
            dims += packed(part)
        elif key == 4:
            parts.append(_shape(part))
    return Shape(_DTYPES.get(kind, f"type{kind}"), tuple(dims), tuple(parts))


def _schedule(raw: memoryview) -> dict[int, list[int]]:
    found = {}
    for _, entry in fields(raw):
        if isinstance(entry, memoryview):
            pair = dict(fields(entry))
            sequence = pair.get(2)
            if isinstance(sequence, memoryview):
                found[_int(pair.get(1))] = [n for _, value in fields(sequence) for n in packed(value)]
    return found


def _devices(raw: memoryview) -> tuple[int, ...]:
    """Global devices by replica and partition, replicas outside."""
    columns = []
    for key, value in fields(raw):
        if key == 3 and isinstance(value, memoryview):
            columns.append([n for k, v in fields(value) if k == 1 for n in packed(v)])
    return tuple(device for row in zip(*columns, strict=False) for device in row)


def _groups(many: dict[int, list[Value]]) -> Groups:
    for value in many[93]:
        if isinstance(value, memoryview):
            return _mesh(value)
    for value in many[92]:
        if isinstance(value, memoryview):
            return _iota(value)
    for value in many[87]:
        if isinstance(value, memoryview):
            inner: dict[int, list[Value]] = defaultdict(list)
            for key, part in fields(value):
                inner[key].append(part)
            for part in inner[2]:
                if isinstance(part, memoryview):
                    return _iota(part)
            return _listed(inner[1])
    return _listed(many[49])


def _listed(values: list[Value]) -> Groups:
    lists = [[n for _, v in fields(value) for n in packed(v)] for value in values if isinstance(value, memoryview)]
    return tuple(tuple(members) for members in lists if members)


def _iota(raw: memoryview) -> Groups:
    groups = size = 0
    dims: list[int] = []
    order: list[int] = []
    for key, value in fields(raw):
        if key == 1:
            groups = _int(value)
        elif key == 2:
            size = _int(value)
        elif key == 3:
            dims += packed(value)
        elif key == 4:
            order += packed(value)
    return iota_groups(groups, size, dims, order)


def _mesh(raw: memoryview) -> Groups:
    sizes: list[int] = []
    dims: list[int] = []
    order: list[int] = []
    axes: list[tuple[int, int, int]] = []
    for key, value in fields(raw):
        if not isinstance(value, memoryview):
            continue
        if key == 2:  # the first axis is an empty message: its number is 0
            axis = dict(fields(value))
            part = axis.get(2)
            within = dict(fields(part)) if isinstance(part, memoryview) else {}
            axes.append((_int(axis.get(1)), _int(within.get(1)) or 1, _int(within.get(2))))
            continue
        for inner, body in fields(value):
            if inner == 1 and isinstance(body, memoryview):
                sizes.append(_int(dict(fields(body)).get(2)))
            elif inner == 3 and isinstance(body, memoryview):
                for number, numbers in fields(body):
                    (dims if number == 1 else order).extend(packed(numbers))
    return mesh_groups(sizes, axes, dims, order)


def _pair(raw: memoryview) -> tuple[int, int]:
    pair = dict(fields(raw))
    return _int(pair.get(1)), _int(pair.get(2))
