"""Makes xplane files of a job whose every picosecond is known: steps, collectives, stragglers, clocks that differ.

A step is a row of blocks. A block is a few kernels one after the other, then a collective that begins under the last of
them and ends for the whole group at once: when the last rank has come, plus the transfer. All times are whole
picoseconds, so what the reader finds can be compared exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from trackwalker.perf.ranks.perfetto import Ragged, block, blocks, joined, number, same, varints

US = 1_000_000  # picoseconds
_ROWS = 200_000  # events encoded at a time
_LEAD = 30 * US  # the host is that far ahead of the device
_LATE_LEAD = 5 * US  # ... but not after a host gap
_LAUNCH = 3 * US
_STATS = [
    "correlation_id", "kernel_details", "name", "hlo_op", "hlo_module", "program_id", "memcpy_details", "step_num",
    "device_vendor", "core_count", "clock_rate", "memory_bandwidth", "memory_size", "compute_cap_major",
    "compute_cap_minor", "profile_start_time", "profile_stop_time", "Hlo Proto", "process_id",
]  # fmt: skip
_ID = {name: i + 1 for i, name in enumerate(_STATS)}
_PROGRAM = 42
_MODULE = "jit_train_step"
_FIRST_REF = 1000  # interned strings come after the stats' own names
_DETAILS = "regs:64 static_shared:0 dynamic_shared:0 grid:1024,1,1 block:256,1,1 occ_pct:50"
_EPOCH_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Recipe:
    """What the job does; lengths in microseconds."""

    gpus: int = 8
    steps: int = 3
    layers: int = 4
    kernels: int = 6  # before each collective
    kernel_us: int = 40
    transfer_us: int = 120
    overlap: float = 0.25  # share of a transfer that lies under the last kernels
    gap_us: int = 2  # from a collective to the next kernel, launched in time
    host_gap_us: int = 50  # before each step, launched late
    copy_us: int = 10  # input of each step
    jitter: float = 0.0
    group: int = 0  # ranks of an all-gather or reduce-scatter, 0: all
    bytes: int = 64 * 1024 * 1024  # of a collective
    slow: Mapping[int, float] = field(default_factory=dict)  # rank -> factor of its kernels
    late_us: Mapping[int, int] = field(default_factory=dict)  # rank -> more host gap in each step
    clock_error_us: Mapping[int, int] = field(default_factory=dict)  # rank -> its host's clock is that far ahead
    drift_ppm: Mapping[int, float] = field(default_factory=dict)  # rank -> its clock runs that much faster
    start_skew_us: int = 1500  # rank r's file begins r times that later
    launches: bool = True
    markers: bool = True
    seed: int = 1

    @property
    def plan(self) -> list[tuple[str, int]]:
        """The blocks of a step: kind of the collective, layer."""
        forward = [("all-gather", i) for i in range(self.layers)]
        backward = [("reduce-scatter", i) for i in reversed(range(self.layers))]
        return [*forward, *backward, ("all-reduce", 0)]


@dataclass(frozen=True)
class Timeline:
    """When each rank began each block, came to its collective and left it: rank x block."""

    recipe: Recipe
    begin: np.ndarray
    arrive: np.ndarray
    leave: np.ndarray

    def truth(self, rank: int) -> dict[str, int]:
        """What a reader must find for a rank from its first to its last event."""
        r, n = self.recipe, self.begin.shape[1]
        hidden = _hidden(r) * n
        comm = int((self.leave[rank] - self.arrive[rank]).sum())
        copy = r.copy_us * US * r.steps
        return {
            "compute": int((self.arrive[rank] - self.begin[rank]).sum()) + hidden,
            "exposed_comm": comm - hidden,
            "overlapped_comm": hidden,
            "copy": copy,
            "host_gap": (r.host_gap_us + r.late_us.get(rank, 0)) * US * (r.steps - 1),
            "idle": r.gap_us * US * (n - r.steps),
            "span": int(self.leave[rank, -1] - self.begin[rank, 0]) + r.copy_us * US,
        }

    @property
    def span(self) -> int:
        """From the first event of the job to the last."""
        return int(self.leave.max() - self.begin[:, 0].min()) + self.recipe.copy_us * US


def simulate(r: Recipe) -> Timeline:
    """Play the job block by block."""
    plan = r.plan
    busy = np.stack([_work(r, rank).sum(axis=1) for rank in range(r.gpus)])
    hidden = _hidden(r)
    if hidden > busy.min():
        raise ValueError("the overlap is longer than the kernels it should lie under")
    late = np.array([r.late_us.get(i, 0) for i in range(r.gpus)], np.int64) * US
    group = r.group or r.gpus
    begin, arrive, leave = (np.empty(busy.shape, np.int64) for _ in range(3))
    clock = np.zeros(r.gpus, np.int64)
    for i in range(busy.shape[1]):
        if i % len(plan) == 0:
            clock = clock + r.host_gap_us * US + late + r.copy_us * US
        begin[:, i] = clock
        arrive[:, i] = clock + busy[:, i] - hidden
        size = r.gpus if plan[i % len(plan)][0] == "all-reduce" else group
        last = arrive[:, i].reshape(-1, size).max(axis=1)
        leave[:, i] = np.repeat(last, size) + r.transfer_us * US
        clock = leave[:, i] + (0 if (i + 1) % len(plan) == 0 else r.gap_us * US)
    return Timeline(r, begin, arrive, leave)


def without_stragglers(r: Recipe) -> Timeline:
    """The same job with every rank alike."""
    return simulate(replace(r, slow={}, late_us={}))


def sized(r: Recipe, megabytes: float) -> Recipe:
    """The recipe with as many steps as fill a file of that size."""
    per_kernel = 62 + (31 if r.launches else 0)
    per_step = len(r.plan) * (r.kernels + 1) * r.gpus * per_kernel
    return replace(r, steps=max(3, math.ceil(megabytes * 1e6 / per_step)))


def write_one(r: Recipe, path: Path) -> Timeline:
    """One process that holds all GPUs: one file."""
    timeline = simulate(r)
    with path.open("wb") as out:
        for rank in range(r.gpus):
            for plane in _rank_planes(timeline, rank, rank, 0):
                out.write(plane)
        out.write(_metadata_plane(r))
        out.write(_task_plane(_EPOCH_NS, timeline.span))
        out.write(block(4, "host0"))
    return timeline


def write_ranks(r: Recipe, folder: Path, gpus_per_host: int = 8) -> tuple[Timeline, list[Path]]:
    """One process per GPU: a file for each rank, each on its own clock."""
    timeline = simulate(r)
    paths = []
    for rank in range(r.gpus):
        host, local = f"host{rank // gpus_per_host}", rank % gpus_per_host
        began = -(r.gpus - rank) * r.start_skew_us * US  # all had begun before the first step
        error = r.clock_error_us.get(rank, 0)
        paths.append(folder / f"{host}.proc{local}.xplane.pb")
        with paths[-1].open("wb") as out:
            for plane in _rank_planes(timeline, rank, 0, began):
                out.write(plane)
            out.write(_metadata_plane(r, rank))
            out.write(_task_plane(_EPOCH_NS + began // 1000 + error * 1000, timeline.span - began))
            out.write(block(4, host))
    return timeline, paths


def _hidden(r: Recipe) -> int:
    return int(r.overlap * r.transfer_us * US)


def _work(r: Recipe, rank: int) -> np.ndarray:
    """How long each kernel of a rank takes: block x kernel."""
    shape = (r.steps * len(r.plan), r.kernels)
    noise = np.random.default_rng([r.seed, rank]).random(shape) if r.jitter else np.zeros(shape)
    factor = r.slow.get(rank, 1.0)
    return np.rint(r.kernel_us * US * factor * (1 + r.jitter * noise)).astype(np.int64)


class _Names:
    """Interned strings of a plane: an id for each text."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __getitem__(self, text: str) -> int:
        return self.ids.setdefault(text, _FIRST_REF + len(self.ids))

    def stat(self, name: str, text: str) -> bytes:
        """A stat field of an event that refers to an interned text."""
        return block(4, number(1, _ID[name]) + number(7, self[text]))


def _rank_planes(t: Timeline, rank: int, ordinal: int, began: int) -> Iterator[bytes]:
    """The device plane of a rank, then its launches on the host."""
    r = t.recipe
    plan, n = r.plan, t.begin.shape[1]
    names = _Names()
    kernels, ops, stats = _vocabulary(r, names)
    work = _work(r, rank)
    start = (t.begin[rank][:, None] + np.cumsum(work, axis=1) - work).ravel()
    which = (np.arange(n) % len(plan))[:, None] * (r.kernels + 1)
    compute = (which + np.arange(r.kernels)).ravel()
    comm = which.ravel() + r.kernels
    copy_start = t.begin[rank][:: len(plan)] - r.copy_us * US
    copies = np.full(r.steps, len(ops))
    streams = [
        ("Stream #14(Compute)", start, work.ravel(), compute),
        ("Stream #20(Compute)", t.arrive[rank], t.leave[rank] - t.arrive[rank], comm),
        ("Stream #16(MemcpyH2D)", copy_start, np.full(r.steps, r.copy_us * US), copies),
    ]
    metadata = [*kernels, "MemcpyH2D"]
    size = block(4, number(1, _ID["memcpy_details"]) + block(5, "kind_src:pinned kind_dst:device size:1048576"))
    stats = [*stats, size]
    factor = 1 + r.drift_ppm.get(rank, 0.0) * 1e-6
    # The profiler counts from the beginning of its own file, on its own clock.
    clock = (lambda x: x - began) if factor == 1 else (lambda x: np.rint((x - began) * factor).astype(np.int64))
    lines, launches, correlation = [], [], 1 + ordinal * (start.size + n + r.steps)  # unique in a process
    for i, (title, begin, length, op) in enumerate(streams):
        ids = np.arange(correlation, correlation + len(begin))
        correlation += len(begin)
        events = _events(op + 1, clock(begin), clock(begin + length) - clock(begin), ids, stats, op)
        lines.append(block(3, number(1, 10 + i) + block(2, title) + events))
        lead = np.full(len(begin), _LEAD)
        if i == 2:
            lead[:] = _LATE_LEAD
        launches.append((clock(np.maximum(begin - lead, began)), ids))
    body = number(1, ordinal + 1) + block(2, f"/device:GPU:{ordinal}") + b"".join(lines)
    body += b"".join(_event_name(i + 1, name) for i, name in enumerate(metadata)) + _stat_names(names) + _facts()
    yield block(1, body)
    if r.launches or r.markers:
        yield _host_plane(t, rank, began, launches if r.launches else [], clock)


def _vocabulary(r: Recipe, names: _Names) -> tuple[list[str], list[str], list[bytes]]:
    """For each kernel of a step: its name, its HLO instruction, its constant stats."""
    kernels, ops, stats = [], [], []
    device = {"all-gather": "AllGather_RING_LL", "reduce-scatter": "ReduceScatter_Sum_bf16_RING_LL"}
    for number_of_block, (kind, layer) in enumerate(r.plan):
        phase = "jvp()" if kind == "all-gather" else "transpose(jvp())"
        scope = f"jit(train_step)/{phase}/layers_{layer}"
        for j in range(r.kernels):
            gemm = j % 3 == 0
            unique = number_of_block * r.kernels + j
            ops.append(f"custom-call.{unique}" if gemm else f"loop_add_fusion.{unique}")
            kernels.append(f"nvjet_tst_128x{64 * (j + 1)}_h_bz_NNT" if gemm else f"loop_add_fusion_{j}")
            part = "attention" if j < r.kernels // 2 else "mlp"
            stats.append(_constant(names, f"{scope}/{part}/{'dot_general' if gemm else 'add'}", ops[-1]))
        ops.append(f"{kind}-start.{layer}")
        kernels.append(
            f"ncclDevKernel_{device.get(kind, 'AllReduce_Sum_f32_RING_LL')}(ncclDevKernelArgsStorage<4096ul>)"
        )
        stats.append(_constant(names, f"{scope}/{kind.replace('-', '_')}", ops[-1]))
    return kernels, ops, stats


def _constant(names: _Names, path: str, op: str) -> bytes:
    return (
        names.stat("kernel_details", _DETAILS)
        + names.stat("name", path)
        + names.stat("hlo_op", op)
        + names.stat("hlo_module", _MODULE)
        + block(4, number(1, _ID["program_id"]) + number(4, _PROGRAM))
    )


def _events(
    metadata: np.ndarray, begin: np.ndarray, length: np.ndarray, ids: np.ndarray, stats: list[bytes], which: np.ndarray
) -> bytes:
    """The events of a line, each with its correlation id and the constant stats of its kind."""
    parts = []
    for i in range(0, len(begin), _ROWS):
        cut = slice(i, i + _ROWS)
        rows = len(begin[cut])
        key = number(1, _ID["correlation_id"]) + b"\x18"
        correlation = joined(same(key, rows), varints(ids[cut]))
        row = joined(
            same(b"\x08", rows), varints(metadata[cut]),
            same(b"\x10", rows), varints(begin[cut]),
            same(b"\x18", rows), varints(length[cut]),
            same(b"\x22", rows), varints(correlation.lengths), correlation,
            _chosen(stats, which[cut]),
        )  # fmt: skip
        parts.append(blocks(4, row))
    return b"".join(parts)


def _chosen(texts: Sequence[bytes], index: np.ndarray) -> Ragged:
    """In each row one of a few texts."""
    pool = b"".join(texts[i] for i in index.tolist())
    return Ragged(np.frombuffer(pool, np.uint8), np.array([len(text) for text in texts], np.int64)[index])


def _host_plane(
    t: Timeline, rank: int, began: int, launches: list[tuple[np.ndarray, np.ndarray]], clock: Callable
) -> bytes:
    """The launching threads of a rank, and the main thread with the step markers."""
    lines = []
    for i, (begin, ids) in enumerate(launches):
        rows = len(begin)
        events = _events(np.ones(rows, np.int64), begin, np.full(rows, _LAUNCH), ids, [b""], np.zeros(rows, np.int64))
        lines.append(block(3, number(1, 100 * rank + i) + block(2, f"tsl_launch/{100 * rank + i}") + events))
    r = t.recipe
    if r.markers:
        plan = len(r.plan)
        ends = t.leave[rank][plan - 1 :: plan]
        begins = np.maximum(t.begin[rank][::plan] - r.copy_us * US - _LEAD - 5 * US, began)
        marks = b"".join(
            block(4, number(1, 2) + number(2, int(clock(b))) + number(3, int(clock(e) - clock(b))) + _step_stat(i))
            for i, (b, e) in enumerate(zip(begins, ends, strict=True))
        )
        lines.append(block(3, number(1, 100 * rank + 99) + block(2, "python") + marks))
    names = _event_name(1, "cuLaunchKernelEx") + _event_name(2, "train")
    return block(1, number(1, 500 + rank) + block(2, "/host:CPU") + b"".join(lines) + names + _stat_names(_Names()))


def _step_stat(step: int) -> bytes:
    return block(4, number(1, _ID["step_num"]) + number(4, step))


def _event_name(identifier: int, name: str) -> bytes:
    return block(4, number(1, identifier) + block(2, number(1, identifier) + block(2, name)))


def _stat_names(names: _Names) -> bytes:
    every = {**_ID, **names.ids}
    return b"".join(block(5, number(1, i) + block(2, number(1, i) + block(2, name))) for name, i in every.items())


def _facts() -> bytes:
    """What a device plane says about its GPU."""
    numbers = {"core_count": 132, "clock_rate": 1980000, "memory_bandwidth": 4_800_000_000_000}
    numbers |= {"memory_size": 150_000_000_000, "compute_cap_major": 9, "compute_cap_minor": 0}
    vendor = block(6, number(1, _ID["device_vendor"]) + block(5, "Nvidia"))
    return vendor + b"".join(block(6, number(1, _ID[k]) + number(3, v)) for k, v in numbers.items())


def _task_plane(start_ns: int, span: int) -> bytes:
    stats = block(6, number(1, _ID["profile_start_time"]) + number(3, start_ns))
    stats += block(6, number(1, _ID["profile_stop_time"]) + number(3, start_ns + span // 1000))
    return block(1, number(1, 900) + block(2, "Task Environment") + stats + _stat_names(_Names()))


def _metadata_plane(r: Recipe, process: int = 0) -> bytes:
    """The program of the step, as XLA leaves it in every trace."""
    hlo = block(5, number(1, _ID["Hlo Proto"]) + block(6, program(r)))
    entry = block(4, number(1, 1) + block(2, number(1, 1) + block(2, f"{_MODULE}({_PROGRAM})") + hlo))
    stats = block(6, number(1, _ID["process_id"]) + number(4, process))
    return block(1, number(1, 901) + block(2, "/host:metadata") + entry + _stat_names(_Names()) + stats)


def program(r: Recipe) -> bytes:
    """The HloProto of the step: kernels and collectives in the order they run, as XLA writes each kind."""
    rows, inner = [], []
    _, ops, _ = _vocabulary(r, _Names())
    for i, op in enumerate(ops, 1):
        kind = op.rsplit("-start", 1)[0]
        if kind == op:
            opcode = "custom-call" if op.startswith("custom") else "fusion"
            rows.append(_instruction(op, opcode, i, _shape(1024 * 1024)))
            continue
        size = r.gpus if kind == "all-reduce" or not r.group else r.group
        full, part = _shape(r.bytes // 4), _shape(r.bytes // 4 // size)
        before, after = {"all-gather": (part, full), "reduce-scatter": (full, part)}.get(kind, (full, full))
        operand, done = 10_000 + i, 20_000 + i
        groups = block(92, number(1, r.gpus // size) + number(2, size) + number(3, r.gpus))
        rows.append(_instruction(f"param.{i}", "parameter", operand, before))
        if kind == "reduce-scatter":  # one of those that have no start of their own: wrapped in a computation
            wrapped = _instruction(f"param.{i}.in", "parameter", 40_000 + i, before)
            wrapped += _instruction(f"reduce-scatter.{i}", kind, 30_000 + i, after, [40_000 + i], groups)
            inner.append(
                block(3, block(1, f"async_computation.{i}") + wrapped + number(5, i + 1) + number(6, 30_000 + i))
            )
            shape = number(2, 13) + block(4, number(2, 13) + block(4, before)) + block(4, after)
            rows.append(_instruction(op, "async-start", i, shape, [operand], number(38, i + 1)))
            rows.append(_instruction(op.replace("start", "done"), "async-done", done, after, [i], number(38, i + 1)))
        else:
            shape = number(2, 13) + block(4, before) + block(4, after) if kind == "all-gather" else full
            rows.append(_instruction(op, f"{kind}-start", i, shape, [operand], groups))
            rows.append(_instruction(op.replace("start", "done"), f"{kind}-done", done, after, [i]))
    entry = block(3, block(1, "main") + b"".join(rows) + number(5, 1))
    return block(1, block(1, _MODULE) + block(2, "main") + b"".join(inner) + entry + number(5, _PROGRAM) + number(6, 1))


def _instruction(
    name: str, opcode: str, identifier: int, shape: bytes, operands: Sequence[int] = (), extra: bytes = b""
) -> bytes:
    body = block(1, name) + block(2, opcode) + block(3, shape) + number(35, identifier)
    return block(2, body + b"".join(number(36, o) for o in operands) + extra)


def _shape(elements: int) -> bytes:
    return number(2, 11) + number(3, elements)  # 11: f32
