"""A synchronous training job in time: a step ends when its slowest rank does."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from trackwalker.job.gpus import gpus

Floats = NDArray[np.float64]

EPOCH = 1_772_000_000  # February 2026; a seed adds days
TFLOP_PER_TOKEN = 0.06412  # of the model whose 30.309 s a step are 207.973 TFLOP/s/device

Ending = Literal["completed", "cancelled", "walltime", "preempted", "crash", "heartbeat", "silent", "cut"]


class Profile(BaseModel):
    """What a GPU of a kind draws and runs at."""

    name: str
    maker: str
    active_w: float
    spin_w: float
    idle_w: float
    clock_mhz: float
    vram_gb: float
    peak_tflops: float
    hot_c: float


PROFILES = {
    name.lower(): Profile(
        **row["simulated"],
        maker="AMD_Instinct" if row["vendor"] == "amd" else "NVIDIA",
        peak_tflops=row["tflops"]["bfloat16"],
    )
    for name, row in gpus().items()
    if "simulated" in row
}


class WorldSpec(BaseModel):
    """The job before anything happens to it."""

    model_config = ConfigDict(extra="forbid")

    nodes: int = Field(default=8, ge=1)
    hosts: list[str] = []  # names by task, of a case that happened; else they are drawn
    job_id: str | None = None
    ends_at: datetime | None = None  # when the job was over; else the day is drawn
    gpus: int = Field(default=8, ge=1)
    profile: str = "mi355x"
    active_w: float | None = None  # instead of what the profile draws at work
    model: str = "ds-proxy"
    nic: str = "ionic"
    steps: int = 160  # steps that run
    total: int = 5000  # steps the job was asked for
    step_s: float = 29.85
    noise: float = 0.004
    tokens: float = 98_304.0  # per device and step
    first_step: int = 0  # more than 0: restored
    checkpoint_period: int = 0
    save_s: float = 240.0
    save_spread: float = Field(default=0.1, ge=0, lt=1)  # how much one save differs from another
    writers: float = 0.34  # share of the hosts that write
    init_s: float = 180.0
    compile_s: float = 100.0
    ending: Ending = "completed"
    heartbeat_timeout_s: int = 14_400
    ray: bool = True  # telemetry recorded
    worker_logs: bool = True
    lost_scrapes: float = 0.003
    config: dict[str, str] = {}
    env: dict[str, str] = {}
    single_replica_restore: bool = False
    wall_limit_s: float | None = None
    clock_skew_s: dict[str, float] = {}


@dataclass
class Run:
    """The job as it went; faults change `factor`, `extra` and the ends before `play`, and read times after it."""

    spec: WorldSpec
    hosts: list[str]
    job_id: str
    start: float
    rng: np.random.Generator
    factor: Floats = field(init=False)  # slowest rank against full speed, per step
    extra: Floats = field(init=False)  # seconds added to a step: saves, recompilations
    seconds: Floats = field(init=False)
    ends: Floats = field(init=False)
    planned: Floats = field(init=False)  # the ends, those after a cut too
    saves: list[tuple[float, float, int]] = field(default_factory=list)
    hang_step: int | None = None  # no step from this one on
    silent_s: float = 0.0  # how long nothing happens after the last step before the end comes
    zero_steps: bool = False  # it never reaches the first step
    exit_code: int | None = None
    loss: Floats = field(init=False)
    _data_waits: list[tuple[int, int, float, list[str] | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = self.spec.steps
        self.factor, self.extra = np.ones(n), np.zeros(n)
        self.loss = 2.6 + 8.7 * np.exp(-np.arange(self.spec.first_step, self.spec.first_step + n) / 60.0)

    @property
    def profile(self) -> Profile:
        profile = PROFILES[self.spec.profile]
        return profile if self.spec.active_w is None else profile.model_copy(update={"active_w": self.spec.active_w})

    @property
    def training_begin(self) -> float:
        """When the training stage began: preflight, pull and ECC check come before it."""
        return self.start + 60.0

    @property
    def steps_from(self) -> float:
        """When step 0 began: what comes before it is start-up."""
        return self.training_begin + self.spec.init_s

    @property
    def work_end(self) -> float:
        """When the last step ended."""
        return float(self.ends[-1]) if len(self.ends) else self.steps_from

    @property
    def busy_until(self) -> float:
        """When the GPUs stopped working: a heartbeat kill hits a run that is in the middle of its next step."""
        killed = self.spec.ending == "heartbeat" and self.hang_step is None and not self.zero_steps
        return self.end - 5.0 if killed else self.work_end

    @property
    def end(self) -> float:
        """When the job was over (or, of a running one, when we look)."""
        return self.work_end + self.silent_s

    @property
    def first(self) -> int:
        return self.spec.first_step

    def time_of(self, step: int) -> float:
        """When a step began (in a view of a running job: or will begin)."""
        i = min(max(0, step - self.first), len(self.planned))
        return self.steps_from if i == 0 else float(self.planned[i - 1])

    def at(self, place: float | int) -> int:
        """A place in the run as a step number: a fraction of the steps, or the step itself."""
        return self.first + (round(place * self.spec.steps) if isinstance(place, float) else place)

    def slow(self, begin: int, end: int, factor: float | Floats) -> None:
        """Steps [begin, end) take `factor` times as long; the slowest of several faults decides."""
        a, b = max(0, begin - self.first), min(self.spec.steps, end - self.first)
        self.factor[a:b] = np.maximum(self.factor[a:b], factor)

    def play(self) -> None:
        """Turn factors into times."""
        spec = self.spec
        n = 0 if self.zero_steps else spec.steps
        if self.hang_step is not None:
            n = min(n, max(0, self.hang_step - self.first))
        noise = np.zeros(n)
        drift = 0.0
        for i, shock in enumerate(self.rng.normal(0, spec.noise, n)):
            drift = 0.5 * drift + shock
            noise[i] = drift
        numbers = np.arange(self.first, self.first + n)
        seconds = spec.step_s * self.factor[:n] * (1.0 + noise) + self.extra[:n]
        if n:
            seconds[0] += spec.compile_s
        if spec.checkpoint_period:
            for i in np.flatnonzero((numbers % spec.checkpoint_period == 1) & (numbers > self.first)).tolist():
                spread = 1.0 + spec.save_spread * self.rng.uniform(-1.0, 1.0)
                seconds[i] += spec.save_s * spread * self._save_factor(int(numbers[i]) - 1)
        self.seconds = seconds
        self.ends = self.planned = self.steps_from + np.cumsum(seconds)
        for i in range(n):
            saved = int(numbers[i]) - 1
            if spec.checkpoint_period and saved >= 0 and saved % spec.checkpoint_period == 0 and i:
                begin = float(self.ends[i] - seconds[i])
                self.saves.append((begin, float(self.ends[i]) - spec.step_s, saved))
        self.silent_s = max(self.silent_s, 5.0)

    def end_at(self, time: float) -> None:
        """Move the whole run in time so that it is over at a given moment."""
        by = time - self.end
        self.start += by
        self.ends = self.planned = self.planned + by
        self.saves = [(begin + by, end + by, step) for begin, end, step in self.saves]

    def cut(self, share: float) -> None:
        """Only a share of the steps is there yet: the view of a job that runs."""
        n = max(1, int(len(self.ends) * share))
        self.ends, self.seconds = self.ends[:n], self.seconds[:n]
        self.saves = [save for save in self.saves if save[1] < self.ends[-1]]
        self.silent_s, self.spec.ending = 5.0, "cut"
        self.spec.total = max(self.spec.total, self.spec.first_step + self.spec.steps)

    save_growth: Floats | None = None  # by save number: slower storage
    batch_never_comes: bool = False  # the silence after the last step is a wait for data

    def await_data(self, begin: int, end: int, share: float, hosts: list[str] | None = None) -> None:
        """Of steps [begin, end) a share goes by waiting for a batch, on all hosts or on some."""
        self._data_waits.append((max(0, begin - self.first), max(0, end - self.first), share, hosts))

    def data_wait_of(self, host: str) -> Floats:
        """Seconds that each completed step of a host waited for its batch."""
        waited = np.zeros(len(self.ends))
        for begin, end, share, hosts in self._data_waits:
            if hosts is None or host in hosts:
                waited[begin:end] = np.maximum(waited[begin:end], share * self.seconds[begin:end])
        return waited

    last_save_begins: float | None = None  # a save that the end of the job cut off

    def _save_factor(self, step: int) -> float:
        if self.save_growth is None:
            return 1.0
        number = step // self.spec.checkpoint_period
        return float(self.save_growth[min(number, len(self.save_growth) - 1)])

    @property
    def writers(self) -> list[str]:
        """The hosts that write checkpoints: replica 0."""
        return self.hosts[: max(1, round(self.spec.writers * len(self.hosts)))]

    def tgs(self, index: int) -> float:
        """Tokens per second and device of a step."""
        return float(self.spec.tokens / self.seconds[index])


def make_hosts(count: int, rng: np.random.Generator) -> list[str]:
    """Host names as a cluster has them: one prefix, some numbers, not all adjacent."""
    prefix = str(rng.choice(["chi", "gpu-", "node", "mi", "tw1-n", "pod3-", "hgx"]))
    first = int(rng.integers(100, 3000))
    numbers = np.sort(rng.choice(np.arange(first, first + 3 * count), count, replace=False))
    return [f"{prefix}{n:04d}" for n in numbers]
