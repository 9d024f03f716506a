"""What every reader of a trace produces and every analysis reads: columns of numbers, and names said once.

Times are integers, in picoseconds on the file's own clock. Names are interned: a column holds indices into
`Trace.strings`, and `NONE` (-1) says that the trace did not tell. Integer columns use the same -1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from trackwalker.perf.hlo.collectives import Collective

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

NONE = -1
PS_PER_NS = 1_000
PS_PER_US = 1_000_000
PS_PER_S = 1_000_000_000_000


@dataclass(frozen=True)
class Gap:
    """Something a report cannot say: what is missing, why, and what to do about it."""

    what: str
    why: str
    remedy: str = ""


class Strings:
    """Each distinct name once; a column of names is a column of small integers."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: list[str] = []
        self._index: dict[str, int] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> int:
        """The index of a name, new or known; an empty name is absent."""
        if not name:
            return NONE
        known = self._index.get(name)
        if known is None:
            known = self._index[name] = len(self._names)
            self._names.append(name)
        return known

    def find(self, name: str) -> int:
        """The index of a name, NONE when the trace has no such name."""
        return self._index.get(name, NONE)

    def __getitem__(self, index: int) -> str:
        return self._names[index] if index >= 0 else ""

    def __len__(self) -> int:
        return len(self._names)

    def names(self) -> list[str]:
        """All names, by index."""
        return list(self._names)


@dataclass
class Table:
    """Columns of equal length; the subclasses name them."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def take(self, rows: Any) -> Self:
        """The chosen rows: a mask, indices or a slice."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @classmethod
    def empty(cls) -> Self:
        """No rows."""
        return cls.of(0)

    @classmethod
    def of(cls, rows: int, **columns: npt.ArrayLike) -> Self:
        """A table from the columns that are known; the others say NONE in every row."""
        made = {f.name: _column(columns.pop(f.name, NONE), rows, "Int32" in str(f.type)) for f in fields(cls)}
        if columns:
            raise TypeError(f"{cls.__name__} has no column {', '.join(columns)}")
        return cls(**made)

    @classmethod
    def concat(cls, tables: list[Self]) -> Self:
        """One table below the other."""
        if not tables:
            return cls.empty()
        return cls(**{f.name: np.concatenate([getattr(t, f.name) for t in tables]) for f in fields(cls)})


def _column(values: npt.ArrayLike, rows: int, small: bool) -> npt.NDArray[Any]:
    dtype = np.int32 if small else np.int64
    if np.ndim(values) == 0:
        return np.full(rows, values, dtype)
    return np.asarray(values, dtype)


@dataclass
class Kernels(Table):
    """What ran on one device, sorted by start: kernels, copies and fills, each on one stream."""

    start: Int64
    end: Int64
    correlation: Int64  # joins a kernel with its launch on the host
    program: Int64  # program_id: key of Trace.programs
    bytes: Int64  # of a copy or a fill
    stream: Int32  # key of Device.streams
    name: Int32  # kernel name
    op: Int32  # hlo_op
    module: Int32  # hlo_module
    path: Int32  # framework op path, such as jit(train_step)/jvp(layer)/dot_general
    details: Int32  # kernel_details or memcpy_details, as the trace spells them
    graph: Int32  # CUDA graph or command buffer that launched it


@dataclass
class HostEvents(Table):
    """What one host thread did, sorted by start; nested calls are separate rows."""

    start: Int64
    end: Int64
    correlation: Int64  # a launch: joins it with its kernel
    step: Int64  # step_num of a step marker
    name: Int32
    op: Int32


@dataclass
class Allocations(Table):
    """Device allocator events, sorted by time, as the runtime reported them (bytes)."""

    time: Int64
    allocated: Int64  # in use after the event
    available: Int64
    peak: Int64  # highest in use since the process began
    allocator: Int32


@dataclass
class Device:
    """One accelerator (or one CPU device of a CPU trace) and what ran on it."""

    id: int  # the ordinal in the trace: /device:GPU:3 is 3
    name: str  # plane name
    kind: str  # "gpu", "tpu" or "cpu"
    kernels: Kernels
    streams: dict[int, str] = field(default_factory=dict)
    vendor: str = ""
    facts: dict[str, int | float | str] = field(default_factory=dict)  # stats of the plane: core_count, clock_rate, ...


@dataclass
class HostThread:
    """One thread of the traced process."""

    id: int
    name: str
    events: HostEvents


@dataclass
class Trace:
    """One trace file: one process, its devices, its host threads and the programs they ran."""

    path: Path
    strings: Strings
    devices: list[Device] = field(default_factory=list)  # only those that ran something
    threads: list[HostThread] = field(default_factory=list)
    programs: dict[int, bytes] = field(default_factory=dict)  # program_id -> HloProto
    program_names: dict[int, str] = field(default_factory=dict)  # program_id -> module name
    compiled: bool = True  # False: the framework launches op by op, and there is no program to carry
    collectives: dict[str, Collective] = field(default_factory=dict)  # by op, where the kernels say it and no program
    participants: tuple[int, ...] = ()  # ranks of the job, where the file says it and no program
    memory: Allocations = field(default_factory=Allocations.empty)
    hostname: str = ""
    origin_ns: int | None = None  # unix time of time 0; None when the file does not say
    stop_ns: int | None = None
    versions: dict[str, str] = field(default_factory=dict)  # jax_version, jaxlib_version
    gaps: list[Gap] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """One training step on one device (or on all of them); number is None when nothing in the trace counts steps."""

    number: int | None
    start: int
    end: int

    @property
    def span(self) -> int:
        """Its length in picoseconds."""
        return self.end - self.start


@dataclass(frozen=True)
class Buckets:
    """Where a step's time went on one device; all but `overlapped_comm` sum exactly to the span."""

    compute: int = 0
    exposed_comm: int = 0
    copy: int = 0
    host_gap: int = 0
    idle: int = 0
    overlapped_comm: int = 0  # communication hidden under compute: not part of the sum

    @property
    def total(self) -> int:
        """The span that the buckets divide."""
        return self.compute + self.exposed_comm + self.copy + self.host_gap + self.idle

    @property
    def busy(self) -> int:
        """Time in which the device ran anything."""
        return self.compute + self.exposed_comm + self.copy

    def __add__(self, other: Buckets) -> Buckets:
        return Buckets(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))
