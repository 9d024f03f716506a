"""The code as it was at submit: a read-only tree named by its content, every file stored once.

`<workspace>/.artifacts/<hash>/…` is the tree, its files are hard links into `.artifacts/blobs/`. A second submit of the
same code finds the tree and copies nothing; one changed file costs one file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trackwalker.errors import MaybeQueuedError, TrackwalkerError, UsageError
from trackwalker.job.trust import distrust, make_folder, ours_alone
from trackwalker.launch.code.sources import code_files, is_secret_file
from trackwalker.launch.code.store import Store, remove_tree


class Entry(NamedTuple):
    """One file or link of the tree."""

    path: bytes
    kind: bytes  # f: file, x: executable file, l: link
    mark: bytes  # the content's hash, or the link's target


@dataclass(frozen=True)
class Snapshot:
    """A tree in the store, and what went into it."""

    hash: str
    path: Path
    files: int
    created: bool  # False: the tree was there already
    added: tuple[Path, ...]  # blobs that were new to the store
    added_bytes: int
    left_out: tuple[str, ...]  # files whose name says that they hold a secret
    outside: tuple[str, ...]  # links that leave the tree: what they point at is not frozen
    stamp: int  # when the tree was last taken, by us: another submitter changes it


def take_snapshot(root: Path, workspace: Path) -> Snapshot:
    """Copy the code below `root` into the workspace's store; a failure is one clear error and leaves nothing behind."""
    root, workspace = Path(os.path.realpath(root)), Path(os.path.realpath(workspace))
    if root == workspace:
        raise UsageError(f"the workspace is the code folder itself ({root}): choose another --workspace")
    store = Store(workspace)
    if root.parent == store.path:
        return _again(root)
    building = store.unfinished()
    try:
        store.path.parent.mkdir(parents=True, exist_ok=True)
        make_folder(store.path, shared=True)
        with ours_alone():
            taken = _take(os.fsencode(root), code_files(root, workspace), store, building)
    except BaseException as e:
        if building.exists():
            remove_tree(building)
        store.forget(store.added)
        if isinstance(e, OSError):
            where = os.fsdecode(e.filename) if isinstance(e.filename, str | bytes) else str(root)
            raise UsageError(f"cannot copy the code into {store.path}: {where}: {e.strerror}") from e
        raise
    return taken


@contextlib.contextmanager
def frozen(code: Path | None, workspace: Path) -> Iterator[Snapshot | None]:
    """The snapshot of a job's code; taken back when the job was not queued, kept when that is not known."""
    taken = take_snapshot(code, workspace) if code is not None else None
    try:
        yield taken
    except MaybeQueuedError:
        raise
    except TrackwalkerError:
        if taken is not None:
            discard(taken)
        raise


def discard(snapshot: Snapshot) -> None:
    """Take back a snapshot whose job was never queued, unless it was there before or somebody else took it since."""
    with contextlib.suppress(OSError):
        if snapshot.created and snapshot.path.stat().st_mtime_ns == snapshot.stamp:
            remove_tree(snapshot.path)
            Store(snapshot.path.parents[1]).forget(list(snapshot.added))


def touch(tree: Path) -> bool:
    """Start the grace period of a tree again, for one of long ago as well; False when there is no such tree."""
    try:
        os.utime(tree)
    except PermissionError:
        return True  # another user's, whose time we cannot set
    except FileNotFoundError:
        return False
    return True


def _again(tree: Path) -> Snapshot:
    """A snapshot of a snapshot is itself."""
    if why := foreign_tree(tree):
        raise UsageError(f"the code snapshot {tree.name[:12]} is not used: {why}")
    if not touch(tree):
        raise UsageError(f"the code snapshot {tree} is gone")
    files = sum(len(files) for _, _, files in os.walk(tree))
    return Snapshot(tree.name, tree, files, False, (), 0, (), (), tree.stat().st_mtime_ns)


def _take(root: bytes, wanted: list[bytes], store: Store, building: Path) -> Snapshot:
    left_out = {path for path in wanted if is_secret_file(os.fsdecode(path))}
    entries = [entry for path in wanted if path not in left_out and (entry := _entry(root, path, store))]
    if not entries:
        raise UsageError(f"there is no code to copy in {os.fsdecode(root)}")
    name = _tree_hash(entries)
    if _not_ours(store.path / name, entries):  # somebody else was there first: his tree is his to change
        name = _tree_hash(entries, own=str(os.geteuid()).encode())
    tree = store.path / name
    if why := _not_ours(tree, entries):
        raise UsageError(f"the code cannot be kept in {store.path}: {why}")
    created = not tree.is_dir() and _build(root, entries, store, building, tree)
    if not touch(tree):  # cleaned up since we saw it
        created = _build(root, entries, store, building, tree)
    return Snapshot(
        hash=name,
        path=tree,
        files=len(entries),
        created=created,
        added=tuple(store.added),
        added_bytes=store.added_bytes,
        left_out=tuple(map(_shown, sorted(left_out))),
        outside=tuple(_shown(entry.path) for entry in entries if _leaves(entry)),
        stamp=tree.stat().st_mtime_ns,
    )


def _entry(root: bytes, path: bytes, store: Store) -> Entry | None:
    full = os.path.join(root, path)
    try:
        mode = os.lstat(full).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None  # tracked, but deleted in the working tree
    if stat.S_ISLNK(mode):
        return Entry(path, b"l", os.readlink(full))
    if not stat.S_ISREG(mode):
        return None
    executable = bool(mode & stat.S_IXUSR)
    return Entry(path, b"x" if executable else b"f", store.keep(full, executable).encode())


def _not_ours(tree: Path, entries: list[Entry]) -> str:
    """What is wrong with a tree that is there already; empty without one."""
    if not os.path.lexists(tree):
        return ""
    top = os.fsencode(tree)
    for entry in entries:
        path = os.path.join(top, entry.path)
        try:
            if entry.kind == b"l":
                fits = os.readlink(path) == entry.mark
            elif why := distrust(Path(os.fsdecode(path)), tree.parent):
                return why
            else:
                with open(path, "rb") as file:
                    fits = hashlib.file_digest(file, "sha256").hexdigest() == entry.mark.decode()
        except OSError as e:
            return f"{_shown(path)}: {e.strerror}"
        if not fits:
            return f"{_shown(path)} is not what the tree's name says"
    return ""


def foreign_tree(tree: Path) -> str:
    """Why the code in a snapshot may not be run; its content is what it was as long as it is ours."""
    found = (Path(folder) / name for folder, below, files in os.walk(tree) for name in ["", *below, *files])
    return next((why for path in found if not path.is_symlink() and (why := distrust(path, tree.parent))), "")


def _tree_hash(entries: list[Entry], own: bytes = b"") -> str:
    digest = hashlib.sha256(b"trackwalker.tree/1\0" + own)
    for entry in entries:
        digest.update(b"\0".join((*entry, b"")))  # no path and no link can hold a NUL
    return digest.hexdigest()


def _build(root: bytes, entries: list[Entry], store: Store, building: Path, tree: Path) -> bool:
    """Make the tree apart and rename it into place; False when another submitter was faster."""
    top = os.fsencode(building)
    os.mkdir(top)
    for entry in entries:
        to = os.path.join(top, entry.path)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        if entry.kind == b"l":
            os.symlink(entry.mark, to)
        else:
            _link(os.path.join(root, entry.path), entry, store, to)
    for folder, _, _ in os.walk(top, topdown=False):
        os.chmod(folder, 0o555)  # noqa: S103
    try:
        os.rename(building, tree)
    except OSError as e:
        if e.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        remove_tree(building)
        return False
    return True


def _link(source: bytes, entry: Entry, store: Store, to: bytes) -> None:
    executable = entry.kind == b"x"
    try:
        store.link(entry.mark.decode(), executable, to, source)
    except FileNotFoundError:
        raise UsageError(f"{_shown(source)} changed while it was copied: submit again") from None


def _leaves(entry: Entry) -> bool:
    if entry.kind != b"l":
        return False
    end = os.path.normpath(os.path.join(os.path.dirname(entry.path), entry.mark))
    return end.startswith(b"/") or end == b".." or end.startswith(b"../")


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
