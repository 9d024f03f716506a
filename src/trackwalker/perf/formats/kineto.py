"""A PyTorch trace (Kineto's Chrome JSON, gzip or not) as a Trace: the same devices, threads and launches as JAX's.

Kernels, copies and fills carry their device and stream; a correlation number joins them with the call of the CUDA or
HIP runtime that launched them. Steps are the host's `ProfilerStep#N`. A collective says its kind, size and group.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trackwalker.perf.formats.chrome import ChromeJson, Event, columns_of
from trackwalker.perf.formats.model import (
    NONE,
    PS_PER_NS,
    Allocations,
    Device,
    Gap,
    HostEvents,
    HostThread,
    Int64,
    Kernels,
    Strings,
    Trace,
)
from trackwalker.perf.formats.torch_paths import ANNOTATION, CALL, OP, PYTHON, HostRows, launch_paths
from trackwalker.perf.hlo.collectives import Collective, kind_of

# Kineto's categories, old and new; what is not listed (flows, overheads, GPU copies of annotations) tells nothing more.
_ON_DEVICE = frozenset(["kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"])
_ON_HOST = {
    "cpu_op": OP, "operator": OP, "user_annotation": ANNOTATION, "python_function": PYTHON,
    "cuda_runtime": CALL, "cuda_driver": CALL, "hip_runtime": CALL, "hip_driver": CALL, "runtime": CALL,
    "privateuse1_runtime": CALL, "privateuse1_driver": CALL,
}  # fmt: skip
_STEP = re.compile(r"ProfilerStep#(\d+)")
_EPOCH_US = 1e14  # times later than three years after their zero count from 1970
_DAY_NS = 86_400 * 10**9
_ON_GPU = 1  # how a memory event says that it is about a GPU
_DEVICE_COLUMNS = ("start", "end", "correlation", "bytes", "stream", "name", "op", "details")
_MEMORY_COLUMNS = ("time", "allocated", "available", "allocator")


# The collectives of a PyTorch trace: NCCL's and RCCL's kernels say what they move and between whom.
_BITS = re.compile(r"(?:float|int|uint|complex)(\d+)")
_SIZES = {
    "float": 4, "half": 2, "bfloat16": 2, "double": 8, "int": 4, "long": 8, "short": 2, "byte": 1, "char": 1, "bool": 1,
}  # fmt: skip
_UNNAMED = ("", "undefined")  # what a group that nobody described is called


class TorchCollectives:
    """Gives each collective a name that is the same on all ranks: kind, group and size."""

    def __init__(self) -> None:
        self._ops: dict[tuple[str, ...], int] = {}
        self._known: dict[int, Collective] = {}
        self._unknown: set[str] = set()

    def op(self, args: dict[str, Any], strings: Strings) -> int:
        """The index of the name of a kernel's collective; NONE for any other kernel."""
        called = args.get("Collective name")
        if not called:
            return NONE
        told = (
            "dtype", "In msg nelems", "Out msg nelems", "Group size", "Process Group Name",
            "Process Group Description", "Process Group Ranks",
        )  # fmt: skip
        key = (str(called), *(str(args.get(name, "")) for name in told))
        if key not in self._ops:
            self._ops[key] = self._add(*key, strings=strings)
        return self._ops[key]

    def planned(self, strings: Strings) -> dict[str, Collective]:
        """Every collective by its name."""
        return {strings[number]: made for number, made in self._known.items()}

    def gaps(self) -> list[Gap]:
        """What the sizes could not be told of."""
        if not self._unknown:
            return []
        return [Gap("bytes of some collectives", f"unknown types of numbers: {', '.join(sorted(self._unknown))}")]

    def _add(
        self, called: str, dtype: str, given: str, made: str, size: str, group: str, about: str, ranks: str,
        *, strings: Strings,
    ) -> int:  # fmt: skip
        kind = kind_of(called) or ("collective-broadcast" if "broadcast" in called else called.strip("_"))
        width = _width(dtype)
        if width is None:
            self._unknown.add(dtype)
        # As nccl-tests count: the larger of what a rank gives and what it gets.
        moved = max(_number(given), _number(made)) * (width or 0)
        members = _members(ranks, _number(size))
        label = about if about not in _UNNAMED else _shape(members) or group
        op = strings.add(f"{kind} {label} {moved} B")
        self._known[op] = Collective(
            op=strings[op], kind=kind, names=(strings[op],), asynchronous=True, runs=1, bytes=moved,
            groups=(members,) if members else (), path="", source="", recomputed=False,
        )  # fmt: skip
        return op


def _width(dtype: str) -> int | None:
    name = dtype.rpartition("::")[2].lower()
    if name in _SIZES:
        return _SIZES[name]
    found = _BITS.match(name)  # float32, and float8_e4m3fn
    bits = int(found[1]) if found else 0
    return bits // 8 if bits in (8, 16, 32, 64, 128) else 1 if name.startswith("float8") else None


def _members(ranks: str, size: int) -> tuple[int, ...]:
    """The group's ranks; a long list is printed only in part, and is filled up where its beginning has a stride."""
    listed = tuple(map(int, re.findall(r"\d+", ranks.partition("...")[0])))
    if len(listed) == size or size <= 0:
        return listed
    if len(listed) < 2:
        return ()
    stride = listed[1] - listed[0]
    filled = tuple(range(listed[0], listed[0] + stride * size, stride)) if stride > 0 else ()
    return filled if filled[: len(listed)] == listed else ()


def _shape(members: tuple[int, ...]) -> str:
    """Groups beside each other have the same shape and different names."""
    if len(members) < 2:
        return ""
    return f"{len(members)} ranks by {members[1] - members[0]}"


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


@dataclass
class _Rows:
    """What the events of a file said, as plain numbers in rows."""

    devices: dict[int, array[int]] = field(default_factory=dict)
    threads: dict[int, array[int]] = field(default_factory=dict)
    memory: array[int] = field(default_factory=lambda: array("q"))
    thread_names: dict[int, str] = field(default_factory=dict)
    odd: int = 0  # events of a known kind without the fields they must have


class KinetoFile:
    """A trace whose events are read in one go, a piece of text at a time, when the first of them is asked for."""

    def __init__(self, path: Path, text: ChromeJson) -> None:
        self._text = text
        info = text.head.get("distributedInfo")
        self._info: dict[str, Any] = info if isinstance(info, dict) else {}
        self.trace = Trace(path, Strings(), compiled=False)
        self.trace.versions = {
            key: str(value) for key, value in text.head.items() if key.endswith("_version") or key == "schemaVersion"
        }
        self._rank = _whole(self._info.get("rank"))
        if (world := _whole(self._info.get("world_size"))) > 0:
            self.trace.participants = tuple(range(world))
        self._comm = TorchCollectives()
        self._rows: _Rows | None = None
        self._zero_ns: int | None = None
        if window := text.window_us():
            self._date(*map(_ns, window))

    def devices(self) -> Iterator[Device]:
        """The GPUs that ran something, one by one."""
        rows = self._read()
        for number, values in sorted(rows.devices.items()):
            columns = columns_of(values, _DEVICE_COLUMNS)
            self._clock(columns, "start", "end")
            kernels = Kernels.of(len(columns["start"]), **columns, path=_looked_up(self._paths, columns["correlation"]))
            kernels = kernels.take(np.lexsort((kernels.end, kernels.start)))
            streams = {int(s): f"stream {int(s)}" for s in np.unique(kernels.stream)}
            facts, vendor = self._facts(number)
            # In a job of many processes every one may call its device 0: the rank tells them apart.
            known = self._rank if self._rank >= 0 and len(rows.devices) == 1 else number
            yield Device(known, f"GPU {number}", "gpu", kernels, streams, vendor, facts)

    def threads(self) -> Iterator[HostThread]:
        """The host's threads, one by one."""
        rows = self._read()
        for number, values in sorted(rows.threads.items()):
            columns = columns_of(values, HostRows.columns)
            self._clock(columns, "start", "end")
            kept = {name: columns[name] for name in ("start", "end", "correlation", "step", "name")}
            table = HostEvents.of(len(columns["start"]), **kept)
            name = rows.thread_names.get(number, f"thread {number}")
            yield HostThread(number, name, table.take(np.lexsort((-table.end, table.start))))

    def cpu_devices(self) -> list[Device]:
        """None: a trace of PyTorch on CPUs alone has no device timeline."""
        return []

    def allocations(self) -> Allocations:
        """What PyTorch's allocator reported (profile_memory=True)."""
        columns = columns_of(self._read().memory, _MEMORY_COLUMNS)
        self._clock(columns, "time")
        table = Allocations.of(len(columns["time"]), **columns)
        table = table.take(np.argsort(table.time, kind="stable"))
        table.peak = np.maximum.accumulate(table.allocated)
        return table

    def _read(self) -> _Rows:
        if self._rows is None:
            rows = self._rows = _Rows()
            for events in self._text.batches():
                for event in events:
                    try:
                        self._add(rows, event)
                    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
                        rows.odd += 1
            if rows.odd:
                self.trace.gaps.append(Gap(f"{rows.odd} events", "they lack a time, a name or a device"))
            self.trace.gaps += self._text.gaps + self._comm.gaps()
            starts = [min(values[:: len(HostRows.columns)]) for values in rows.threads.values()]
            starts += [min(values[:: len(_DEVICE_COLUMNS)]) for values in rows.devices.values()]
            stop = max((max(v[1 :: len(_DEVICE_COLUMNS)]) for v in rows.devices.values()), default=0)
            self._date(min(starts, default=0), max(stop, *starts, 0))
            self.trace.collectives = self._comm.planned(self.trace.strings)
            self._paths = launch_paths(list(map(HostRows, rows.threads.values())), self.trace.strings)
        return self._rows

    def _add(self, rows: _Rows, event: Event) -> None:
        kind, phase = str(event.get("cat", "")).lower(), event.get("ph")
        if phase == "X":
            if kind in _ON_DEVICE:
                self._add_kernel(rows, event)
            elif kind in _ON_HOST:
                self._add_call(rows, event, _ON_HOST[kind])
        elif phase == "M" and event.get("name") == "thread_name":
            rows.thread_names[int(event["tid"])] = str(event["args"]["name"])
        elif phase == "i" and event.get("name") == "[memory]":
            self._add_memory(rows, event)

    def _times(self, event: Event) -> tuple[int, int]:
        """When an event began and ended; times far from all others are damage, and would push them out of range."""
        start, span = _ns(event["ts"]), max(_ns(event.get("dur", 0)), 0)
        if self._zero_ns is None:
            self._zero_ns = start
        if abs(start - self._zero_ns) + span > _DAY_NS:
            raise ValueError("a time of another day")
        return start, start + span

    def _add_kernel(self, rows: _Rows, event: Event) -> None:
        args, strings = event.get("args") or {}, self.trace.strings
        start, end = self._times(event)
        device = int(args["device"] if "device" in args else event["pid"])
        values = (
            start, end, _whole(args.get("correlation")),
            _whole(args.get("bytes")), _whole(args.get("stream", event["tid"])) & 0x7FFFFFFF,
            strings.add(str(event["name"])), self._comm.op(args, strings), strings.add(_launch_shape(args)),
        )  # fmt: skip
        rows.devices.setdefault(device, array("q")).extend(array("q", values))

    def _add_call(self, rows: _Rows, event: Event, kind: int) -> None:
        args, name = event.get("args") or {}, str(event["name"])
        start, end = self._times(event)
        marker = _STEP.match(name) if kind == ANNOTATION else None
        correlation = _whole(args.get("correlation")) if kind == CALL else NONE
        values = (
            start, end, correlation,
            int(marker[1]) if marker else NONE, self.trace.strings.add("$" + name if kind == PYTHON else name),
            kind, _whole(args.get("Sequence number")),
        )  # fmt: skip
        rows.threads.setdefault(int(event["tid"]), array("q")).extend(array("q", values))

    def _add_memory(self, rows: _Rows, event: Event) -> None:
        args = event["args"]
        if args.get("Device Type") != _ON_GPU:
            return
        device, used = int(args["Device Id"]), int(args["Total Allocated"])
        limit = int(self._facts(device)[0].get("memory_size") or 0)
        values = (
            self._times(event)[0], used, limit - used if limit else NONE,
            self.trace.strings.add(f"GPU_{device}_torch"),
        )  # fmt: skip
        rows.memory.extend(array("q", values))

    def _facts(self, device: int) -> tuple[dict[str, int | float | str], str]:
        """What the file says about a GPU, by the names that JAX's traces use."""
        told = self._text.head.get("deviceProperties")
        for row in told if isinstance(told, list) else []:
            if isinstance(row, dict) and row.get("id") == device:
                name = str(row.get("name", ""))
                vendor = "Nvidia" if "NVIDIA" in name.upper() else "AMD" if "AMD" in name.upper() else ""
                numbers = {
                    "memory_size": row.get("totalGlobalMem"), "core_count": row.get("numSms"),
                    "compute_cap_major": row.get("computeMajor"), "compute_cap_minor": row.get("computeMinor"),
                }  # fmt: skip
                facts: dict[str, int | float | str] = {k: v for k, v in numbers.items() if isinstance(v, int)}
                return facts | ({"device_name": name} if name else {}), vendor
        return {}, ""

    def _date(self, start_ns: int, stop_ns: int) -> None:
        """Time 0 is the first event; when that was is known if the file has a base, or counts from 1970."""
        self._zero_ns = start_ns
        base = self._text.base_ns
        if base is None and start_ns > _EPOCH_US * 1000:
            base = 0
        if base is not None:
            self.trace.origin_ns, self.trace.stop_ns = base + start_ns, base + stop_ns

    def _clock(self, columns: dict[str, Int64], *names: str) -> None:
        for name in names:
            columns[name] = (columns[name] - (self._zero_ns or 0)) * PS_PER_NS


def _looked_up(paths: dict[int, int], correlation: Int64) -> Int64:
    return np.array([paths.get(number, NONE) for number in correlation.tolist()], np.int64)


def _whole(value: Any) -> int:
    """A number of an event's arguments; NONE when it is absent or something else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else NONE


def _ns(us: float) -> int:
    """Microseconds in nanoseconds; those since 1970 are too large to be multiplied as they are."""
    whole = int(us)
    return whole * 1000 + round((us - whole) * 1000)


def _launch_shape(args: dict[str, Any]) -> str:
    grid, block = args.get("grid"), args.get("block")
    if not isinstance(grid, list) or not isinstance(block, list):
        return ""
    return f"grid:{','.join(map(str, grid))} block:{','.join(map(str, block))}"
