"""run.json: the run as it was resolved at launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trackwalker.errors import EvidenceError
from trackwalker.job.whole import read_whole, write_whole


class Setting(BaseModel):
    """A config or environment value and the layer that set it."""

    value: Any
    source: str


class RankPlace(BaseModel):
    """Which rank runs in which lane of which machine."""

    rank: int
    host: str
    node: str


class Origin(BaseModel):
    """The machine where the run was asked for, as others reach it."""

    machine: str
    user: str
    address: str | None = None  # by which the user's own machine reached it, where SSH told us
    port: int = 22


class RunRecord(BaseModel):
    """Everything needed to say what ran, and to run it again."""

    model_config = ConfigDict(populate_by_name=True, extra="ignore")

    schema_: Literal["trackwalker.run/1"] = Field(default="trackwalker.run/1", alias="schema")
    id: str
    name: str
    model: str
    alias: str | None = None
    tag: str | None = None
    scheduler: str
    trainer: str
    created: float = Field(ge=0, lt=253402300800, allow_inf_nan=False)  # what a calendar can hold
    argv: list[str]  # what the user typed, secrets starred
    command: list[str]  # what every rank executes
    config: dict[str, Setting] = {}
    env: dict[str, Setting] = {}
    ranks: list[RankPlace] = []
    attached: bool = False  # joined while it ran, or only described: nobody of ours would have written its end
    observe: bool = False
    ray: bool = False  # a Ray cluster beside the run
    workspace: str
    origin: Origin | None = None
    code: dict[str, str] = {}  # commit, branch, whether there were changes, Python; provenance.json has the rest
    image: str = ""  # container image as it was asked for
    image_digest: str = ""  # what it was, once a node has resolved it
    kubernetes: dict[str, str] = {}  # namespace, kind (Job, JobSet) and name of what was created
    allocation: str = ""  # the Slurm job whose nodes it used, where `run` found itself inside one
    snapshot: str = ""  # hash of the code snapshot in the workspace's .artifacts
    submission: str = ""  # folder with what the nodes were told
    knobs: dict[str, str] = {}  # environment variables that shaped the request, as options do
    auto_resume: int = 0  # further attempts that were asked for, by failure class (docs/how-to/resume.md)
    attempts: list[dict[str, Any]] = []  # those before this one: how each ended, and what followed from it
    continued_by: str = ""  # the job that is the next attempt of this one
    resumed_from: str = ""  # the job whose next attempt this is, when Slurm no longer knew that job

    def save(self, path: Path) -> None:
        """Write atomically: a reader sees the whole record or none."""
        write_whole(path, self.model_dump_json(by_alias=True, indent=1) + "\n")


def ours(run: RunRecord | None) -> bool:
    """Whether an agent of ours saw the run from its start, and would have written down its end."""
    return run is not None and not run.attached


def load_run(path: Path | None) -> RunRecord | None:
    """The run record, None when there is none (an upstream job); a damaged one is one clear error."""
    if path is None:
        return None
    try:
        return RunRecord.model_validate_json(read_whole(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise EvidenceError(f"{path} cannot be read: {e.strerror}") from e
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(p) for p in first["loc"]) or "file"
        raise EvidenceError(f"{path} is damaged or foreign ({where}: {first['msg']})") from e
