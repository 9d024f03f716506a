"""What a scoring run leaves behind: one file, every case with its grade; everything shown is computed from it."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trackwalker.errors import UsageError
from trackwalker.lab.scenario import Truth
from trackwalker.lab.scoring.grade import Grade

SCHEMA: Literal["trackwalker.lab.results/1"] = "trackwalker.lab.results/1"


class CaseResult(BaseModel):
    """One tool on one case."""

    model_config = ConfigDict(extra="forbid")

    tool: str
    family: str
    split: str
    group: str
    seed: int
    variant: str = ""
    nodes: int | None = None
    truth: Truth
    grade: Grade
    passed: bool
    seconds: float
    same_again: bool | None = None  # the same verdict the second time; None: asked once
    error: str = ""
    calls: int | None = None  # of tools, by an agent
    tokens: int | None = None  # as the agent told


class Results(BaseModel):
    """A scoring run."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    schema_: Literal["trackwalker.lab.results/1"] = Field(default=SCHEMA, alias="schema")
    version: str  # of trackwalker, whose scenarios these are
    suite: list[str]
    cases: list[CaseResult]

    def to_json(self) -> str:
        """As it is written."""
        return self.model_dump_json(by_alias=True, indent=1)


def agent_lines(results: Results) -> list[str]:
    """What each agent needed: right answers, calls, tokens and seconds of a case, and where the engine did better."""
    lines = []
    for tool in dict.fromkeys(c.tool for c in results.cases if c.calls is not None):
        mine = [c for c in results.cases if c.tool == tool]
        told = [f"{tool}: {sum(c.passed for c in mine)} of {len(mine)} right"]
        for name in ("calls", "tokens", "seconds"):
            known = [v for c in mine if (v := getattr(c, name)) is not None]
            told.append(
                f"{name} a case: median {median(known):g}, most {max(known):g}" if known else f"{name}: not told"
            )
        others = {(c.family, c.seed, c.variant) for c in results.cases if c.tool != tool and c.passed}
        lost = sum(not c.passed and (c.family, c.seed, c.variant) in others for c in mine)
        lines.append("; ".join([*told, f"wrong where another tool was right: {lost}"]))
    return lines


def read_results(path: Path) -> Results:
    """A results file, or one line that says why not."""
    try:
        return Results.model_validate_json(path.read_text())
    except OSError as e:
        raise UsageError(f"cannot read {path}: {e.strerror}") from e
    except (ValidationError, UnicodeDecodeError) as e:
        raise UsageError(
            f"{path} is not a results file of 'lab score' ({SCHEMA}): {' '.join(str(e).split())[:200]}"
        ) from e
