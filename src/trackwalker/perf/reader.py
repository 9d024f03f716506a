"""Opens a trace, whoever wrote it: the file's content decides, not its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from trackwalker.perf.chrome import ChromeJson, looks_like_json
from trackwalker.perf.jax_json import JaxJsonFile, written_by_jax
from trackwalker.perf.kineto import KinetoFile
from trackwalker.perf.model import Allocations, Device, HostThread, Trace
from trackwalker.perf.wire import Source
from trackwalker.perf.xplane import TraceFile, completeness


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
