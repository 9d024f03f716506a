"""The comparison of two performance reports, as data."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from trackwalker.perf.analysis.result import JobPart


class Mismatch(BaseModel):
    """Something that differs although the comparison would need it equal."""

    what: str
    a: str
    b: str
    refuse: bool
    why: str


class Speed(BaseModel):
    """B's throughput against A's: -0.05 is 5 % slower."""

    of: Literal["tokens/s/device", "steps/s"]
    a: float
    b: float
    change: float
    low: float
    high: float
    certain: bool
    detectable: float | None = None  # the smallest change that would have been seen nine times in ten
    steps_a: int = 0  # how many steps of each were compared
    steps_b: int = 0
    left_out_a: dict[str, int] = {}  # and how many were not, by reason
    left_out_b: dict[str, int] = {}

    @property
    def steps_words(self) -> str:
        """How many steps were compared and left out, and why."""
        each = []
        for word, n, left in (("A", self.steps_a, self.left_out_a), ("B", self.steps_b, self.left_out_b)):
            why = ", ".join(f"{count} {reason}" for reason, count in left.items())
            each.append(f"{n} steps of {word}" + (f" (left out: {why})" if why else ""))
        return "by " + " and ".join(each)


class Fall(BaseModel):
    """One row of the waterfall: the rows' deltas add up to the step's."""

    name: str
    a_s: float
    b_s: float
    delta_s: float
    share: float  # of A's step
    low_s: float | None = None
    high_s: float | None = None
    certain: bool = False


class OpDelta(BaseModel):
    """One operation in both runs; the two effects add up to the delta."""

    name: str
    path: str = ""
    phase: str = ""
    shape: str = ""
    a_count: float
    b_count: float
    a_s: float  # per step
    b_s: float
    delta_s: float
    count_effect_s: float
    time_effect_s: float
    share: float  # of A's step
    only: Literal["", "A", "B"] = ""


class Changed(BaseModel):
    """One setting or count that differs."""

    name: str
    a: str | None
    b: str | None


class DiffReport(BaseModel):
    """A against B."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: Literal["trackwalker.perf-diff/1"] = Field(default="trackwalker.perf-diff/1", alias="schema")
    a: JobPart
    b: JobPart
    summary: str = ""
    mismatches: list[Mismatch] = []
    config: list[Changed] = []
    speed: Speed | None = None
    waterfall: list[Fall] = []
    step_delta_s: float | None = None
    ops: list[OpDelta] = []
    collectives: list[OpDelta] = []
    program: list[Changed] = []
    missing: list[str] = []

    @property
    def refused(self) -> list[Mismatch]:
        """What forbids the comparison."""
        return [m for m in self.mismatches if m.refuse]

    def regression(self, percent: float) -> bool:
        """Whether B is slower than A by more than that, beyond noise."""
        return self.speed is not None and self.speed.certain and -100.0 * self.speed.change > percent

    def to_json(self) -> str:
        """The comparison as one JSON document."""
        return self.model_dump_json(by_alias=True, indent=1)
