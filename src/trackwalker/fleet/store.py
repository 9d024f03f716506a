"""The rows of all jobs on disk: Parquet files, one added with each save, and DuckDB to ask them questions.

Parquet and not a DuckDB file: of that only one process at a time may write or even read, and a server, a command and a
cron job look at the same workspace. A save writes one new file under a new name; a reader sees all of it or nothing.
Later files outrank earlier ones by job; when there are many they are written together into one.

Everything here can be made again from the job directories. Only files of our own user are believed, and they lie in a
folder that nobody else can enter: a job's owner can write what he likes into his job, and nothing into this.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from trackwalker import __version__
from trackwalker.errors import MissingToolError
from trackwalker.fleet.rows import JobRow
from trackwalker.job.trust import distrust

_FORM = 6  # of the rows: another number, and they are made anew
_MOST_PARTS = 24  # files before they become one
_MOST_WORKSPACES = 40  # those that were looked at longest ago go first
_PART = re.compile(r"rows-(\d{8})(?:-\d{8})?\.parquet$")
_TYPES = {"str": "VARCHAR", "int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN", "tuple[str": "VARCHAR[]"}
_SAFE: dict[str, Any] = {
    "autoinstall_known_extensions": "false",  # it must never fetch code
    "autoload_known_extensions": "false",
    "memory_limit": "1GB",
    "threads": "2",
}


@dataclass(frozen=True)
class Kept:
    """A row, the state of the files that it was read from, and where they lie below the workspace."""

    row: JobRow
    state: str
    log: str = ""
    folder: str = ""
    gone: bool = False


def _columns() -> dict[str, str]:
    found = {}
    for each in fields(JobRow):
        kind = str(each.type)
        found[each.name] = next((sql for name, sql in _TYPES.items() if kind.startswith(name)), "VARCHAR")
    return {**found, "state": "VARCHAR", "log": "VARCHAR", "folder": "VARCHAR", "gone": "BOOLEAN"}


COLUMNS = _columns()


def folder_for(root: Path) -> Path | None:
    """Where the rows of a workspace are kept; None for a user without a home."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return base / "trackwalker" / "fleet" / sha256(str(root.resolve()).encode()).hexdigest()[:24]


def connect() -> tuple[Any, type[Exception]]:
    """A DuckDB of our own in memory, which loads no code and reads nothing by itself; and what it raises."""
    try:
        import duckdb
    except ImportError as e:
        raise MissingToolError("questions about many jobs need duckdb: pip install 'trackwalker[fleet]'") from e
    return duckdb.connect(":memory:", config=_SAFE), duckdb.Error


class Store:
    """The rows of one workspace; every method may be called from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / f"{__version__}-{_FORM}"
        self._db, self._db_error = connect()
        self._loaded: tuple[str, ...] | None = None
        self._lock = threading.RLock()
        self._make()

    @property
    def folder(self) -> Path:
        """Where the files lie."""
        return self._folder

    def ask(self, sql: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """What a question about the tables `jobs`, `ran` (job, host) and `culprits` (job, host) gives."""
        with self._lock:
            self._load()
            found: list[tuple[Any, ...]] = self._db.execute(sql, params or None).fetchall()
            return found

    def rows(self) -> list[Kept]:
        """Every row that is kept."""
        names = list(COLUMNS)
        listed = ", ".join(f'"{name}"' for name in names)
        found = self.ask(f"SELECT {listed} FROM jobs")  # noqa: S608 - names of our own
        kept = []
        for values in found:
            held = dict(zip(names, values, strict=True))
            with contextlib.suppress(KeyError, TypeError):
                kept.append(Kept(JobRow.of_columns(held), held["state"] or "", held["log"] or "", held["folder"] or ""))
        return kept

    def put(self, rows: Iterable[Kept]) -> int:
        """Keep these rows, in place of older ones of the same jobs; how many that were."""
        lines = [_line(kept) for kept in rows]
        if not lines:
            return 0
        with self._lock:
            parts = self._parts()
            number = int(_PART.search(parts[-1])[1]) + 1 if parts else 1  # type: ignore[index]
            self._write(b"\n".join(lines), number)
            if len(parts) + 1 > _MOST_PARTS:
                self._join()
        return len(lines)

    def clear(self) -> None:
        """Forget everything; the job directories have it all."""
        with self._lock:
            for name in self._parts():
                (self._folder / name).unlink(missing_ok=True)
            self._loaded = None

    def close(self) -> None:
        """Let go of the memory."""
        with self._lock:
            self._db.close()

    def _make(self) -> None:
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.chmod(self._folder, 0o700)
            for old in self._folder.parent.iterdir():  # of another version
                if old.name[0].isdigit() and old.name != self._folder.name and old.is_dir():  # verdicts lie beside
                    for file in old.iterdir():
                        file.unlink(missing_ok=True)
                    old.rmdir()
            _forget_oldest(self._folder.parent.parent)

    def _parts(self) -> list[str]:
        """The files in their order; only ours, in a folder of ours."""
        try:
            if distrust(self._folder, self._folder.parent.parent):
                return []
            names = sorted(name for name in os.listdir(self._folder) if _PART.fullmatch(name))
        except OSError:
            return []
        return [name for name in names if not distrust(self._folder / name)]

    def _load(self) -> None:
        parts = tuple(self._parts())
        if parts == self._loaded:
            return
        known = self._loaded
        grown = known is not None and parts[: len(known)] == known
        new = parts[len(known) :] if grown and known is not None else parts
        try:
            self._take([str(self._folder / name) for name in new], afresh=not grown)
        except self._db_error:  # cut off or damaged: all of it is made again
            for name in parts:
                (self._folder / name).unlink(missing_ok=True)
            self._take([], afresh=True)
            parts = ()
        self._loaded = parts

    def _take(self, files: list[str], afresh: bool) -> None:
        """Read files into the tables; the later of two rows of a job counts, and one that is gone counts for none."""
        listed = ", ".join(f'"{name}" {kind}' for name, kind in COLUMNS.items())
        names = ", ".join(f'"{name}"' for name in COLUMNS)
        if afresh:
            self._db.execute(f"CREATE OR REPLACE TABLE jobs ({listed})")
            self._db.execute("CREATE OR REPLACE TABLE ran (job VARCHAR, host VARCHAR)")
            self._db.execute("CREATE OR REPLACE TABLE culprits (job VARCHAR, host VARCHAR)")
        if not files:
            return
        newest = (
            f"SELECT {names} FROM read_parquet(?, filename = true, union_by_name = true) "  # noqa: S608
            "QUALIFY row_number() OVER (PARTITION BY id ORDER BY filename DESC) = 1"
        )
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE fresh AS {newest}", [files])
        self._db.execute("DELETE FROM jobs WHERE id IN (SELECT id FROM fresh)")
        for table, column in (("ran", "ran_on"), ("culprits", "hosts")):
            self._db.execute(f"DELETE FROM {table} WHERE job IN (SELECT id FROM fresh)")  # noqa: S608
            self._db.execute(
                f"INSERT INTO {table} SELECT id, unnest({column}) FROM fresh WHERE NOT gone"  # noqa: S608
            )
        self._db.execute(f"INSERT INTO jobs SELECT {names} FROM fresh WHERE NOT gone")  # noqa: S608
        self._db.execute("DROP TABLE fresh")

    def _write(self, lines: bytes, number: int) -> None:
        aside = self._folder / f".{os.getpid()}-{number:08d}.json"
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(lines)
        try:
            spec = ", ".join(f"'{name}': '{kind}'" for name, kind in COLUMNS.items())
            read = f"read_json(?, format = 'newline_delimited', columns = {{{spec}}}, maximum_object_size = 67108864)"
            self._export(f"SELECT * FROM {read}", [str(aside)], number)  # noqa: S608
        finally:
            aside.unlink(missing_ok=True)

    def _export(self, sql: str, params: list[str], number: int) -> None:
        """The rows of a question as a file: written aside, then named, so that nobody sees half of it."""
        aside = self._folder / f".{os.getpid()}-{number:08d}.tmp"
        target = self._folder / f"rows-{number:08d}.parquet"
        try:
            self._db.execute(f"COPY ({sql}) TO '{_quoted(aside)}' (FORMAT parquet, COMPRESSION zstd)", params or None)
            os.chmod(aside, 0o600)
            while True:
                try:
                    os.link(aside, target)  # another process may have taken the number: its rows are kept, too
                    break
                except FileExistsError:
                    number += 1
                    target = self._folder / f"rows-{number:08d}.parquet"
        finally:
            aside.unlink(missing_ok=True)

    def _join(self) -> None:
        """One file in place of many; whoever reads meanwhile finds both, and the same rows."""
        self._load()
        old = self._loaded or ()
        last = int(_PART.search(old[-1])[1]) if old else 0  # type: ignore[index]
        self._export("SELECT * FROM jobs", [], last + 1)
        for name in old:
            (self._folder / name).unlink(missing_ok=True)
        self._loaded = None


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def _line(kept: Kept) -> bytes:
    row = kept.row
    held = {each.name: getattr(row, each.name) for each in fields(JobRow)}
    told = {**held, "state": kept.state, "log": kept.log, "folder": kept.folder, "gone": kept.gone}
    return orjson.dumps({name: _plain(value) for name, value in told.items()})


def _plain(value: Any) -> Any:
    """Text that JSON can carry: a name with half a character in it is shown with a sign in its place."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode() if not value.isascii() else value.replace("\0", "␀")
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _forget_oldest(base: Path) -> None:
    places = sorted((p for p in base.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
    for old in places[:-_MOST_WORKSPACES]:
        for part in old.glob("*/*"):
            part.unlink(missing_ok=True)
        for part in (*old.iterdir(), old):
            with contextlib.suppress(OSError):
                part.rmdir()
