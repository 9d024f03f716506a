"""What a log states, each fact with the line that states it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from trackwalker.logs.scanning.steps import Steps


@dataclass(frozen=True)
class Stage:
    """A launcher stage line: BEGIN, END, TIMEOUT or FAILED."""

    name: str
    what: str
    seconds: int | None
    exit: int | None
    line: int


_SIGNALS = frozenset({4, 6, 7, 8, 9, 11, 15})  # by which ranks end


@dataclass(frozen=True)
class NodeExit:
    """A node (or lane) that ended with a non-zero code."""

    rank: int | None
    host: str
    told: int
    line: int

    @property
    def code(self) -> int:
        """As a shell counts: a Python launcher that returns -9 is told as 247, and means 137."""
        signal = 256 - self.told
        return 128 + signal if signal in _SIGNALS else self.told


@dataclass(frozen=True)
class FirstFailure:
    """The rank that our agent saw fail first."""

    rank: int
    host: str
    code: int
    cause: str
    line: int


@dataclass(frozen=True)
class Summary:
    """The closing block of the log."""

    exit: int | None
    reason: str
    wall_s: int | None
    line: int


@dataclass(frozen=True)
class Quote:
    """A line worth citing."""

    rank: int | None
    line: int
    text: str


@dataclass(frozen=True)
class Memory:
    """A line of the trainer on what a device holds, in GB."""

    line: int
    used: float
    limit: float
    device: str  # its kind: rocm, cuda, cpu


@dataclass
class Heartbeat:
    """The coordination service's claim that tasks are dead, and who lived to report it."""

    accused: set[int] = field(default_factory=set)
    claim: Quote | None = None
    named: list[Quote] = field(default_factory=list)
    own_death: dict[int, Quote] = field(default_factory=dict)
    clock: tuple[int, int, int, int, float] | None = None  # month, day, hour, minute, second of the claim


_ONE_WAVE_S = 1.5  # ranks make the communicators of one mesh within a second of each other


@dataclass
class Start:
    """How the run began: what it restored, and when its lowest rank made communicators."""

    restored: Quote | None = None
    broadcast: Quote | None = None  # of what one replica restored
    rank: int | None = None  # the lowest that made any
    made: list[float | None] = field(default_factory=list)  # when it did

    @property
    def waves(self) -> int | None:
        """In how many waves communicators were made; None where the log does not tell."""
        known = sorted(t for t in self.made if t is not None)
        if len(known) < len(self.made):
            return len(self.made)
        return 1 + sum(b - a > _ONE_WAVE_S for a, b in pairwise(known)) if known else None


@dataclass
class LogFacts:
    """Everything later rooms need from a log."""

    path: Path
    size: int = 0
    lines: int = 0
    ends_mid_line: bool = False
    header: dict[str, str] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)  # index = rank
    config: dict[str, tuple[str, Quote]] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    steps: Steps = field(default_factory=Steps)
    exits: list[NodeExit] = field(default_factory=list)
    first_failure: FirstFailure | None = None
    signals: list[Quote] = field(default_factory=list)
    saves: set[int] = field(default_factory=set)
    save_lines: list[int] = field(default_factory=list)  # lines that tell of a save without naming its step
    restored: int | None = None
    planned: int | None = None  # steps, as the trainer tells at its start
    start: Start = field(default_factory=Start)
    environment: dict[str, Quote] = field(default_factory=dict)  # what reaches GPUs and network, of the lowest rank
    summary: Summary | None = None
    cancel: Quote | None = None
    cancel_time: str | None = None
    requeues: list[int] = field(default_factory=list)  # lines by which the scheduler tells that it will run again
    task_failed: Quote | None = None  # the scheduler's line on the first task that ended by itself, before any cancel
    finished: Quote | None = None  # another trainer's line that no step is left
    heartbeat: Heartbeat | None = None
    tracebacks: list[Quote] = field(default_factory=list)
    lost: list[Quote] = field(default_factory=list)  # lines behind the last step in which a rank has lost somebody
    barrier_ranks: set[int] = field(default_factory=set)
    params_ranks: set[int] = field(default_factory=set)
    compiles: list[int] = field(default_factory=list)  # lines that tell of a compilation
    evals: list[int] = field(default_factory=list)  # lines that tell of an evaluation
    profiles: list[list[int]] = field(default_factory=list)  # lines at which a profiler began and, if told, ended
    devices: dict[int, set[int]] = field(default_factory=dict)  # by rank: the GPUs of its memory banner
    mem_fraction: float | None = None  # share of GPU memory that XLA takes, as the environment dump says
    coredump_s: int = 0  # how long the launcher waited for core files
    memory: list[Memory] = field(default_factory=list)  # each line that tells of more than all before it
    compiled_gb: float | None = None  # what the compiler gives a step beside its arguments
    step_tflops: float | None = None  # of one device in one step, as the trainer counts
    attention_share: float | None = None  # of these
    peak_tflops: float | None = None  # that the trainer's own MFU is measured against

    @property
    def launched(self) -> bool:
        """A launcher of our own wrote the header: one variable that somebody had echoed is none."""
        return len(self.header) > 1

    def setting(self, name: str) -> str | None:
        """A value of the config dump."""
        found = self.config.get(name)
        return found[0] if found else None

    def number(self, name: str) -> int | None:
        """A whole number of the config dump."""
        try:
            return int(float(self.setting(name) or ""))
        except ValueError:
            return None

    def memory_before_steps(self) -> Memory | None:
        """The most that a device held before the first step: what stays on it for the whole run."""
        first = int(self.steps.line[0]) if len(self.steps) else None
        return max((m for m in self.memory if first is None or m.line < first), key=lambda m: m.used, default=None)

    def host_of(self, rank: int) -> str | None:
        """The host a rank ran on."""
        return self.hosts[rank] if 0 <= rank < len(self.hosts) else None
