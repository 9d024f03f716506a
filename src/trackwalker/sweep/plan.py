"""What a sweep was asked to do: plan.json, written once before the first job, enough to go on with after any crash."""

from __future__ import annotations

import difflib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trackwalker.errors import EvidenceError, UsageError
from trackwalker.job.scrub import shown
from trackwalker.job.trust import distrust, ours_alone
from trackwalker.launch.plan import starred
from trackwalker.sweep.model import SCHEMA

FOLDER = "sweeps"  # of a workspace
NAME = "plan.json"


@dataclass(frozen=True)
class Setup:
    """How every job of a sweep is run; the same for all, so that only what is varied differs."""

    on: str  # slurm, local
    workspace: str
    words: list[str] = field(default_factory=list)  # sbatch's own
    spares: list[str] = field(default_factory=list)  # nodes that may take a faulty one's place
    observe: bool = False
    procs: int = 1  # rank processes on each node
    image: str | None = None
    registry: str = "docker.io"
    runtime: str | None = None
    privileged: bool = False
    gpu: str | None = None
    fabric: str | None = None
    stage_timeouts: str | None = None
    code: str = ""  # folder whose code is frozen for the jobs
    python: str = ""
    flags: Mapping[str, Any] = field(default_factory=dict)  # for the nodes


@dataclass(frozen=True)
class Plan:
    """One sweep as it was asked for."""

    id: str
    kind: str
    request: Mapping[str, Any]
    setup: Setup
    created: float
    budget: float | None = None  # node-hours
    argv: list[str] = field(default_factory=list)  # what the user typed, secrets starred

    @property
    def folder(self) -> Path:
        """Where plan, state and report are."""
        return Path(self.setup.workspace) / FOLDER / self.id

    def save(self) -> None:
        """Make the sweep's folder and write the plan; it may hold a secret setting, so only its owner reads it."""
        try:
            with ours_alone():
                self.folder.mkdir(parents=True)
            path = self.folder / NAME
            path.touch(mode=0o600)
            with path.open("w", encoding="utf-8") as out:
                json.dump({"schema": SCHEMA, **asdict(self)}, out, indent=1)
                out.write("\n")
                out.flush()
                os.fsync(out.fileno())
        except OSError as e:
            raise UsageError(f"cannot write {self.folder}: {e.strerror}; choose another --workspace") from e
        except TypeError as e:
            raise UsageError(f"the request of a sweep must be plain JSON: {e}") from e

    def shown(self) -> dict[str, Any]:
        """For reports and --json: secrets starred."""
        return {
            "id": self.id,
            "kind": self.kind,
            "created": self.created,
            "budget_node_hours": self.budget,
            "argv": self.argv,
            "request": without_secrets(self.request),
            "setup": without_secrets(asdict(self.setup)),
        }


def new_id(kind: str, now: float) -> str:
    """`batch-20261115-160312-1f3a`: sorts by time, and may be part of a job's name."""
    return f"{kind}-{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def load_plan(folder: Path, to_drive: bool = False) -> Plan:
    """The plan of a sweep; a damaged one is one clear error, and so is another user's when it is to be carried out."""
    path = folder / NAME
    if to_drive and (why := distrust(path, folder.absolute().parent.parent)):
        raise UsageError(f"the sweep {folder.name} is not carried out: {why}")
    try:
        said = json.loads(path.read_bytes())
        if said.pop("schema") != SCHEMA:
            raise EvidenceError(f"{path} was written by another version of trackwalker")
        known = {f.name for f in fields(Setup)}
        said["setup"] = Setup(**{k: v for k, v in said["setup"].items() if k in known})
        # The workspace may have been moved or mounted elsewhere since.
        said["setup"] = Setup(**{**asdict(said["setup"]), "workspace": str(folder.absolute().parent.parent)})
        return Plan(**{f.name: said[f.name] for f in fields(Plan) if f.name in said})
    except OSError as e:
        raise EvidenceError(f"cannot read {path}: {e.strerror}") from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise EvidenceError(f"{path} is damaged ({type(e).__name__}: {e}): the sweep cannot be read") from e


def list_folders(workspace: Path) -> list[Path]:
    """The sweeps of a workspace, newest first."""
    found = [p.parent for p in (workspace / FOLDER).glob(f"*/{NAME}")]
    return sorted(found, key=lambda folder: folder.name.split("-", 1)[-1], reverse=True)


def find_folder(name: str, workspace: Path) -> Path:
    """The one sweep that `name` (an id, its beginning or its end, `last`, or a folder) means."""
    if "/" in name:
        if not (Path(name) / NAME).is_file():
            raise UsageError(f"{name} is not a sweep: it has no {NAME}")
        return Path(name)
    known = list_folders(workspace)
    if name == "last" and known:
        return known[0]
    exact = [folder for folder in known if folder.name == name]
    found = exact or [folder for folder in known if folder.name.startswith(name) or folder.name.endswith(f"-{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"'{name}' could be {len(found)} sweeps; name one of: {_some(found)}")
    near = difflib.get_close_matches(name, [folder.name for folder in known], n=1)
    hint = f"did you mean {near[0]}?" if near else "'trackwalker sweep list' shows what is there"
    raise UsageError(f"no sweep '{name}' in {workspace}; {hint}")


def _some(folders: list[Path]) -> str:
    return ", ".join(folder.name for folder in folders[:5]) + (", …" if len(folders) > 5 else "")


def without_secrets(value: Any, name: str = "") -> Any:
    """Plain data with secrets starred, by the names of their keys and by `NAME=value` words."""
    if isinstance(value, Mapping):
        return {k: without_secrets(v, str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(v, name) for v in value]
    if not isinstance(value, str) or name == "key":  # a trial's, not one that opens something
        return value
    return starred(shown(name, value))
