"""What the store holds and who needs it: only what nobody can need any more is ever removed.

Needed is what a job directory, a submission whose job may still start, or a manifest in a submission names, and
everything younger than the grace period: its job may not have been written down yet.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trackwalker.job.layout import NAME_FORM
from trackwalker.launch.code.store import FOLDER, Store, remove_tree

SUBMISSIONS = ".submissions"
GRACE_S = 24 * 3600.0
_NAMED = re.compile(rb"\b(?:[0-9a-f]{64}|artifact_[0-9]{8}[-_][0-9]{6}_[0-9a-f]{4})\b")  # ours, and upstream's
_MOST = 16 << 20  # of one file of a submission; what is larger is no order and no manifest

Ended = Callable[[str], bool]  # whether the scheduler says of a job id that it is over for good


@dataclass(frozen=True)
class Item:
    """A tree, a spent submission or what a killed submitter left, and why it stays or may go."""

    path: Path
    state: Literal["referenced", "fresh", "foreign", "orphan"]
    holders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stock:
    """Everything in the store; `blobs` are those that no kept tree holds."""

    items: tuple[Item, ...]
    blobs: tuple[Path, ...]
    blob_bytes: int

    @property
    def orphans(self) -> list[Item]:
        """What may go."""
        return [item for item in self.items if item.state == "orphan"]


def take_stock(workspace: Path, ended: Ended, grace_s: float = GRACE_S) -> Stock:
    """Look at everything, change nothing."""
    store = Store(workspace)
    oldest = time.time() - grace_s
    spent = {folder for folder in _folders(workspace / SUBMISSIONS) if _is_spent(folder, ended)}
    holders = _holders(workspace, spent)
    trees = [entry for entry in _entries(store.path) if entry != store.blobs]
    items = [_judge(tree, tuple(sorted(holders.get(tree.name, ()))), oldest) for tree in trees]
    items += [_judge(folder, (), oldest) for folder in sorted(spent)]
    going = [item.path for item in items if item.state == "orphan"]
    blobs = _loose_blobs(store, going, oldest)
    return Stock(tuple(items), tuple(blobs), sum(blob.lstat().st_size for blob in blobs))


def sweep(workspace: Path, ended: Ended, grace_s: float = GRACE_S) -> Stock:
    """Remove what nobody needs; returns what was removed."""
    store = Store(workspace)
    removed = []
    for item in take_stock(workspace, ended, grace_s).orphans:
        if item.path.parent.name == SUBMISSIONS:
            shutil.rmtree(item.path)
        elif not item.path.is_dir():
            item.path.unlink(missing_ok=True)
        elif not _remove(item.path, store, workspace, ended, grace_s):
            continue
        removed.append(item)
    blobs = _loose_blobs(store, [], time.time() - grace_s)
    size = sum(blob.lstat().st_size for blob in blobs)
    store.forget(blobs)
    return Stock(tuple(removed), tuple(blobs), size)


def _remove(tree: Path, store: Store, workspace: Path, ended: Ended, grace_s: float) -> bool:
    # Out of sight by one rename, then one more look: a submitter that took the tree meanwhile has touched it, one that
    # comes now makes it anew. Nobody ever sees half a tree.
    aside = store.unfinished()
    os.rename(tree, aside)
    spent = {folder for folder in _folders(workspace / SUBMISSIONS) if _is_spent(folder, ended)}
    if tree.name in _holders(workspace, spent) or aside.stat().st_mtime > time.time() - grace_s:
        with contextlib.suppress(OSError):  # there again already: ours is the spare one
            os.rename(aside, tree)
            return False
    remove_tree(aside)
    return True


def _judge(path: Path, holders: tuple[str, ...], oldest: float) -> Item:
    if holders:
        return Item(path, "referenced", holders)
    info = path.lstat()
    if info.st_mtime > oldest:
        return Item(path, "fresh")
    return Item(path, "orphan" if os.geteuid() in (0, info.st_uid) else "foreign")


def _holders(workspace: Path, spent: set[Path]) -> dict[str, set[str]]:
    """Who names which tree: job directories by link and record, submissions by anything they hold."""
    found: dict[str, set[str]] = {}
    for folder in _folders(workspace):
        if folder.name.startswith("."):
            continue
        link = folder / "artifact"
        names = set(_names(folder / "run.json"))
        if link.is_symlink():
            target = Path(os.path.normpath(folder / link.readlink()))
            # Upstream links to a folder inside the tree, too.
            names |= {part for part in target.parts[-3:] if part != FOLDER}
        for name in names:
            found.setdefault(name, set()).add(folder.name)
    for folder in _folders(workspace / SUBMISSIONS):
        if folder not in spent:
            for name in {name for file in folder.iterdir() for name in _names(file)}:
                found.setdefault(name, set()).add(f"{SUBMISSIONS}/{folder.name}")
    return found


def _is_spent(folder: Path, ended: Ended) -> bool:
    """Whether a submission's job directory was made and is gone, and its job is over. Without a trace of the job it may
    be one that still waits, or a manifest for somebody to apply by hand."""
    link = folder / "job"
    if not link.is_symlink() or link.exists():
        return False
    match = NAME_FORM.match(link.readlink().name)
    if match is None or any(
        folder.parents[1].glob(f"{match['id']}-*/run.json")
    ):  # renamed, with its throughput perhaps
        return False
    return ended(match["id"])


def _names(file: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        if file.is_file() and file.stat().st_size <= _MOST:
            yield from (name.decode() for name in _NAMED.findall(file.read_bytes()))


def _loose_blobs(store: Store, going: list[Path], oldest: float) -> list[Path]:
    links: Counter[int] = Counter()
    for tree in going:
        for folder, _, files in os.walk(tree):
            links.update(os.lstat(os.path.join(folder, name)).st_ino for name in files)
    found = []
    for blob in sorted(store.blobs.glob("*/*")):
        info = blob.lstat()
        if info.st_nlink - 1 <= links[info.st_ino] and info.st_mtime < oldest:
            found.append(blob)
    return found


def _folders(place: Path) -> list[Path]:
    return [path for path in _entries(place) if path.is_dir() and not path.is_symlink()]


def _entries(place: Path) -> list[Path]:
    try:
        return sorted(place.iterdir())
    except FileNotFoundError:
        return []
