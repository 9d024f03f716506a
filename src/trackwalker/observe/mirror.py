"""Keep a copy of a live Prometheus database that is whole at every moment, while Prometheus writes and compacts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from trackwalker.observe.tsdb import Listing, list_parts

_PART = 1 << 20
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
        self._append(self._log, self._copy / self._log.name)
        whole = all([self._copy_folder(name) for name in parts.blocks])
        whole = all([self._copy_folder(f"wal/{name}") for name in parts.checkpoints]) and whole
        for name in parts.needed:
            source = self._live / "wal" / name
            try:
                self._append(source, self._copy / "wal" / name)
            except FileNotFoundError:
                if source.exists():
                    raise
                return False  # truncated under our hands; going on would leave a hole in the sequence
        if whole:
            self._remove_replaced(parts)
        return whole

    def _copy_folder(self, name: str) -> bool:
        """Copy an immutable folder whole or not at all; False when Prometheus removed it meanwhile."""
        source, target = self._live / name, self._copy / name
        if target.exists():
            return True
        making = target.with_name(target.name + _MAKING)
        shutil.rmtree(making, ignore_errors=True)
        try:
            shutil.copytree(source, making, copy_function=_copy_durably)
            os.rename(making, target)
        except (OSError, shutil.Error):
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
                    # A full disk writes less than asked or raises; either way the next pass goes on from there.
                    left -= out.write(part) or 0
                # The copy is for the moment this machine dies, so it must not wait in its page cache.
                os.fsync(out.fileno())

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
            merged = set().union(*(_ancestors(self._copy / name / "meta.json") for name in parts.blocks))
            for name in sorted(gone & merged):
                self._remove_folder(self._copy / name)

    def _remove_folder(self, folder: Path) -> None:
        removing = folder.with_name(folder.name + _REMOVING)
        shutil.rmtree(removing, ignore_errors=True)
        os.rename(folder, removing)
        shutil.rmtree(removing)


def seed(copy: Path, live: Path) -> None:
    """Make a live database from an earlier copy, so that a run that moved to another machine goes on in one piece."""
    making = live.with_name(live.name + _MAKING)
    shutil.rmtree(making, ignore_errors=True)
    (making / "wal").mkdir(parents=True)
    making.chmod(0o700)
    if copy.is_dir():
        parts = list_parts(copy)
        for name in [*parts.blocks, *(f"wal/{c}" for c in parts.checkpoints)]:
            shutil.copytree(copy / name, making / name, copy_function=shutil.copyfile)
        for name in parts.needed:
            shutil.copyfile(copy / "wal" / name, making / "wal" / name)
    os.rename(making, live)


def _copy_durably(source: str | Path, target: str | Path) -> None:
    shutil.copyfile(source, target)
    with Path(target).open("rb+") as f:
        os.fsync(f.fileno())


def _starts_with(longer: Path, shorter: Path) -> bool:
    with longer.open("rb") as a, shorter.open("rb") as b:
        while part := b.read(_PART):
            if a.read(len(part)) != part:
                return False
    return True


def _ancestors(meta: Path) -> set[str]:
    """The blocks that were merged into this one, in any generation."""
    try:
        compaction = json.loads(meta.read_bytes())["compaction"]
        parents = {str(p["ulid"]) for p in compaction.get("parents") or ()}
        return (parents | set(compaction.get("sources") or ())) - {meta.parent.name}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
