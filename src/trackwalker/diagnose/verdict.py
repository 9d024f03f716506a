"""The verdict: the public JSON contract every surface shows (see docs/reference/verdict.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from trackwalker.record.status import Status

Outcome = Literal["incident", "expected", "healthy", "insufficient-evidence"]
Role = Literal["root", "contributing", "masked", "consequence", "mechanism"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class JobRef(_Part):
    """Which job the verdict speaks of."""

    id: str
    dir: str
    nodes: int | None = None
    gpus: int | None = None


class Window(_Part):
    """The span of the evidence, UTC."""

    start: str | None = None
    end: str | None = None


class Onset(_Part):
    """When a cause began, and how well that is known."""

    time: str | None = None
    step: int | None = None
    uncertainty_s: float | None = None


class Magnitude(_Part):
    """What the cause did to a quantity: from, to, and the relative change."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    of: str
    from_: float = Field(alias="from")
    to: float
    change: float


class Cause(_Part):
    """One cause with its role; hosts, gpus and devices name culprits only, never victims."""

    cause: str
    role: Role
    confidence: float
    hosts: list[str] = []
    gpus: list[str] = []
    devices: list[str] = []
    onset: Onset | None = None
    magnitude: Magnitude | None = None
    explains: float | None = None  # share of the lost time that is booked on it
    margin: float | None = None  # by how much it is clearer than the next best explanation of what deviates
    covers: float | None = None  # share of what deviates and could be a reason
    evidence: list[str] = []


class RuledOut(_Part):
    """A hypothesis whose data was collected and is clean."""

    cause: str
    evidence: list[str]


class Untestable(_Part):
    """A hypothesis that could not be tested, and what was missing."""

    cause: str
    missing: list[str]


class Evidence(_Part):
    """A number or a line, with the query or place that gives it back."""

    id: str
    kind: Literal["metric", "log", "event", "progress"]
    source: str
    says: str
    values: dict[str, float] = {}


class AccountRow(_Part):
    """Where the time lost in one episode went: a share for each cause (or wait), and what no record accounts for."""

    episode: str
    steps: list[int]
    lost_s: float
    shares: dict[str, float]


class Deviation(_Part):
    """A series that is not what it was, nor what its peers are; host null: most hosts together."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    host: str | None
    gpu: str | None = None
    device: str | None = None
    metric: str
    labels: dict[str, str] = {}  # what tells it from other series of its name
    kind: Literal["rose", "fell", "absent", "frozen", "restarted"]
    from_: float | None = Field(default=None, alias="from")
    to: float | None = None
    unit: str
    since: str
    score: float
    alike: int = 0  # further hosts, GPUs or devices that deviate in the same way
    explained_by: str | None = None
    evidence: str


class Action(_Part):
    """What to do next; anything that takes capacity or work away needs approval."""

    do: str
    hosts: list[str] = []
    why: str
    risk: str
    needs_approval: bool


class Progress(_Part):
    """How far the run came and how fast."""

    first_step: int | None = None
    last_step: int | None = None
    total_steps: int | None = None
    step_time_s: float | None = None
    tgs: float | None = None
    last_checkpoint: int | None = None
    steps_lost: int | None = None
    eta_s: float | None = None


class DataQuality(_Part):
    """One check of the evidence itself, and the hosts that fail it."""

    check: str
    hosts: list[str] = []
    ok: bool
    says: str = ""


class Failure(_Part):
    """The first failure that the log tells of: its generic class and who said it first, named or not."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    class_: str | None = Field(default=None, alias="class")  # memory, storage, network, device, ...; null: unclear
    named: bool  # whether its words are a known cause's
    rank: int | None = None
    host: str | None = None
    subject: str = ""
    says: str
    source: str


class Cost(_Part):
    """What the diagnosis itself cost; the only part that differs between two runs."""

    seconds: float
    queries: int
    bytes_read: int


class Verdict(_Part):
    """What happened, who did it, what was ruled out, what to do.

    A further field that has a `title` is shown under it by terminal, Markdown, HTML, web and MCP.
    """

    schema_: Literal["trackwalker.verdict/1"] = Field(default="trackwalker.verdict/1", alias="schema")
    job: JobRef
    window: Window
    status: Status
    outcome: Outcome
    summary: str
    causes: list[Cause] = []
    ruled_out: list[RuledOut] = []
    untestable: list[Untestable] = []
    deviations: list[Deviation] = []
    accounts: list[AccountRow] = []
    evidence: list[Evidence] = []
    actions: list[Action] = []
    progress: Progress = Progress()
    data_quality: list[DataQuality] = []
    failure: Failure | None = None
    cost: Cost

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    @property
    def roots(self) -> list[Cause]:
        """The diagnosis proper: the causes with role root."""
        return [c for c in self.causes if c.role == "root"]

    def to_json(self) -> str:
        """The object exactly as `diagnose --json` prints it."""
        return self.model_dump_json(by_alias=True, indent=1)
