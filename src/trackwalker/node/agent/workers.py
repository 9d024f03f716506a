"""The ranks below a recorded launcher (torchrun, mpirun, accelerate …), found by their environment.

They come seconds or minutes after the command began, and a launcher may replace them. The agent that learns of other
ranks begins anew with them, as one that takes over from a dead agent does: nothing it has read is lost.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Optional

from trackwalker.job.processes import alive, descendants, read_bytes, read_stat
from trackwalker.job.whole import write_whole
from trackwalker.node.agent.jobdir import write_places
from trackwalker.node.agent.spec import AgentSpec, RankSpec

_LOOK_S = 1.0
_LATER_S = 5.0  # once a command has run for a while, its ranks are there or never come
_SETTLED_S = 120.0
# The rank and the number of ranks, as launchers name them; a process without both is none of theirs.
_NAMES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
_LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK")
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # where PyTorch's launcher writes the first failure, if its worker told it
KEPT = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "PATH",
        "VIRTUAL_ENV")  # fmt: skip


class Workers:
    """Looks below the recorded commands of this node for ranks."""

    def __init__(self, spec: AgentSpec, save: Callable[[], None]) -> None:
        self._spec, self._save = spec, save
        self._began = self._looked = time.monotonic()

    def look(self) -> None:
        """Begin anew when other ranks are there than we watch; returns when nothing has changed."""
        now = time.monotonic()
        if now - self._looked < (_LOOK_S if now - self._began < _SETTLED_S else _LATER_S):
            return
        self._looked = now
        found = with_workers(self._spec)
        if found is not None:
            self._begin_anew(found)

    def _begin_anew(self, spec: AgentSpec) -> None:
        path = self._spec.spec_file
        write_whole(path, json.dumps(asdict(spec), default=str), mode=0o600)
        if spec.nodes == 1:
            write_places(spec.job_dir, [(rank.rank, rank.host, spec.node) for rank in spec.ranks])
        self._save()
        program = sys.argv[0] if sys.argv[0].endswith(".pyz") else ""
        words = [program] if program else ["-P", "-m", "trackwalker.node"]
        os.execv(sys.executable, [sys.executable, *words, str(path), "--adopt"])  # noqa: S606


def with_workers(spec: AgentSpec) -> AgentSpec | None:
    """The same with the ranks that are there now; None when they are those it has."""
    ranks: list[RankSpec] = []
    commands = {tuple(rank.command): rank for rank in reversed(spec.ranks)}
    world = spec.world
    for command, first in sorted(commands.items(), key=lambda each: each[1].rank):
        found, told = workers_of(command[0]) if alive(command[0], command[1]) else ({}, 0)
        known = {r.rank for r in spec.ranks if tuple(r.command) == command and (r.pid, r.start) != command}
        if not found or not known <= set(found):
            return None  # as long as it has none yet, or one of them is gone: what we have stays
        world = max(world, told)
        for number, (pid, start, env) in sorted(found.items()):
            host = f"{spec.node}-r{number}" if spec.nodes == 1 else first.host
            kept = {name: env[name] for name in KEPT if name in env}
            lowest = number == min(found)
            ranks.append(replace(first, rank=number, host=host, pid=pid, start=start, env=kept, speaks=lowest))
    same = [(r.rank, r.pid, r.start) for r in spec.ranks] == [(r.rank, r.pid, r.start) for r in ranks]
    return None if same or not ranks else replace(spec, ranks=ranks, world=max(world, len(ranks)))


def workers_of(command: int) -> tuple[dict[int, tuple[int, int, Mapping[str, str]]], int]:
    """Rank -> pid, start time and environment of the uppermost process of each rank below a command; and how many."""
    own = environment(command)
    if any(name in own for name in _LOCAL):
        return {}, 0  # the command is itself a rank: what it forks is part of it
    found: dict[int, tuple[int, int, Mapping[str, str]]] = {}
    world = 0
    for pid in descendants(command)[1:]:  # parents come before their children
        stat = read_stat(pid)
        if stat is None or stat.state in "DZX":
            continue
        env = environment(pid)
        told = place_of(env)
        if told is None or not any(name in env for name in _LOCAL):
            continue
        rank, world = told
        found.setdefault(rank, (pid, stat.start, env))
    return found, world


def place_of(env: Mapping[str, str]) -> Optional[tuple[int, int]]:
    """The rank and the number of ranks that a launcher gave a process."""
    for rank, size in _NAMES:
        if env.get(rank, "").isdigit() and env.get(size, "").isdigit() and int(env[rank]) < int(env[size]):
            return int(env[rank]), int(env[size])
    return None


def environment(pid: int) -> dict[str, str]:
    """The environment a process began with; empty when it is gone or not ours."""
    raw = (read_bytes(f"/proc/{pid}/environ") or b"").decode("utf-8", "replace")
    return dict(entry.split("=", 1) for entry in raw.split("\0") if "=" in entry)
