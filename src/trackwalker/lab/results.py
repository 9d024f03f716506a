"""What a scoring run leaves behind: one file, every case with its grade; everything shown is computed from it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trackwalker.errors import UsageError
from trackwalker.lab.grade import Grade
from trackwalker.lab.scenario import Truth

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
