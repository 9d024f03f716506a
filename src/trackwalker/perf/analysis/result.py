"""The result of a performance analysis as data: every part is optional, what is missing is listed with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from trackwalker.errors import TrackwalkerError

T = TypeVar("T")
SCHEMA: Literal["trackwalker.perf/1"] = "trackwalker.perf/1"


# Op paths for people: a path of twelve scopes has three that tell something.
# Scopes that transformations add: they say how, not where.
_COMMON = re.compile(
    r"^(?:jit\(\w*\)|jvp\(\)|transpose\(jvp\(\)\)|while|body|closed_call|eval_jaxpr|checkpoint|vmap\(\)|remat\w*)$"
)


def short_path(path: str) -> str:
    """The last scopes of an op path, without those that every path has."""
    telling = [scope for scope in path.split(";", 1)[0].split("/") if scope and not _COMMON.match(scope)]
    return "/".join(telling[-3:]) or path


class Missing(BaseModel):
    """A part of the report that could not be made."""

    what: str
    why: str
    do: str  # what would make it possible


@dataclass
class Attempts:
    """Parts of a report that are tried one by one: one that fails is listed with the reason, the others stand."""

    missing: list[Missing] = field(default_factory=list)

    def attempt(self, what: str, work: Callable[[], T], do: str) -> T | None:
        """Do one part; None where it fails."""
        try:
            return work()
        except TrackwalkerError as e:
            self.lacks(what, str(e), do)
        except Exception as e:  # a trace may hold anything, and one part's defect must not cost the others
            self.lacks(what, f"{type(e).__name__}: {e}", do)
        return None

    def lacks(self, what: str, why: str, do: str) -> None:
        """List a part that cannot be made."""
        self.missing.append(Missing(what=what, why=why, do=do))


class JobPart(BaseModel):
    """Which run this is about."""

    id: str
    name: str
    dir: str
    model: str | None = None
    status: str | None = None
    nodes: int | None = None
    ranks: int | None = None
    devices: int | None = None
    device: str | None = None  # the kind of accelerator
    last_step: int | None = None


class Spread(BaseModel):
    """A sample of numbers: its middle, its width, and how sure its mean is."""

    n: int
    mean: float
    median: float
    p5: float
    p95: float
    mad: float  # median absolute deviation
    low: float  # 95 % interval of the mean, by bootstrap
    high: float


class Level(BaseModel):
    """A phase of one speed, as every command has it (record/phases.py); labelled steps are not counted."""

    first_step: int
    last_step: int
    steps: int
    seconds: float  # median
    steady: bool = False  # the longest: the speed is judged by it
    slow: bool = False  # below the run's own full speed


class Drift(BaseModel):
    """The speed at the end of the steady stretch against its beginning: -0.02 is 2 % slower."""

    change: float
    low: float
    high: float
    certain: bool


class Positional(BaseModel):
    """Upstream's figure: the mean of the logged values at positions 5 to 14, whatever happened there."""

    tgs: float
    std: float
    n: int
    seconds: float


class RankRow(BaseModel):
    """One rank's steps in the steady stretch."""

    rank: int
    host: str | None = None
    seconds: float  # median
    tgs: float | None = None
    data_wait_s: float | None = None
    steps: int


class Agreement(BaseModel):
    """Logged tokens/s against batch, sequence length and seconds."""

    tokens_per_step: float  # by the config
    logged: float  # tokens/s times seconds, median
    agrees: bool
    says: str


class Series(BaseModel):
    """Every step, for plots: a long run is thinned out, never averaged."""

    step: list[int] = []
    seconds: list[float | None] = []
    tgs: list[float | None] = []
    label: list[str] = []  # "" where the step says something about the speed of training
    every: int = 1


class Throughput(BaseModel):
    """How fast the run trains, and which steps that is judged by."""

    source: str
    sources: dict[str, int]  # place -> how many steps it tells of
    steps: int
    repeated: int = 0  # steps done again after a restart
    step_s: float | None = None  # the run's one step time: the median of the undisturbed steps
    step_s_of: int = 0  # how many those are
    left_out: dict[str, int] = {}  # and how many were left out for it, by reason
    seconds: Spread  # of the steady stretch
    tgs: Spread | None = None  # tokens per second per device
    tokens_per_step: float | None = None  # of one device
    labels: dict[str, list[int]] = {}  # label -> steps
    label_cost_s: dict[str, float] = {}  # what these steps took longer, together
    levels: list[Level] = []
    drift: Drift | None = None
    positional: Positional | None = None
    ranks: list[RankRow] = []
    slowest: RankRow | None = None
    rank_spread: float | None = None  # slowest median over fastest, minus one
    data_wait_share: float | None = None  # of a steady step, where the ranks report it
    agreement: Agreement | None = None
    notes: list[str] = []
    series: Series = Series()


class FlopsPart(BaseModel):
    """Model FLOPs of one device in one step, forward and backward, nothing computed twice."""

    formula: str
    tflops: float
    parts: dict[str, float]  # TFLOPs by part of the model
    attention_share: float
    logged_tflops: float | None = None
    agrees: str = ""  # how the trainer's own figure compares
    notes: list[str] = []


class Utilisation(BaseModel):
    """MFU: the time the model's FLOPs would take at peak, over the time the step takes."""

    mfu: float | None = None
    hfu: float | None = None  # the same of what was executed, recomputation included
    ideal_s: float | None = None
    step_s: float | None = None
    device: str | None = None
    peak_tflops: dict[str, float] = {}  # by the type of the products
    peak_from: str = ""
    logged_mfu: float | None = None
    executed_tflops: float | None = None


class Bucket(BaseModel):
    """One use of a step's time; the buckets add up to the step."""

    name: str
    seconds: float
    share: float


class OpRow(BaseModel):
    """One operation (or group of them) on the device, per step and device."""

    name: str
    kind: str = ""
    part: str = ""
    phase: str = ""
    source: str = ""
    path: str = ""
    shape: str = ""
    count: float = 0.0  # per step
    seconds: float = 0.0  # per step
    share: float = 0.0  # of the step


class DeviceRow(BaseModel):
    """One device's steps."""

    device: str
    file: str
    steps: int
    step_s: float
    buckets: list[Bucket]
    clock_s: float = 0.0  # to be added to the file's times: then all devices are on one clock


class CollectiveRow(BaseModel):
    """One collective of the program, per step."""

    name: str
    kind: str
    count: float
    bytes: int | None = None
    group_size: int | None = None
    seconds: float | None = None
    exposed_s: float | None = None
    wait_s: float | None = None
    algbw_gb_s: float | None = None
    busbw_gb_s: float | None = None
    source: str = ""
    path: str = ""


class StragglerRow(BaseModel):
    """A device that the others wait for."""

    device: str
    last: int  # collectives that it entered last
    of: int
    cost_s: float  # what the job would save a step without its delay
    share: float
    says: str = ""


class RankSteps(BaseModel):
    """Device x step: how long each traced step was, and how late each device came to its collectives."""

    devices: list[str] = []
    steps: list[int] = []
    step_s: list[list[float | None]] = []
    late_s: list[list[float | None]] = []  # after the middle device, over all collectives of the step


class TracePart(BaseModel):
    """What the traces say about a step."""

    files: list[str] = []
    windows: int = 0
    steps: int = 0
    step_s: float = 0.0
    step_samples: list[float] = []  # seconds of each traced step (mean of the devices)
    buckets: list[Bucket] = []
    bucket_samples: dict[str, list[float]] = {}  # by bucket, seconds of each traced step
    overlapped_comm_s: float | None = None
    devices: list[DeviceRow] = []
    kinds: list[OpRow] = []
    parts: list[OpRow] = []
    ops: list[OpRow] = []
    kernels: list[OpRow] = []
    gaps: list[OpRow] = []  # host-bound gaps by the frame that caused them
    collectives: list[CollectiveRow] = []
    stragglers: list[StragglerRow] = []
    rank_steps: RankSteps | None = None
    alignment_us: float | None = None
    notes: list[str] = []


class PlannedRow(BaseModel):
    """One collective as the compiler planned it."""

    name: str
    kind: str
    runs: int  # in one run of the program
    bytes: int
    groups: str  # who talks to whom, in words
    asynchronous: bool
    between: int  # instructions with work between its start and its done
    between_gflop: float
    crosses: bool  # done in another iteration of the loop than it was started in
    recomputed: bool
    source: str = ""


class ProgramPart(BaseModel):
    """What the compiled program says."""

    name: str
    fingerprint: str = ""
    tflops: float | None = None
    remat_share: float | None = None
    peak_bytes: int | None = None
    memory: dict[str, int] = {}  # bytes: arguments, outputs, temporary, constants
    live_at_peak: list[tuple[str, int]] = []  # the largest buffers at the worst moment: instruction, bytes
    collectives: dict[str, int] = {}  # kind -> executions per step
    collective_bytes: dict[str, int] = {}
    planned: list[PlannedRow] = []  # every collective, the largest first
    fusions: int | None = None
    ops: dict[str, int] = {}  # opcode -> instructions
    notes: list[str] = []


class BudgetRow(BaseModel):
    """One use of the run's wall time."""

    what: str
    hours: float
    share: float | None = None
    gpu_hours: float | None = None
    money: float | None = None


class GoodputPart(BaseModel):
    """Productive time and what the rest went to."""

    goodput: float | None = None
    wall_h: float | None = None
    gpus: int | None = None
    gpus_from: str = ""
    price: float | None = None  # of one GPU-hour
    rows: list[BudgetRow] = []


class Fix(BaseModel):
    """One thing to mend, with what it would give and where that number comes from."""

    rule: str
    says: str
    do: str
    gain: float  # share of the step (or of the wall time, where `of` says so)
    of: Literal["step", "wall"] = "step"
    evidence: str


def slow_phases(through: Throughput, most: int = 5) -> str:
    """The phases below full speed in words; empty where there is none."""
    slow = [level for level in through.levels if level.slow]
    full = min((level.seconds for level in through.levels if not level.slow), default=None)
    each = ", ".join(f"steps {x.first_step} to {x.last_step} at {x.seconds:.4g} s" for x in slow[:most])
    more = f" and {len(slow) - most} more" if len(slow) > most else ""
    return f"{each}{more} a step" + (f", at full speed {full:.4g} s" if full is not None else "") if slow else ""


class PerfReport(BaseModel):
    """One run's performance."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: Literal["trackwalker.perf/1"] = Field(default=SCHEMA, alias="schema")
    job: JobPart
    headline: str = ""
    fixes: list[Fix] = []
    throughput: Throughput | None = None
    flops: FlopsPart | None = None
    utilisation: Utilisation | None = None
    trace: TracePart | None = None
    program: ProgramPart | None = None
    goodput: GoodputPart | None = None
    missing: list[Missing] = []
    config: dict[str, str] = {}  # what decides about speed, for comparisons
    seconds: float = 0.0  # that the analysis took

    def to_json(self) -> str:
        """The report as one JSON document."""
        return self.model_dump_json(by_alias=True, indent=1)
