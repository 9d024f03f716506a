"""Reads a compiled program from its proto: the one XLA leaves in every trace, or a dump's `.hlo.pb`.

With it the compiler's own plan of device memory: how much is reserved, and what is live at the worst moment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from trackwalker.errors import EvidenceError
from trackwalker.perf.formats.wire import CutError, Message, signed
from trackwalker.perf.hlo.groups import Groups, chains, iota_groups, mesh_groups
from trackwalker.perf.hlo.program import Computation, Instruction, Memory, Program, Shape

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
        whole = Message(self._raw)
        module = whole.one(1)
        if module is None:
            raise CutError("no module in it")
        if stack := module.one(17):
            self._stack = _Stack(stack)
        order, assigned = module.one(7), module.one(15)
        schedule = _schedule(order) if order else {}
        computations = self._computations(module.all(3), schedule)
        by_id = {i: c.name for i, c in computations.items()}
        entry = by_id.get(module.number(6), module.text(2))
        named = {c.name: c for c in computations.values()}
        devices = _devices(assigned) if assigned else ()
        result = Program(module.text(1), entry, named, identifier, devices)
        if assignment := whole.one(3):
            result.memory = read_memory(assignment, self._names)
        return result

    def _computations(self, bodies: Iterable[Message], schedule: dict[int, list[int]]) -> dict[int, Computation]:
        found: dict[int, Computation] = {}
        rows: list[tuple[Instruction, list[int], list[int]]] = []
        by_id: dict[int, Instruction] = {}
        for body in bodies:
            own = {}
            for raw in body.all(2):
                own[raw.number(35)] = made = self._instruction(raw)
                rows.append((made, raw.numbers(36), raw.numbers(38)))
            by_id.update(own)
            order = [i for i in schedule.get(body.number(5), own) if i in own]
            found[body.number(5)] = Computation(body.text(1), [own[i] for i in order])
        for instruction, operands, called in rows:
            known = [by_id[i] for i in operands if i in by_id]
            instruction.operands = tuple(i.name for i in known)
            instruction.operand_shapes = tuple(i.shape for i in known)
            instruction.calls = tuple(found[c].name for c in called if c in found)
        self._names = {i: instruction.name for i, instruction in by_id.items()}
        return found

    def _instruction(self, raw: Message) -> Instruction:
        made = Instruction(raw.text(1), raw.text(2), _shape(raw.one(3)), config=raw.text(43))
        made.target, made.fusion, made.channel = raw.text(28), raw.text(11), signed(raw.number(26))
        if meta := raw.one(7):
            made.path = meta.text(2)
            made.source = f"{file}:{meta.number(4)}" if (file := meta.text(3)) else self._stack.source(meta.number(15))
        ragged = raw.one(90)
        if dot := (ragged.one(1) if ragged else None) or raw.one(30):
            made.contracted = tuple(dot.numbers(1))
        if convolution := raw.one(16):
            made.kernel_out = convolution.number(4)
        interpret_config(made)
        made.groups = _groups(raw)
        made.pairs = tuple((pair.number(1), pair.number(2)) for pair in raw.all(52))
        if made.pairs and not made.groups:
            made.groups = chains(made.pairs)
        return made


class _Stack:
    """The frames that instructions refer to. They come after the instructions, so they are looked up first."""

    def __init__(self, index: Message | None = None) -> None:
        self._files = index.texts(1) if index else []
        self._places = [(place.number(1), place.number(3)) for place in index.all(3)] if index else []
        self._frames = [frame.number(1) for frame in index.all(4)] if index else []

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


def _shape(raw: Message | None) -> Shape:
    if raw is None:
        return Shape("")
    kind = raw.number(2)
    return Shape(_DTYPES.get(kind, f"type{kind}"), tuple(raw.numbers(3)), tuple(map(_shape, raw.all(4))))


def _schedule(raw: Message) -> dict[int, list[int]]:
    pairs = ((entry.number(1), entry.one(2)) for entry in raw.all(1))
    return {computation: sequence.numbers(1) for computation, sequence in pairs if sequence is not None}


def _devices(raw: Message) -> tuple[int, ...]:
    """Global devices by replica and partition, replicas outside."""
    columns = [column.numbers(1) for column in raw.all(3)]
    return tuple(device for row in zip(*columns, strict=False) for device in row)


def _groups(raw: Message) -> Groups:
    if mesh := raw.one(93):
        return _mesh(mesh)
    if iota := raw.one(92):
        return _iota(iota)
    if either := raw.one(87):
        return _iota(inner) if (inner := either.one(2)) else _listed(either.all(1))
    return _listed(raw.all(49))


def _listed(groups: Iterable[Message]) -> Groups:
    lists = (tuple(group.numbers(1)) for group in groups)
    return tuple(members for members in lists if members)


def _iota(raw: Message) -> Groups:
    return iota_groups(raw.number(1), raw.number(2), raw.numbers(3), raw.numbers(4))


def _mesh(raw: Message) -> Groups:
    mesh = raw.one(1)
    sizes = [axis.number(2) for axis in mesh.all(1)] if mesh else []
    order = mesh.one(3) if mesh else None
    axes: list[tuple[int, int, int]] = []
    for axis in raw.all(2):  # the first axis is an empty message: its number is 0
        part = axis.one(2)
        axes.append((axis.number(1), part.number(1) or 1 if part else 1, part.number(2) if part else 0))
    return mesh_groups(sizes, axes, order.numbers(1) if order else [], order.numbers(2) if order else [])


_LARGEST = 12  # buffers that a report shows
_FREE = 1  # kinds of event of the memory plan: 0 alloc, 1 free, 2 share


def read_memory(raw: Message, names: Mapping[int, str]) -> Memory:
    """What a BufferAssignmentProto says; `names` gives the name of an instruction by its id."""
    buffers = {row.number(1): (row.number(2), _name(row.one(3), names)) for row in raw.all(1)}
    sums = {"arguments": 0, "outputs": 0, "temporary": 0, "constants": 0}
    for row in raw.all(3):
        if kind := _kind(row):
            sums[kind] += row.number(2)
    worst, at, live = 0, "", list[tuple[str, int]]()
    for simulated in raw.all(4):
        peak, where, held = _replay(simulated, buffers)
        if peak > worst:
            worst, at, live = peak, where, held
    return Memory(**sums, peak=sum(sums.values()), at=at, live=live)


def _name(place: Message | None, names: Mapping[int, str]) -> str:
    return (place.text(2) or names.get(place.number(4), "")) if place else ""


def _kind(row: Message) -> str:
    """Which sum an allocation belongs to; thread-local ones are not device memory of the program."""
    if row.number(3):
        return ""
    kinds = ((5, "arguments"), (12, "constants"), (7, "outputs"))
    return next((kind for key, kind in kinds if row.number(key)), "temporary")


def _replay(raw: Message, buffers: Mapping[int, tuple[int, str]]) -> tuple[int, str, list[tuple[str, int]]]:
    """Play the compiler's own simulation: the highest sum, where it was reached, and what was held then."""
    events = list(raw.all(1))
    sums = [now for now, _ in _held(events, buffers)]
    if not sums:
        return 0, "", []
    worst = sums.index(max(sums))
    held = next(held for i, (_, held) in enumerate(_held(events, buffers)) if i == worst)
    rows = sorted(((buffers.get(b, (0, ""))[1], size) for b, size in held.items()), key=lambda row: -row[1])
    return sums[worst], events[worst].text(4), rows[:_LARGEST]


def _held(events: list[Message], buffers: Mapping[int, tuple[int, str]]) -> Iterator[tuple[int, dict[int, int]]]:
    """After each event: bytes held, and by which buffers (one dictionary that changes)."""
    held: dict[int, int] = {}
    homes: dict[int, int] = {}  # a buffer may live in the memory of another one, which then lives as long
    users: dict[int, int] = {}
    now = 0
    for event in events:
        kind, identifier = event.number(1), event.number(2)
        home = event.number(5) if kind > _FREE else homes.get(identifier, identifier)
        if kind == _FREE:
            users[home] = users.get(home, 1) - 1
            if users[home] <= 0:
                now -= held.pop(home, 0)
        else:
            homes[identifier] = home
            users[home] = users.get(home, 0) + 1
            if home not in held:
                held[home] = buffers.get(home, (0, ""))[0]
                now += held[home]
        yield now, held
