"""Logs beside the main one: Ray's worker files, parts that were rotated away; and how they are joined to it.

The main log can end before the run does: Ray's driver stops forwarding lines while the workers go on writing theirs.
"""

from __future__ import annotations

import os
import re
import time
from functools import lru_cache
from pathlib import Path

import numpy as np

from trackwalker.errors import EvidenceError
from trackwalker.job.dialects import read_step
from trackwalker.logs.scanning.index import LogIndex, index_logs
from trackwalker.logs.scanning.steps import Steps

_TAIL = 1 << 18
_NODE = re.compile(rb"\[Node (\d{1,6}) @ ")
_PART = re.compile(r"\.(\d{1,3})$")
_TICK_NS = 2_000_000_000  # a folder that changed less than this ago may change again without another time


def worker_files(directory: Path | None, hosts: list[str]) -> dict[int, Path]:
    """By rank, the worker file that got furthest (`ray_logs/<host>/`, also under `session_*/logs/`)."""
    found: dict[int, tuple[int, Path]] = {}
    if directory is None or not (directory / "ray_logs").is_dir():
        return {}
    for host in sorted(p for p in (directory / "ray_logs").iterdir() if p.is_dir()):
        for path in sorted([*host.glob("worker*.out"), *host.glob("session_*/logs/worker*.out")]):
            try:
                with path.open("rb") as f:
                    front = f.read(4096)
            except OSError:
                continue
            node = _NODE.search(front)
            rank = int(node[1]) if node else (hosts.index(host.name) if host.name in hosts else None)
            last = last_step(path)
            if rank is not None and (node or last is not None):
                found[rank] = max(found.get(rank, (-1, path)), (-1 if last is None else last, path))
    return {rank: path for rank, (_, path) in sorted(found.items())}


def last_step(path: Path) -> int | None:
    """The last step a file tells of, from its end alone."""
    try:
        with path.open("rb") as f:
            f.seek(max(0, f.seek(0, 2) - _TAIL))
            lines = f.read(_TAIL).split(b"\n")[:-1]  # the last has no end
    except OSError:
        return None
    for raw in reversed(lines):
        if (told := read_step(raw.decode("utf-8", "replace"))) is not None and told.step is not None:
            return told.step
    return None


def earlier_parts(log: Path) -> list[Path]:
    """Parts of a log that were rotated away (`X.log.1`, `X.log.2`), the newest first."""
    try:
        changed = os.stat(log.parent).st_mtime_ns
    except OSError:
        return []
    # A workspace may hold a hundred thousand logs: it is listed once for all of them, not once for each.
    fresh = time.time_ns() - changed < _TICK_NS
    try:
        names = (_rotated.__wrapped__ if fresh else _rotated)(str(log.parent), changed).get(log.name, ())
    except OSError:  # it may be entered, but not listed
        return []
    parts = {int(name.rpartition(".")[2]): log.parent / name for name in names}
    return [parts[number] for number in sorted(parts) if parts[number].is_file()]


@lru_cache(maxsize=8)
def _rotated(folder: str, changed: int) -> dict[str, list[str]]:
    """The names in a folder that end in a number, by what stands before it, as they were at a time of its change."""
    found: dict[str, list[str]] = {}
    for name in os.listdir(folder):
        if _PART.search(name):
            found.setdefault(name.rpartition(".")[0], []).append(name)
    return found


def add_workers(index: LogIndex, workers: dict[int, Path]) -> Steps | None:
    """Read the workers' own files: their errors and saves join the index; their steps are returned."""
    first, *others = workers
    try:
        found = index_logs(workers[first], {rank: workers[rank] for rank in others})
    except EvidenceError:
        return None
    known = {(h.signature.id, h.rank) for h in index.hits}
    for hit in found.hits:
        hit.rank = first if hit.rank is None and hit.file == workers[first].name else hit.rank
        if (hit.signature.id, hit.rank) not in known:
            index.hits.append(hit)
    facts, theirs = index.facts, found.facts
    facts.saves |= theirs.saves
    facts.restored = theirs.restored if facts.restored is None else facts.restored
    facts.planned = facts.planned or theirs.planned
    for name, value in theirs.config.items():
        facts.config.setdefault(name, value)
    index.files += found.files
    index.size += found.size
    last = found.steps.last_by_rank
    if 0 in last and first not in last:  # a file of its own carries no label
        last[first] = last.pop(0)
    found.steps.rank = first
    return found.steps


def add_earlier(index: LogIndex, part: Path) -> None:
    """Put an older part of the same log in front: its header and steps count, its line numbers are its own."""
    try:
        older = index_logs(part)
    except EvidenceError:
        return
    facts, theirs = index.facts, older.facts
    facts.header = {**facts.header, **theirs.header}
    facts.hosts = facts.hosts or theirs.hosts
    facts.config = {**facts.config, **theirs.config}
    facts.environment = {**facts.environment, **theirs.environment}
    facts.saves |= theirs.saves
    facts.restored = theirs.restored if facts.restored is None else facts.restored
    facts.planned = facts.planned or theirs.planned
    index.hits = [*older.hits, *index.hits]
    index.files.append(part.name)
    index.size += older.size
    # Counted from the main log's first line the older part lies below one: "before" and "after" stay true across both.
    index.earlier[part.name] = older.lines + sum(index.earlier.values())
    index.lines += older.lines
    facts.steps = _joined(older.steps, index.steps, -index.earlier[part.name])


def _joined(older: Steps, newer: Steps, shift: int) -> Steps:
    return Steps(
        rank=newer.rank if newer.rank is not None else older.rank,
        dialect=newer.dialect or older.dialect,
        total=newer.total or older.total,
        first_number=newer.first_number if newer.dialect else older.first_number,
        step=np.concatenate([older.step, newer.step]),
        seconds=np.concatenate([older.seconds, newer.seconds]),
        tgs=np.concatenate([older.tgs, newer.tgs]),
        loss=np.concatenate([older.loss, newer.loss]),
        has_loss=np.concatenate([older.has_loss, newer.has_loss]),
        line=np.concatenate([older.line + shift, newer.line]),
        last_by_rank={**older.last_by_rank, **newer.last_by_rank},
        others=newer.others,
    )
