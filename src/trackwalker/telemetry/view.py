"""A private, writable view of a metrics database: the original is only read, and its bad parts are left out."""

from __future__ import annotations

import errno
import re
import shutil
import time
from pathlib import Path

from trackwalker.errors import EvidenceError
from trackwalker.job.shards import databases
from trackwalker.observe.tsdb import Block, list_parts, read_block
from trackwalker.telemetry.wal import PAGE, salvage, torn_at_end

_TRIES = 5
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_CORRUPTION = re.compile(r"corruption in segment (\S+) at (\d+)")


class View:
    """The view of `source` in `data`; `damage` has a line for everything that could not be used."""

    def __init__(self, source: Path, data: Path) -> None:
        self.source, self.data = source, data
        self.named = source  # what to call it
        self.blocks: list[Block] = []
        self.damage: list[str] = []
        self._segments: dict[str, str] = {}  # name in the view -> name in the source
        self._checkpoint: str | None = None
        self._last_size = 0
        self._last_page = b""

    def build(self) -> None:
        """Copy the log, link the blocks; a database that is being mirrored meanwhile is taken as of one moment."""
        for left in reversed(range(_TRIES)):
            shutil.rmtree(self.data, ignore_errors=True)
            self.blocks, self.damage = [], []
            try:
                self.data.mkdir()
                # The log before the blocks: the mirror adds a block before it removes the log behind it.
                self._copy_wal()
                self._link_blocks()
            except FileNotFoundError:
                if not left:
                    raise
                time.sleep(0.1)  # a part was replaced under our hands
            else:
                return

    def _copy_wal(self) -> None:
        """Copy what counts of the write-ahead log, numbered without holes, as Prometheus stops at a hole."""
        parts = list_parts(self.source)
        wal = self.data / "wal"
        shutil.rmtree(wal, ignore_errors=True)
        wal.mkdir()
        self._checkpoint = parts.checkpoints[-1] if parts.checkpoints else None
        if self._checkpoint:
            _copy_files(self.source / "wal" / self._checkpoint, wal / self._checkpoint)
        first = parts.covered + 1
        self._segments = {}
        for theirs in parts.needed:
            ours = f"{first + len(self._segments):08d}"
            try:
                shutil.copyfile(self.source / "wal" / theirs, wal / ours)
                self._segments[ours] = theirs
            except OSError as e:
                self._note(f"wal: segment {theirs}: {_reason(e)}; it is left out")
        self._note_holes(first, parts.needed)
        if self._segments:
            with (wal / max(self._segments)).open("rb") as f:
                self._last_size = f.seek(0, 2)
                f.seek(max(0, self._last_size - 1) // PAGE * PAGE)
                self._last_page = f.read()

    def _note_holes(self, first: int, there: tuple[str, ...]) -> None:
        expected = first
        for number in map(int, there):
            if number > expected:
                upto = f" to {number - 1:08d}" if number - 1 > expected else ""
                self._note(f"wal: segment {expected:08d}{upto} missing")
            expected = number + 1

    def _link_blocks(self) -> None:
        bad = {}
        for name in list_parts(self.source).blocks:
            try:
                self.blocks.append(self._link_block(name))
            except (ValueError, OSError) as e:
                bad[name] = f"{name}: {_reason(e)}; this block is left out"
        replaced = frozenset().union(*(b.replaces for b in self.blocks))
        for name, line in bad.items():
            shutil.rmtree(self.data / name, ignore_errors=True)
            if name not in replaced:
                self._note(line)

    def _link_block(self, name: str) -> Block:
        source, target = self.source / name, self.data / name
        block = read_block(source)
        for part in ("index", "chunks"):
            if not (source / part).exists():
                if not source.exists():
                    raise FileNotFoundError(errno.ENOENT, "the block was merged meanwhile", str(source))
                raise ValueError(f"{part} is missing")
        (target / "chunks").mkdir(parents=True)
        for small in ("meta.json", "tombstones"):
            if (source / small).exists():
                shutil.copyfile(source / small, target / small)
        # Blocks never change, so links do: Prometheus maps these files for reading only.
        for big in (source / "index", *sorted((source / "chunks").iterdir())):
            (target / big.relative_to(source)).symlink_to(big.resolve())
        return block

    def drop_block(self, name: str, why: str) -> None:
        """Leave a block out that Prometheus could not use."""
        self.blocks = [b for b in self.blocks if b.name != name]
        shutil.rmtree(self.data / name)
        self._note(f"{name}: {why}; this block is left out")

    def drop_tombstones(self, name: str) -> None:
        """Leave a block's list of deletions out: without it the block has a little more, not less."""
        (self.data / name / "tombstones").unlink()
        self._note(f"{name}/tombstones: unreadable, left out; deleted samples may show again")

    def drop_wal(self, why: str) -> None:
        """Leave the whole log out."""
        shutil.rmtree(self.data / "wal", ignore_errors=True)
        self._segments, self._checkpoint = {}, None
        self._note(f"wal: {why}; the write-ahead log is left out")

    @property
    def wal_bytes(self) -> int:
        """How large the log is."""
        return sum(p.stat().st_size for p in (self.data / "wal").rglob("*") if p.is_file())

    def move(self, data: Path) -> None:
        """Go on with a folder of blocks that holds everything, the log too."""
        self.blocks = [read_block(data / name) for name in list_parts(data).blocks]
        self.data, self._segments, self._checkpoint = data, {}, None

    def add(self, data: Path) -> None:
        """Take the blocks of a folder in as well."""
        for name in list_parts(data).blocks:
            (data / name).rename(self.data / name)
            self.blocks.append(read_block(self.data / name))

    @property
    def has_wal(self) -> bool:
        """Whether there is anything in the log."""
        return bool(self._segments or self._checkpoint)

    def bad_spot(self, said: str) -> str | None:
        """Where Prometheus found the log corrupt, in the source's names; None if not, or only at its unfinished end."""
        match = _CORRUPTION.search(said)
        if match is None:
            return None
        spot, offset = Path(match[1]), int(match[2])
        if spot.parent.name != "wal":
            return f"wal/{spot.parent.name}/{spot.name}"
        in_last_page = offset >= self._last_size - len(self._last_page)
        if spot.name == max(self._segments, default="") and in_last_page and torn_at_end(self._last_page):
            return None
        return f"wal/{self._segments.get(spot.name, spot.name)}"

    def salvage_wal(self) -> None:
        """A fresh view, its log without the records that cannot be read."""
        self.build()
        files = {self.data / "wal" / ours: theirs for ours, theirs in self._segments.items()}
        if self._checkpoint:
            folder = self.data / "wal" / self._checkpoint
            files |= {path: f"{self._checkpoint}/{path.name}" for path in sorted(folder.iterdir())}
        newest = self.data / "wal" / max(self._segments, default="")
        for path, name in files.items():
            if lost := salvage(path, path == newest):
                self._note(f"wal/{name}: {lost} bytes are unreadable and left out, the records around them are kept")

    def _note(self, line: str) -> None:
        self.damage.append(" ".join(line.split()))


def _copy_files(source: Path, target: Path) -> None:
    target.mkdir()
    for path in sorted(source.iterdir()):
        shutil.copyfile(path, target / path.name)


def check_source(source: Path) -> None:
    """Refuse a folder that cannot be a metrics database, with the reason."""
    if not source.is_dir():
        raise EvidenceError(f"metrics database {source} does not exist: was the job recorded?")
    try:
        empty = all(is_empty(part) for part in databases(source))
    except OSError as e:
        raise explain(e, source) from e
    if empty:
        raise EvidenceError(f"metrics database {source} is empty: no blocks and no write-ahead log")


def is_empty(source: Path) -> bool:
    """Whether nothing is in the database of one recorder."""
    parts = list_parts(source)
    if parts.blocks or parts.checkpoints:
        return False
    return not any((source / "wal" / name).stat().st_size for name in parts.segments)


def explain(error: OSError, source: Path) -> EvidenceError:
    """Why no view could be made, and what helps."""
    if error.errno in _NO_ROOM:
        return EvidenceError(f"no room for a private copy of {source}: set TMPDIR to a larger disk")
    return EvidenceError(f"metrics database {source} is unreadable: {error.strerror or error}")


def _reason(error: OSError | ValueError) -> str:
    """Why one part cannot be used; what concerns the whole view is raised again."""
    if isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and error.errno in _NO_ROOM):
        raise error
    return str(error.strerror if isinstance(error, OSError) else error)
