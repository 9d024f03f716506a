"""What a model sweep is asked for, checked as a whole before anything is submitted, as the request of its plan."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.sweep.model import USUAL
from trackwalker.sweep.models.cells import Size, assign, parse_node_sets, parse_sizes
from trackwalker.sweep.models.history import ALIKE as ALIKE
from trackwalker.sweep.models.history import earlier_columns, remembered_nodes
from trackwalker.sweep.plan import FOLDER

INSTALLED = "installed"  # name of the column whose code is no commit


# Commits as frozen code: each becomes a folder of the workspace that holds exactly its files, made once.
CODE_FOLDER = "code"
_GIT_S = 300.0
_SHORT = 10


@dataclass(frozen=True)
class Commit:
    """One commit of a repository."""

    sha: str
    subject: str
    asked: str  # as the user named it: v1.2, HEAD~3, 3f2a1b0

    @property
    def short(self) -> str:
        """As tables name it."""
        return self.sha[:_SHORT]


def find_commits(repository: Path, names: Sequence[str]) -> list[Commit]:
    """The commits that the names mean, in the given order; an unknown or repeated one is refused."""
    found: list[Commit] = []
    for name in names:
        if name.startswith("-"):
            raise UsageError(f"'{name}' is no commit of {repository}")
        sha = _git(repository, f"'{name}' is no commit of {repository}", "rev-parse", "--verify", f"{name}^{{commit}}")
        subject = _git(repository, f"cannot read {name}", "show", "-s", "--format=%s", sha)
        twin = next((commit for commit in found if commit.sha == sha), None)
        if twin is not None:
            raise UsageError(f"'{name}' and '{twin.asked}' are the same commit, {sha[:_SHORT]}: name it once")
        found.append(Commit(sha, subject, name))
    return found


def code_folder(sweeps: Path, commit: Commit) -> Path:
    """Where the code of a commit is, or will be."""
    return sweeps / CODE_FOLDER / commit.sha


def freeze(repository: Path, commit: Commit, sweeps: Path) -> Path:
    """The folder with a commit's files; made aside and renamed, so that it is whole or not there."""
    folder = code_folder(sweeps, commit)
    if folder.is_dir():
        return folder
    archive = _run(repository, f"cannot take the code of {commit.short}", "archive", "--format=tar", commit.sha)
    aside = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{commit.short}-", dir=folder.parent))
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(aside, filter="tar")
        if (aside / ".gitmodules").exists():
            raise UsageError(
                f"commit {commit.short} has submodules, whose code git archive leaves out: check it out with them into "
                "a folder of its own and sweep that with --code"
            )
        aside.chmod(0o755)  # mkdtemp lets only its owner in, and jobs may run as somebody else's
        os.rename(aside, folder)
    except OSError as e:
        if not folder.is_dir():  # else another sweep was faster, and made the same
            raise UsageError(f"cannot write {folder}: {e.strerror}; choose another --workspace") from e
    finally:
        if aside is not None and aside.exists():
            shutil.rmtree(aside, ignore_errors=True)
    return folder


def _git(repository: Path, wrong: str, *words: str) -> str:
    return _run(repository, wrong, *words).decode("utf-8", "replace").strip()


def _run(repository: Path, wrong: str, *words: str) -> bytes:
    git = shutil.which("git")
    if git is None:
        raise UsageError("--commits needs git, which is not installed here")
    try:
        argv = [git, "-C", str(repository), *words]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(f"{wrong}: git did not answer in {_GIT_S:g} s") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise UsageError(f"{wrong}: {said[0].removeprefix('fatal: ')}")
    return done.stdout


@dataclass(frozen=True)
class Asked:
    """A model sweep as it was typed."""

    workspace: Path
    nodes: str = ""  # node list, or sets of nodes with `/` between them; empty: this machine
    models: Sequence[str] = ()  # NAME or NAME:N
    commits: Sequence[str] = ()
    code: Path | None = None  # the repository of the commits; without commits, the code to run
    reassign: bool = False
    steps: int = 30
    config: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    setup: Mapping[str, Any] = field(default_factory=dict)  # what must be alike to be compared, see models_history


def request_of(asked: Asked, *, dry_run: bool = False) -> dict[str, Any]:
    """The request; a commit's code is written down, unless it is only shown what would run."""
    sizes = parse_sizes(asked.models)
    config = {**USUAL, "steps": str(asked.steps), **asked.config}
    check_checkpoints(config)
    places = _places(asked, sizes)
    codes = _codes(asked, dry_run)
    history = earlier_columns(asked.workspace, places, config, asked.env, asked.setup)
    return {
        "nodes": list(dict.fromkeys(node for nodes in places.values() for node in nodes)),
        "cells": [{"model": s.model, "count": s.count, "nodes": list(nodes)} for s, nodes in places.items()],
        "codes": codes,
        "history": [asdict(column) for column in history],
    }


def _places(asked: Asked, sizes: Sequence[Size]) -> dict[Size, tuple[str, ...]]:
    if not asked.nodes:
        large = [size.name for size in sizes if size.count > 1]
        if large:
            raise UsageError(
                f"this machine is one node, {', '.join(large[:6])} need more: name others, as --models tiny:1"
            )
        return dict.fromkeys(sizes, ())
    known = {} if asked.reassign else remembered_nodes(asked.workspace)
    return assign(sizes, parse_node_sets(asked.nodes), known)


def _codes(asked: Asked, dry_run: bool) -> list[dict[str, str]]:
    if not asked.commits:
        # Whatever is in the folder is run, committed or not: it is nobody's commit.
        name = asked.code.resolve().name if asked.code else INSTALLED
        return [{"name": name, "sha": "", "subject": "", "code": str(asked.code.resolve()) if asked.code else ""}]
    repository, sweeps = asked.code or Path.cwd(), asked.workspace.absolute() / FOLDER
    commits = find_commits(repository, asked.commits)
    if not dry_run:
        for commit in commits:
            freeze(repository, commit, sweeps)
    return [{"name": c.short, "sha": c.sha, "subject": c.subject, "code": str(code_folder(sweeps, c))} for c in commits]


def check_checkpoints(config: Mapping[str, str]) -> None:
    """Refuse a restore or a save that cannot work: every job would fail of it, after minutes of start-up."""
    for key in ("load_full_state_path", "load_parameters_path"):
        place = config.get(key, "")
        if place and "://" not in place and not Path(place).is_dir():
            raise UsageError(f"{key}={place}: there is no such checkpoint directory")
    if config.get("enable_checkpointing", "").lower() not in ("true", "1", "yes"):
        return
    where = config.get("base_output_directory", "")
    if not where:
        raise UsageError("enable_checkpointing=true needs base_output_directory=DIR: there is no checkpoint directory")
    if "://" not in where and not Path(where).is_dir():
        raise UsageError(f"base_output_directory={where}: there is no such checkpoint directory")
