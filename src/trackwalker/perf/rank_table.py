"""What travels from a rank's trace to the place where ranks are compared: kilobytes of a gigabyte."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trackwalker.perf.calls import Calls
from trackwalker.perf.collectives import Collective
from trackwalker.perf.model import Buckets, Gap, Step


@dataclass
class KernelSum:
    """All executions of one kernel name on one device."""

    name: str
    kind: str  # its class
    count: int
    ps: int


@dataclass
class RankTable:
    """One device of one trace file, reduced: steps, buckets, collectives, the kernels that cost most."""

    path: str  # of the trace file
    host: str
    pid: int | None
    device: int
    kind: str  # "gpu", "cpu"
    origin_ns: int | None  # of the file's clock
    steps: list[Step]
    buckets: list[Buckets]  # of each step
    ops: list[str]  # names of the collectives
    calls: Calls
    kernels: list[KernelSum]
    planned: dict[str, Collective] = field(default_factory=dict)  # by name, where the trace carries the program
    participants: tuple[int, ...] = ()  # global devices of the program, in its own order
    module: str = ""
    gaps: list[Gap] = field(default_factory=list)

    @property
    def label(self) -> str:
        """How a person finds it: the name of the file is the host's, with the process where there are several."""
        stem = Path(self.path).name.removesuffix(".gz")
        for ending in (".pb", ".json", ".xplane", ".trace", ".pt"):
            stem = stem.removesuffix(ending)
        return f"{stem} {self.kind} {self.device}"
