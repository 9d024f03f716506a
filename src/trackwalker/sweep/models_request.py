"""What a model sweep is asked for, checked as a whole before anything is submitted, as the request of its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.sweep.commits import code_folder, find_commits, freeze
from trackwalker.sweep.models import USUAL
from trackwalker.sweep.models_cells import Size, assign, parse_node_sets, parse_sizes
from trackwalker.sweep.models_history import earlier_columns, remembered_nodes
from trackwalker.sweep.plan import FOLDER

INSTALLED = "installed"  # name of the column whose code is no commit


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
        "history": [column.to_dict() for column in history],
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
