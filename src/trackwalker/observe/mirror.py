"""Keep a copy of a live Prometheus database that is whole at every moment, while Prometheus writes and compacts."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from trackwalker.job.whole import write_whole
from trackwalker.observe.tsdb import Listing, list_parts, read_block

_PART = 1 << 20
# Which live database a copy follows. Each side holds a random name, the live side also that of the copy it was made
# from: a database left behind on another machine must not overwrite what was recorded since.
_NAME = "mirror-of"
# Prometheus' own suffixes for half-made and half-removed blocks: whoever opens the mirror knows to ignore them.
_MAKING, _REMOVING, _REPLACING = ".tmp-for-creation", ".tmp-for-deletion", ".tmp"


class Mirror:
    """Copies `live` to `copy`, a pass at a time; trouble with the copy is told once and tried again.

    The order of a pass makes every intermediate state readable: blocks, then checkpoints, then log segments, and only
    then the removal of what those replaced. The list of parts is taken first, so that whatever Prometheus had removed
    by then is replaced by something that is on the list.
    """

    def __init__(self, live: Path, copy: Path, log: Path, say: Callable[[str], None]) -> None:
        self._live, self._copy, self._log, self._say = live, copy, log, say
        self._same: dict[str, int] = {}  # copied file -> inode of the live file whose bytes it is known to hold
        self._trouble: str | None = None
        self._swept = False

    def sync(self) -> bool:
        """One pass; True when the copy now holds all that the live database held when the pass began."""
        try:
            whole = self._pass()
        except OSError as e:
            trouble = f"{e.strerror or e} ({Path(e.filename).name if e.filename else self._copy.name})"
            if trouble != self._trouble:
                self._say(f"mirror: {trouble}; trying again until it works, the live database goes on")
            self._trouble = trouble
            return False
        if self._trouble is not None:
            self._say("mirror: working again")
            self._trouble = None
        return whole

    def _pass(self) -> bool:
        parts = list_parts(self._live)
        # Without parents: where the job directory has vanished, making a new one would hide that.
        self._copy.mkdir(exist_ok=True)
        (self._copy / "wal").mkdir(exist_ok=True)
        if not followed_by(self._live, self._copy):
            raise FileExistsError(errno.EEXIST, "it follows another database", str(self._copy))
        self._claim()
        if self._log.exists():
            self._append(self._log, self._copy / self._log.name)
        folders = [self._copy_folder(name) for name in (*parts.blocks, *(f"wal/{c}" for c in parts.checkpoints))]
        for name in parts.needed:
            source = self._live / "wal" / name
            try:
                self._append(source, self._copy / "wal" / name)
            except FileNotFoundError:
                if source.exists():
                    raise
                return False  # truncated under our hands; going on would leave a hole in the sequence
        if not all(folders):
            return False  # merged under our hands; what it was merged into is on the next pass's list
        self._remove_replaced(parts)
        return True

    def _claim(self) -> None:
        name = _names(self._live)[:1]
        if name and name != _names(self._copy):
            write_whole(self._copy / _NAME, name[0])
        if not self._swept:
            for folder in (self._copy, self._copy / "wal"):
                for left in folder.glob("*.tmp*"):  # by a recorder that was killed at work
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
            self._swept = True

    def _copy_folder(self, name: str) -> bool:
        """Copy an immutable folder whole or not at all; False when Prometheus removed it meanwhile."""
        source, target = self._live / name, self._copy / name
        if target.exists():
            return True
        making = target.with_name(target.name + _MAKING)
        shutil.rmtree(making, ignore_errors=True)
        try:
            _copy_tree(source, making)
            os.rename(making, target)
        except OSError:
            shutil.rmtree(making, ignore_errors=True)
            if source.exists():
                raise
            return False
        return True

    def _append(self, source: Path, target: Path) -> None:
        """Bring an append-only file up to date from the size that the copy really has."""
        with source.open("rb", buffering=0) as live:
            stat = os.fstat(live.fileno())
            have = target.stat().st_size if target.exists() else 0
            if self._same.get(str(target)) != stat.st_ino:
                # First seen, or rewritten by Prometheus (it repairs a torn segment after a crash): trust no offset.
                if have and not _starts_with(source, target):
                    making = target.with_name(target.name + _REPLACING)
                    _copy_durably(source, making)
                    os.replace(making, target)
                    have = target.stat().st_size
                self._same[str(target)] = stat.st_ino
            if have >= stat.st_size and target.exists():
                return
            live.seek(have)
            with target.open("ab", buffering=0) as out:
                left = stat.st_size - have
                while left > 0 and (part := live.read(min(left, _PART))):
                    left -= len(part)
                    view = memoryview(part)
                    while view:  # a disk that fills up takes a part, then raises; the next pass goes on from there
                        view = view[out.write(view) or 0 :]
                self._flush(out.fileno(), target)

    def _flush(self, fd: int, target: Path) -> None:
        # The copy is for the moment this machine dies, so it must not wait in its page cache.
        try:
            os.fsync(fd)
        except OSError:
            del self._same[str(target)]  # pages may be lost behind a right-looking size: compare before going on
            raise

    def _remove_replaced(self, parts: Listing) -> None:
        """Remove what a newer part contains; a part that merely vanished from the live side is kept."""
        there = list_parts(self._copy)
        for name in there.segments:  # in ascending order, so that what is left stays a sequence
            if int(name) <= parts.covered:
                (self._copy / "wal" / name).unlink()
        for name in there.checkpoints:
            if name not in parts.checkpoints and int(name[11:]) < parts.covered:
                self._remove_folder(self._copy / "wal" / name)
        gone = set(there.blocks) - set(parts.blocks)
        if gone:
            merged = frozenset().union(*(_merged_into(self._copy / name) for name in parts.blocks))
            for name in sorted(gone & merged):
                self._remove_folder(self._copy / name)

    def _remove_folder(self, folder: Path) -> None:
        removing = folder.with_name(folder.name + _REMOVING)
        shutil.rmtree(removing, ignore_errors=True)
        os.rename(folder, removing)
        shutil.rmtree(removing)


def seed(copy: Path, live: Path, log: Path) -> None:
    """Make a live database from an earlier copy, so that a run that moved to another machine goes on in one piece."""
    making = live.with_name(live.name + _MAKING)
    shutil.rmtree(making, ignore_errors=True)
    (making / "wal").mkdir(parents=True)
    making.chmod(0o700)
    if copy.is_dir():
        parts = list_parts(copy)
        for name in (*parts.blocks, *(f"wal/{c}" for c in parts.checkpoints)):
            _copy_tree(copy / name, making / name)
        for name in parts.needed:
            shutil.copyfile(copy / "wal" / name, making / "wal" / name)
        if (copy / log.name).exists():
            shutil.copyfile(copy / log.name, log)
    (making / _NAME).write_text("\n".join([uuid.uuid4().hex, *_names(copy)]))
    os.rename(making, live)


def followed_by(live: Path, copy: Path) -> bool:
    """Whether this copy may follow this live database: it has so far, was its source, or is new."""
    return set(_names(copy)) <= set(_names(live))


def _names(folder: Path) -> list[str]:
    try:
        return (folder / _NAME).read_text().split()
    except FileNotFoundError:
        return []


def _copy_tree(source: Path, target: Path) -> None:
    # Not shutil.copytree: it gathers errors into one long text, and a full disk should be one plain OSError.
    target.mkdir()
    for entry in os.scandir(source):
        if entry.is_dir():
            _copy_tree(source / entry.name, target / entry.name)
        else:
            _copy_durably(source / entry.name, target / entry.name)


def _copy_durably(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    with target.open("rb+") as f:
        os.fsync(f.fileno())


def _starts_with(longer: Path, shorter: Path) -> bool:
    with longer.open("rb") as a, shorter.open("rb") as b:
        while part := b.read(_PART):
            if a.read(len(part)) != part:
                return False
    return True


def _merged_into(block: Path) -> frozenset[str]:
    try:
        return read_block(block).replaces
    except (OSError, ValueError):
        return frozenset()
