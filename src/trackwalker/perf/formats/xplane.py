"""A JAX trace (*.xplane.pb, gzip or not) as a Trace: devices, host threads, programs, allocations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trackwalker.perf.formats.events import Events, Lookup, Wanted, read_events
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
from trackwalker.perf.formats.planes import Contents, Line, Plane, read_contents
from trackwalker.perf.formats.wire import CutError, Source

_DEVICE = re.compile(r"/device:GPU:(\d+)")
_HOST = "/host:CPU"
_STREAM = "Stream #"  # lines of other names on a device plane repeat the same time by other names
_PROGRAM = re.compile(r"(.*)\((\d+)\)")  # of a program: module(program_id)
_SIZE = re.compile(r"\b(?:size|num_bytes):(\d+)")
_COLLECTOR_LIMIT = 4_194_304  # events per process that the ROCm tracer keeps by default
_ABSOLUTE_NS = 10**15  # a line that starts later than this counts from 1970, not from the start of the profile
_MEMORY = ("bytes_allocated", "bytes_available", "peak_bytes_in_use")
_DEVICE_NUMBERS = ("correlation_id", "program_id", "cuda_graph_id")
_HOST_NUMBERS = ("correlation_id", "step_num", "program_id", "device_ordinal", "run_id", *_MEMORY)
_DETAILS = ("kernel_details", "memcpy_details", "memset_details", "Memset_details")
_DEVICE_NAMES = ("hlo_op", "hlo_module", "name", "tf_op", *_DETAILS)
_HOST_NAMES = ("hlo_op", "hlo_module", "allocator_name")


# Which call of the host started each run of a program on CPU devices: launches for traces that have no CUPTI.
AROUND = re.compile(r"(while|conditional|call)(\.\d+)?")  # operations that only contain others
RUN = 1 << 40  # added to a run's number, so that it is nobody else's correlation number
_CALL = 1 << 60  # added to the time of a call that does not say its run
_ONE_DEVICE = "::ExecuteHelper"  # how the call is named in a process with one device: it says no number


class CpuRuns:
    """Collects the calls thread by thread; afterwards the operations of each run find theirs."""

    def __init__(self) -> None:
        self._calls: list[Int64] = []
        self._numbered = False

    def correlations(self, stats: dict[str, Int64], name: Int64, start: Int64, calls: list[int]) -> Int64:
        """The correlation numbers of a thread's events, with those of runs filled in; `calls` are names of calls."""
        given = stats["correlation_id"]
        numbered = stats["run_id"] != NONE
        if numbered.any():
            operation = (stats["device_ordinal"] >= 0) & (stats["hlo_op"] >= 0)
            call = (stats["device_ordinal"] < 0) & (given <= 0)
            self._numbered |= bool((call & numbered).any())
            # In a job of several processes the number is a hash of 64 bits.
            given = np.where(numbered & (call | operation), stats["run_id"] & (RUN - 1) | RUN, given)
        unnumbered = np.isin(name, calls) & (given <= 0)
        self._calls.append(start[unnumbered])
        return np.where(unnumbered, start + _CALL, given)

    def joined(self, kernels: Kernels) -> Int64:
        """The correlation numbers of one device's operations; where calls have no number their order tells."""
        calls = np.sort(np.concatenate(self._calls)) if self._calls else np.zeros(0, np.int64)
        runs, index = np.unique(kernels.correlation, return_inverse=True)
        if self._numbered or len(runs) != len(calls) or (runs == NONE).any():
            return kernels.correlation
        begun = np.full(len(runs), np.iinfo(np.int64).max)
        np.minimum.at(begun, index, kernels.start)
        place = np.empty(len(runs), np.int64)
        place[np.argsort(begun, kind="stable")] = np.arange(len(runs))
        return (calls + _CALL)[place][index]


def call_names(names: Strings) -> list[int]:
    """The names that such calls have."""
    return [number for number, name in enumerate(names.names()) if _ONE_DEVICE in name]


class TraceFile:
    """A trace whose parts are read one at a time, so that memory follows the largest plane and not the file."""

    def __init__(self, path: Path, source: Source | None = None) -> None:
        self.source = source or Source(path)
        self.contents = read_contents(self.source, path.name)
        self.trace = _frame(path, self.contents, self.source.gaps)
        self._base_ns = _clock(self.trace, self.contents)
        self._cpu: list[tuple[Int64, Kernels]] = []
        self._runs = CpuRuns()
        self._on_cpu = not any(_DEVICE.fullmatch(plane.name) for plane in self.contents.planes)
        self._memory: list[Allocations] = []
        self._threads: list[str] = []

    def devices(self) -> Iterator[Device]:
        """The GPUs that ran something, one by one."""
        for plane in self.contents.planes:
            if found := _DEVICE.fullmatch(plane.name):
                device = self._device(plane, int(found[1]))
                if plane.cut and (device.kernels.name < 0).any():
                    # The names come after the events: without them nobody can say what ran.
                    why = "the file breaks off before its kernels' names"
                    self.trace.gaps.append(Gap(f"all of {plane.name}", why, "copy the trace again"))
                elif len(device.kernels):
                    yield device

    def threads(self) -> Iterator[HostThread]:
        """The host's threads, one by one; allocations and the ops of CPU devices are put aside on the way."""
        self._cpu, self._memory, self._threads, self._runs = [], [], [], CpuRuns()
        for plane in self.contents.planes:
            if plane.name == _HOST:
                wanted = Wanted.of(plane.stat_names, _HOST_NUMBERS, _HOST_NAMES, self.trace.strings)
                names = _names(plane, self.trace.strings)
                calls = call_names(self.trace.strings)
                for line in plane.lines:
                    events = self._events(plane, line, wanted)
                    table = HostEvents.concat([self._host(e, line, names, calls) for e in events])
                    self._threads.append(line.name)
                    # A call starts no earlier than its caller: of two that start together the longer is the caller.
                    in_order = (table.start[1:] > table.start[:-1]).all()
                    order = slice(None) if in_order else np.lexsort((-table.end, table.start))
                    yield HostThread(line.id, line.name, table.take(order))

    def cpu_devices(self) -> list[Device]:
        """The devices of a CPU trace, whose ops run on host threads; `threads` must have been read."""
        if not self._cpu:
            return []
        ordinal = np.concatenate([ordinals for ordinals, _ in self._cpu])
        kernels = Kernels.concat([kernels for _, kernels in self._cpu])
        names = self.trace.strings
        around = [bool(AROUND.fullmatch(names[int(op)])) for op in np.unique(kernels.op)]
        inner = ~np.isin(kernels.op, np.unique(kernels.op)[around])
        ordinal, kernels = ordinal[inner], kernels.take(inner)
        streams = dict(enumerate(self._threads))
        if len(np.unique(ordinal)) == 1:
            kernels.correlation = self._runs.joined(kernels)
        return [
            Device(int(i), f"/device:CPU:{i}", "cpu", _by_start(kernels.take(ordinal == i)), streams)
            for i in np.unique(ordinal)
        ]

    def allocations(self) -> Allocations:
        """What the device allocator reported; `threads` must have been read."""
        table = Allocations.concat(self._memory)
        return table.take(np.argsort(table.time, kind="stable"))

    def _events(self, plane: Plane, line: Line, wanted: Wanted) -> Iterator[Events]:
        try:
            yield from read_events(self.source, line.start, line.end, wanted)
        except CutError as error:
            if not plane.cut:  # the cut itself is told once, for the file
                self.trace.gaps.append(Gap(f"part of {line.name}", f"damaged: {error}", "copy the trace again"))

    def _device(self, plane: Plane, ordinal: int) -> Device:
        wanted = Wanted.of(plane.stat_names, _DEVICE_NUMBERS, _DEVICE_NAMES, self.trace.strings)
        names = _names(plane, self.trace.strings)
        streams = [line for line in plane.lines if line.name.startswith(_STREAM)]
        tables = [self._kernels(e, line, names) for line in streams for e in self._events(plane, line, wanted)]
        kernels = _by_start(Kernels.concat(tables))
        kernels.bytes = _sizes(kernels, self.trace.strings)
        vendor = str(plane.stats.get("device_vendor", ""))
        return Device(ordinal, plane.name, "gpu", kernels, {_number(s): s.name for s in streams}, vendor, plane.stats)

    def _kernels(self, events: Events, line: Line, names: Lookup) -> Kernels:
        start, stats = self._start(events, line), events.stats
        return Kernels.of(
            len(events), start=start, end=start + events.duration, stream=_number(line), name=names(events.metadata),
            op=stats["hlo_op"], module=stats["hlo_module"], path=_either(stats, ("name", "tf_op")),
            details=_either(stats, _DETAILS), correlation=stats["correlation_id"], program=stats["program_id"],
            graph=stats["cuda_graph_id"],
        )  # fmt: skip

    def _host(self, events: Events, line: Line, names: Lookup, calls: list[int]) -> HostEvents:
        start, stats, name = self._start(events, line), events.stats, names(events.metadata)
        reported = np.flatnonzero(stats["bytes_allocated"] >= 0)
        if len(reported):
            self._memory.append(
                Allocations.of(
                    len(reported), time=start[reported],
                    allocated=stats["bytes_allocated"][reported], available=stats["bytes_available"][reported],
                    peak=stats["peak_bytes_in_use"][reported], allocator=stats["allocator_name"][reported],
                )
            )  # fmt: skip
        ops = np.flatnonzero((stats["device_ordinal"] >= 0) & (stats["hlo_op"] >= 0))
        launched = stats["correlation_id"]
        if self._on_cpu:
            launched = self._runs.correlations(stats, name, start, calls)
        if len(ops):
            kernels = Kernels.of(
                len(ops), start=start[ops], end=(start + events.duration)[ops], stream=len(self._threads),
                name=name[ops], op=stats["hlo_op"][ops], module=stats["hlo_module"][ops],
                program=stats["program_id"][ops], correlation=launched[ops],
            )  # fmt: skip
            self._cpu.append((stats["device_ordinal"][ops], kernels))
        return HostEvents.of(
            len(events), start=start, end=start + events.duration, name=name, op=stats["hlo_op"],
            step=stats["step_num"], correlation=launched,
        )  # fmt: skip

    def _start(self, events: Events, line: Line) -> Int64:
        return events.offset + (line.timestamp_ns - self._base_ns) * PS_PER_NS


def _frame(path: Path, contents: Contents, gaps: list[Gap]) -> Trace:
    """A trace without its events: who wrote it, when, and the programs it carries."""
    trace = Trace(path, Strings(), hostname=next(iter(contents.hostnames), ""), gaps=list(gaps))
    for plane in contents.planes:
        origin, stop = plane.stats.get("profile_start_time"), plane.stats.get("profile_stop_time")
        if isinstance(origin, int):
            trace.origin_ns = origin
        if isinstance(stop, int):
            trace.stop_ns = stop
        trace.versions |= {k: str(v) for k, v in plane.stats.items() if k in ("jax_version", "jaxlib_version")}
        for key, (name, proto) in plane.programs.items():
            found = _PROGRAM.fullmatch(name)
            number = int(found[2]) if found else key
            number -= 1 << 64 if number >> 63 else 0  # as the column of program ids has it
            trace.programs[number] = proto
            trace.program_names[number] = found[1] if found else name
    if contents.cut:
        why = f"{path.name} breaks off {contents.cut}"
        trace.gaps.append(Gap("the end of the trace", why, "copy it again, or let the profiler finish writing"))
    trace.gaps += [Gap("completeness of the trace", f"the profiler said: {m}") for m in contents.errors]
    trace.gaps += [Gap("completeness of the trace", f"the profiler warned: {m}") for m in contents.warnings]
    return trace


def _clock(trace: Trace, contents: Contents) -> int:
    """What to subtract from a line's timestamp: nothing, unless its clock counts from 1970."""
    starts = [line.timestamp_ns for plane in contents.planes for line in plane.lines if line.start < line.end]
    if not starts or min(starts) < _ABSOLUTE_NS:
        return 0
    if trace.origin_ns is None:
        trace.origin_ns = min(starts)
    return trace.origin_ns


def completeness(trace: Trace) -> list[Gap]:
    """What a trace cannot show because of how it was recorded."""
    if not trace.devices:
        why = f"{trace.path.name} has no device plane with a kernel in it"
        return [Gap("the device's timeline", why, "trace a step that runs on the device, with device tracing on")]
    events = sum(len(device.kernels) for device in trace.devices)
    if trace.devices[0].vendor == "AMD" and events >= 0.99 * _COLLECTOR_LIMIT:
        why = f"{events} device events: the ROCm tracer stops at about {_COLLECTOR_LIMIT} per process"
        return [Gap("completeness of the trace", why, "trace fewer steps, or raise --xla_gpu_rocm_max_trace_events")]
    return []


def _names(plane: Plane, strings: Strings) -> Lookup:
    # ROCm names the kernel's descriptor; the kernel is meant.
    return Lookup({key: strings.add(name.removesuffix(".kd")) for key, name in plane.event_names.items()})


def _number(line: Line) -> int:
    """A stream's number fits its small column even in a damaged file."""
    return line.id & 0x7FFFFFFF


def _either(stats: dict[str, Int64], columns: tuple[str, ...]) -> Int64:
    """The first of several columns that tells."""
    told = stats[columns[0]]
    for column in columns[1:]:
        told = np.where(told >= 0, told, stats[column])
    return told


def _by_start(kernels: Kernels) -> Kernels:
    order = np.argsort(kernels.start, kind="stable")
    start = kernels.start[order]
    if (start[1:] == start[:-1]).any():
        order = np.lexsort((kernels.end, kernels.start))
    return kernels.take(order)


def _sizes(kernels: Kernels, strings: Strings) -> Int64:
    """Bytes of copies and fills, from the details the trace spells out."""
    sizes = {int(key): _SIZE.search(strings[int(key)]) for key in np.unique(kernels.details) if key >= 0}
    return Lookup({key: int(found[1]) for key, found in sizes.items() if found})(kernels.details.astype(np.int64))
