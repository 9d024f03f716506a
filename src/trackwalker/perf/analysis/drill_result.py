"""What drilling into one operation gives, as data."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from trackwalker.perf.analysis.result import Missing


class Execution(BaseModel):
    """All executions of one operation on one device."""

    name: str  # of the kernel
    op: str  # of the program, as the trace has it
    device: str
    kind: str
    part: str
    phase: str
    path: str
    source: str
    shape: str = ""
    opcode: str = ""
    calls: float  # per step
    seconds: float  # per step
    share: float
    shortest_s: float
    median_s: float
    p95_s: float
    longest_s: float
    under_comm: float  # share of its time in which communication ran beside it
    streams: list[str]


class DrillReport(BaseModel):
    """What was asked for, and everything that fits it."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: Literal["trackwalker.perf-drill/1"] = Field(default="trackwalker.perf-drill/1", alias="schema")
    job: str
    op: str
    files: list[str]
    rows: list[Execution]
    more: int = 0
    missing: list[Missing] = []

    def to_json(self) -> str:
        """As one JSON document."""
        return self.model_dump_json(by_alias=True, indent=1)
