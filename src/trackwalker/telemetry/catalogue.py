"""The recorded jobs of a workspace: what each database spans, who is in it, where it has holes, whether it is whole."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trackwalker.errors import EvidenceError
from trackwalker.job.layout import Job
from trackwalker.job.processes import is_live
from trackwalker.job.resolve import list_jobs
from trackwalker.job.run import load_run
from trackwalker.job.shards import databases
from trackwalker.observe.tsdb import list_parts, read_block
from trackwalker.telemetry.client import QueryError, Telemetry
from trackwalker.telemetry.coverage import find_gaps, hosts_seen
from trackwalker.telemetry.store import open_database
from trackwalker.telemetry.view import check_source

SCHEMA = "trackwalker.tsdb-list/1"
_AT_ONCE = 4  # mostly waiting for a Prometheus to start

Nodes = Callable[[Path], int | None]  # how many nodes a log says the job was given
Progress = Callable[[int, int], None]  # (done, of)


@dataclass(frozen=True)
class Entry:
    """One recorded job; None is "not known", never zero."""

    id: str
    name: str
    database: str
    running: bool
    bytes: int
    integrity: Literal["ok", "damaged", "empty", "unreadable", "unchecked"]
    damage: tuple[str, ...] = ()
    first: float | None = None
    last: float | None = None
    open_end: bool = False  # a write-ahead log follows that was not read: `last` is not the last
    hosts_seen: int | None = None
    hosts_expected: int | None = None
    gaps: tuple[tuple[float, float], ...] | None = None

    @property
    def seconds(self) -> float | None:
        """From the first sample to the last."""
        return None if self.first is None or self.last is None else self.last - self.first

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "seconds": self.seconds}


def list_databases(workspace: Path, nodes: Nodes, fast: bool = False, progress: Progress | None = None) -> list[Entry]:
    """Every recorded job, newest first; a database that cannot be read is an entry, too.

    `fast` starts no Prometheus: block descriptions and file sizes only, nothing of what is in a write-ahead log.
    """
    jobs = [(job, job.database) for job in list_jobs(workspace)]
    recorded = [(job, database) for job, database in jobs if database is not None]
    look = _glance if fast else _examine
    found: dict[int, Entry] = {}
    pool = ThreadPoolExecutor(_AT_ONCE, "trackwalker-list")
    try:
        futures = {pool.submit(look, _outside(j, db, nodes), db): i for i, (j, db) in enumerate(recorded)}
        for future in as_completed(futures):
            found[futures[future]] = future.result()
            if progress is not None:
                progress(len(found), len(recorded))
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C only those at work are waited for
    return [found[i] for i in range(len(recorded))]


def expected_hosts(job: Job, nodes: Nodes) -> int | None:
    """How many hosts should be in the recording: as launched, else as the log's header says."""
    try:
        record = load_run(job.run_json)
    except EvidenceError:
        record = None
    if record is not None and record.ranks:
        return len({place.host for place in record.ranks})
    return nodes(job.log) if job.log is not None else None


def _outside(job: Job, database: Path, nodes: Nodes) -> Entry:
    """What is known without looking into the database."""
    return Entry(
        id=job.id,
        name=job.name,
        database=str(database),
        running=is_live(job.state),
        bytes=_size(database),
        integrity="unchecked",
        hosts_expected=expected_hosts(job, nodes),
    )


def _examine(entry: Entry, database: Path) -> Entry:
    try:
        with open_database(database) as telemetry:
            return _measure(entry, telemetry)
    except (EvidenceError, QueryError) as e:  # not MissingToolError: without Prometheus no row can be made
        return _useless(entry, database, str(e))


def _useless(entry: Entry, database: Path, why: str) -> Entry:
    blank = re.search(r"^ is empty:|holds no samples$", why.partition(str(database))[2])
    return replace(entry, integrity="empty" if blank else "unreadable", damage=(why,))


def _measure(entry: Entry, telemetry: Telemetry) -> Entry:
    first, last = telemetry.range()
    return replace(
        entry,
        first=first,
        last=last,
        hosts_seen=len(hosts_seen(telemetry)),
        gaps=tuple(find_gaps(telemetry)),
        integrity="damaged" if telemetry.damage else "ok",
        damage=tuple(telemetry.damage),
    )


def _glance(entry: Entry, database: Path) -> Entry:
    """From the blocks' own descriptions; a block's end is the end of its time slot."""
    try:
        check_source(database)
        parts = {folder: list_parts(folder) for folder in databases(database)}
        open_end = any(
            (folder / "wal" / name).stat().st_size for folder, part in parts.items() for name in part.needed
        ) or any(part.checkpoints for part in parts.values())
    except EvidenceError as e:
        return _useless(entry, database, str(e))
    except OSError as e:  # gone meanwhile
        return _useless(entry, database, f"metrics database {database} is unreadable: {e.strerror}")
    blocks, bad = [], {}
    for folder, name in ((folder, name) for folder, part in parts.items() for name in part.blocks):
        try:
            blocks.append(read_block(folder / name))
        except (ValueError, OSError) as e:
            bad[name] = f"{name}: {e.strerror if isinstance(e, OSError) else e}"
    replaced = frozenset().union(*(b.replaces for b in blocks))
    damage = tuple(line for name, line in bad.items() if name not in replaced)
    return replace(
        entry,
        first=min((b.first / 1000 for b in blocks), default=None),
        last=max(((b.end - 1) / 1000 for b in blocks), default=None),
        open_end=open_end,
        integrity="damaged" if damage else "unchecked",
        damage=damage,
    )


def _size(folder: Path) -> int:
    """Bytes of all files; one that vanishes meanwhile (a mirror at work) does not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total
