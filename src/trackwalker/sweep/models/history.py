"""Earlier model sweeps of a workspace: which nodes each model has, and what was measured in the same way.

Only what a plan file says was ever started counts, so there is no second place that could say otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trackwalker.errors import TrackwalkerError
from trackwalker.sweep.models.cells import Size
from trackwalker.sweep.models.compare import Column
from trackwalker.sweep.models.strategy import ModelSweep, build
from trackwalker.sweep.plan import Plan, list_folders, load_plan
from trackwalker.sweep.state import load_state

_MOST = 6  # columns: a table has to fit a page
# What all jobs of a sweep have in common and what changes their speed; the code is what is compared.
ALIKE = ("on", "procs", "image", "runtime", "gpu", "fabric")


def remembered_nodes(workspace: Path) -> dict[str, tuple[str, ...]]:
    """The nodes that each model had in the last sweep that ran it, by Size.name."""
    found: dict[str, tuple[str, ...]] = {}
    for _, _, sweep in _sweeps(workspace):
        for size, nodes in sweep.places.items():
            found.setdefault(size.name, nodes)
    return found


def earlier_columns(
    workspace: Path,
    places: Mapping[Size, Sequence[str]],
    config: Mapping[str, str],
    env: Mapping[str, str],
    setup: Mapping[str, Any],
) -> list[Column]:
    """What earlier sweeps measured on the same nodes with the same settings, oldest first; `setup` has ALIKE's keys."""
    found: list[Column] = []
    for folder, plan, sweep in _sweeps(workspace):
        if len(found) >= _MOST:
            break
        if any(getattr(plan.setup, key) != setup[key] for key in ALIKE):
            continue
        if sweep.base.config != dict(config) or sweep.base.env != dict(env):
            continue
        same = {size.name for size, nodes in sweep.places.items() if tuple(places.get(size, ())) == nodes}
        try:
            columns = sweep.own_columns(load_state(folder).done)
        except TrackwalkerError:
            continue
        for column in reversed(columns):
            cells = {size: runs for size, runs in column.cells.items() if size in same}
            if cells:
                found.append(Column(column.name, column.sha, column.subject, folder.name, cells))
    return found[:_MOST][::-1]


def _sweeps(workspace: Path) -> Iterator[tuple[Path, Plan, ModelSweep]]:
    """Newest first; one that cannot be read is no reason to stop."""
    for folder in list_folders(workspace):
        with contextlib.suppress(TrackwalkerError):
            plan = load_plan(folder)
            if plan.kind == "models":
                yield folder, plan, build(plan.request)
