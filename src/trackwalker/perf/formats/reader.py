"""Opens a trace, whoever wrote it: the file's content decides, not its name."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trackwalker.perf.formats.chrome import ChromeJson, Event, columns_of, looks_like_json
from trackwalker.perf.formats.kineto import KinetoFile
from trackwalker.perf.formats.model import (
    NONE,
    PS_PER_S,
    PS_PER_US,
    Allocations,
    Device,
    Gap,
    HostEvents,
    HostThread,
    Kernels,
    Strings,
    Trace,
)
from trackwalker.perf.formats.wire import Source
from trackwalker.perf.formats.xplane import AROUND, RUN, TraceFile, completeness

# The JSON that JAX writes beside its xplane file, for when nothing better is left: cut to a million events.
_LONGEST = 10 * 86_400 * PS_PER_S  # later times are damage, and would not add up
CAP = 1_000_000  # events that JAX writes at most: the first by time
_DEVICE = re.compile(r"/device:GPU:(\d+)")
_OURS = re.compile(rb'"name"\s*:\s*"/(?:host|device):')
_SIZE = re.compile(r"\b(?:size|num_bytes):(\d+)")
_KERNEL_COLUMNS = ("start", "end", "correlation", "bytes", "stream", "name", "op", "module", "path", "details")
_HOST_COLUMNS = ("start", "end", "correlation", "step", "name", "op")


def written_by_jax(text: ChromeJson) -> bool:
    """Whether JAX wrote this JSON: PyTorch's says a schema version and no such processes."""
    metadata = text.head.get("metadata")
    marked = isinstance(metadata, dict) and "highres-ticks" in metadata
    return marked or ("schemaVersion" not in text.head and text.begins_with(_OURS))


class JaxJsonFile:
    """Devices and threads as the xplane file has them, of what the JSON still holds; it has no date."""

    def __init__(self, path: Path, text: ChromeJson) -> None:
        self.trace = Trace(path, Strings())
        self._text = text
        self._processes: dict[int, str] = {}
        self._names: dict[tuple[int, int], str] = {}
        self._gpus: dict[int, array[int]] = {}
        self._cpus: dict[int, array[int]] = {}
        self._threads: dict[tuple[int, int], array[int]] = {}
        self._read = False

    def devices(self) -> Iterator[Device]:
        """The GPUs that ran something."""
        self._load()
        for number, values in sorted(self._gpus.items()):
            streams = {tid: name for (pid, tid), name in self._names.items() if self._gpu(pid) == number}
            yield Device(number, f"/device:GPU:{number}", "gpu", self._kernels(values), streams)

    def threads(self) -> Iterator[HostThread]:
        """The host's threads."""
        self._load()
        for key, values in sorted(self._threads.items()):
            columns = columns_of(values, _HOST_COLUMNS)
            events = HostEvents.of(len(columns["start"]), **columns)
            order = np.lexsort((-events.end, events.start))
            yield HostThread(key[1], self._names.get(key, ""), events.take(order))

    def cpu_devices(self) -> list[Device]:
        """CPU devices, whose ops run on host threads."""
        self._load()
        return [Device(i, f"/device:CPU:{i}", "cpu", self._kernels(values)) for i, values in sorted(self._cpus.items())]

    def allocations(self) -> Allocations:
        """None: they are in the xplane file only."""
        return Allocations.empty()

    def _load(self) -> None:
        if self._read:
            return
        self._read = True
        spans = 0
        for events in self._text.batches():
            for event in events:
                try:
                    spans += self._add(event)
                except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
                    continue  # JAX ends its list with an empty event
        self.trace.gaps += self._text.gaps
        advice = "give the *.xplane.pb that lies beside it"
        if spans >= CAP:
            why = f"it holds exactly {CAP:,} events: JAX cuts this file there" if spans == CAP else f"{spans:,} events"
            self.trace.gaps.append(Gap("the end of the trace", why, advice))
        why = "this is the JSON that JAX writes beside its xplane file: no programs, no memory, no date"
        self.trace.gaps.append(Gap("the whole trace", why, advice))

    def _add(self, event: Event) -> int:
        """Take one event in; 1 when it is a span of time."""
        if event.get("ph") == "M":
            if event["name"] == "process_name":
                self._processes[int(event["pid"])] = str(event["args"]["name"])
            elif event["name"] == "thread_name":
                self._names[int(event["pid"]), int(event["tid"])] = str(event["args"]["name"])
        if event.get("ph") != "X":
            return 0
        args = event.get("args") or {}
        start = round(event["ts"] * PS_PER_US)
        end = start + round(event.get("dur", 0) * PS_PER_US)
        if not 0 <= start <= end < _LONGEST:
            return 0
        key = int(event["pid"]), int(event["tid"])
        gpu = self._gpu(key[0])
        if gpu is not None:
            if self._names.get(key, "").startswith("Stream #"):  # other lines repeat the same time by other names
                self._gpus.setdefault(gpu, array("q")).extend(array("q", self._kernel(event, args, start, end)))
            return 1
        if "device_ordinal" in args and not AROUND.fullmatch(str(args.get("hlo_op", "call"))):
            ordinal = int(args["device_ordinal"])
            self._cpus.setdefault(ordinal, array("q")).extend(array("q", self._kernel(event, args, start, end)))
        strings = self.trace.strings
        values = (
            start, end, _launch(args), _number(args.get("step_num")), strings.add(str(event["name"])),
            strings.add(str(args.get("hlo_op", ""))),
        )  # fmt: skip
        self._threads.setdefault(key, array("q")).extend(array("q", values))
        return 1

    def _gpu(self, process: int) -> int | None:
        found = _DEVICE.search(self._processes.get(process, ""))
        return int(found[1]) if found else None

    def _kernel(self, event: Event, args: dict[str, Any], start: int, end: int) -> tuple[int, ...]:
        add = self.trace.strings.add
        details = str(args.get("kernel_details") or args.get("memcpy_details") or args.get("memset_details") or "")
        size = _SIZE.search(details)
        return (
            start, end, _launch(args), int(size[1]) if size else NONE, int(event["tid"]) & 0x7FFFFFFF,
            add(str(event["name"]).removesuffix(".kd")), add(str(args.get("hlo_op", ""))),
            add(str(args.get("hlo_module", ""))), add(str(args.get("name") or args.get("tf_op") or "")), add(details),
        )  # fmt: skip

    def _kernels(self, values: array[int]) -> Kernels:
        columns = columns_of(values, _KERNEL_COLUMNS)
        made = Kernels.of(len(columns["start"]), **columns)
        return made.take(np.lexsort((made.end, made.start)))


def _launch(args: dict[str, Any]) -> int:
    """What joins a kernel with its launch: CUPTI's number, or on CPUs the number of the run."""
    own = _number(args.get("correlation_id"))
    run = _number(args.get("run_id"))
    return own if own > 0 else run & (RUN - 1) | RUN if run > 0 else NONE


def _number(value: Any) -> int:
    """Arguments are texts in this file."""
    text = str(value)
    return int(text) if text.isdigit() and len(text) < 19 else NONE


class Reader(Protocol):
    """A trace file whose parts are read one at a time; `threads` come before `cpu_devices` and `allocations`."""

    trace: Trace

    def devices(self) -> Iterator[Device]:
        """The accelerators that ran something."""

    def threads(self) -> Iterator[HostThread]:
        """The host's threads."""

    def cpu_devices(self) -> list[Device]:
        """CPU devices, whose ops run on host threads."""

    def allocations(self) -> Allocations:
        """What the device allocator reported."""


def open_trace(path: Path) -> Reader:
    """The reader for a file: JAX's xplane, PyTorch's Kineto JSON, or the JSON that JAX writes beside its xplane."""
    source = Source(path)
    if not looks_like_json(source):
        return TraceFile(path, source)
    text = ChromeJson(source, path.name)
    return JaxJsonFile(path, text) if written_by_jax(text) else KinetoFile(path, text)


def read_trace(path: Path) -> Trace:
    """Everything of one trace file that the analyses use; what cannot be read becomes a gap."""
    file = open_trace(path)
    trace = file.trace
    trace.devices = list(file.devices())
    trace.threads = list(file.threads())
    trace.devices = trace.devices or file.cpu_devices()
    trace.memory = file.allocations()
    trace.gaps += completeness(trace)
    return trace
