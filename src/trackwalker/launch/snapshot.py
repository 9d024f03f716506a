"""The code as it was at submit: a read-only tree named by its content, every file stored once.

`<workspace>/.artifacts/<hash>/…` is the tree, its files hard links into `.artifacts/blobs/`. A second submit of the same
code finds the tree and copies nothing; one changed file costs one file. Submitters need no lock: a blob appears whole under
its final name, a tree by one rename, and who comes second takes what is there.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import hashlib
import os
import secrets
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trackwalker.errors import UsageError

STORE = ".artifacts"
BLOBS = "blobs"
UNFINISHED = ".tmp-"
# Where there is no git to say what is ignored.
_IGNORED_DIRS = {"__pycache__", "node_modules", "venv", ".venv", ".git", ".hg", ".svn", ".tox", ".nox", STORE}
_IGNORED_DIRS |= {".mypy_cache", ".pytest_cache", ".ruff_cache", ".submissions"}
_SECRET_FILES = (
    *(".env", ".env.*", "*.env", "*.local.sh", ".netrc", ".pgpass", ".pypirc", ".git-credentials", ".htpasswd"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"),
    *("credentials", "credentials.json", "service-account*.json", "service_account*.json", "kubeconfig"),
    *("*.kubeconfig", "token", "*.token", ".token", "secrets.y*ml", "secrets.json", "secrets.toml"),
)
_HARMLESS = (".env.example", ".env.sample", ".env.template", ".env.dist")
_WHOLE = 8 << 20  # files up to this size are read once and kept in memory between hash and copy


class Entry(NamedTuple):
    """One file or link of the tree."""

    path: bytes  # relative
    kind: str  # f: file, x: executable file, l: link
    mark: bytes  # content hash, or the link's target


@dataclass(frozen=True)
class Snapshot:
    """A tree in the store, and what went into it."""

    hash: str
    path: Path
    files: int
    copied: int  # files that were new to the store
    copied_bytes: int
    left_out: tuple[str, ...]  # files whose name says that they hold a secret
    outside: tuple[str, ...]  # links that leave the tree: what they point at is not frozen


def take_snapshot(root: Path, workspace: Path) -> Snapshot:
    """Copy the code below `root` into the workspace's store; a failure leaves nothing behind and is one clear error."""
    root, workspace = Path(os.path.realpath(root)), Path(os.path.realpath(workspace))
    if root == workspace:
        raise UsageError(f"the workspace is the code folder itself ({root}); choose a --workspace inside or outside it")
    job = _Snapshotting(root, workspace / STORE)
    try:
        return job.run(_wanted(root, workspace))
    except OSError as e:
        where = os.fsdecode(e.filename) if e.filename is not None else str(root)
        raise UsageError(f"cannot copy the code to {workspace / STORE}: {where}: {e.strerror}") from e
    finally:
        job.tidy()


def is_secret_file(name: str) -> bool:
    """Whether a file's name says that it holds a secret; case does not matter."""
    base = name.rsplit("/", 1)[-1].lower()
    return base not in _HARMLESS and any(fnmatch.fnmatchcase(base, pattern) for pattern in _SECRET_FILES)


class _Snapshotting:
    def __init__(self, root: Path, store: Path) -> None:
        self.root = os.fsencode(root)
        self.store = store
        self.building = store / f"{UNFINISHED}{secrets.token_hex(8)}"
        self.copied: list[tuple[Path, int]] = []
        self.done = False

    def run(self, wanted: Iterator[bytes]) -> Snapshot:
        entries: list[Entry] = []
        left_out: list[str] = []
        (self.store / BLOBS).mkdir(parents=True, exist_ok=True)
        for path in sorted(set(wanted)):
            if is_secret_file(os.fsdecode(path)):
                left_out.append(_shown(path))
            elif entry := self._take(path):
                entries.append(entry)
        name = _tree_hash(entries)
        tree = self.store / name
        if not tree.is_dir():
            self._build(entries, tree)
        # The clock of the grace period starts again, for a tree of long ago as well. Another user's we may not touch.
        with contextlib.suppress(PermissionError):
            os.utime(tree)
        self.done = True
        return Snapshot(
            hash=name,
            path=tree,
            files=len(entries),
            copied=len(self.copied),
            copied_bytes=sum(size for _, size in self.copied),
            left_out=tuple(left_out),
            outside=tuple(_shown(e.path) for e in entries if e.kind == "l" and self._leaves(e)),
        )

    def tidy(self) -> None:
        """Remove what an unfinished attempt left; nobody else's tree can hold a link to a blob that has only one."""
        if self.building.exists():
            remove_tree(self.building)
        if self.done:
            return
        for blob, _ in self.copied:
            with contextlib.suppress(OSError):
                if blob.stat().st_nlink == 1:
                    blob.unlink()
        for folder in (*{blob.parent for blob, _ in self.copied}, self.store / BLOBS, self.store):
            with contextlib.suppress(OSError):
                folder.rmdir()  # only what is empty

    def _take(self, path: bytes) -> Entry | None:
        full = os.path.join(self.root, path)
        try:
            info = os.lstat(full)
        except FileNotFoundError:
            return None  # tracked, but deleted in the working tree
        if stat.S_ISLNK(info.st_mode):
            return Entry(path, "l", os.readlink(full))
        if not stat.S_ISREG(info.st_mode):
            return None
        kind = "x" if info.st_mode & stat.S_IXUSR else "f"
        return Entry(path, kind, self._keep(full, kind).encode())

    def _keep(self, full: bytes, kind: str) -> str:
        """The content's hash, with its blob in the store. What is hashed is what is copied, whoever is editing."""
        with open(full, "rb") as source:
            content = source.read(_WHOLE + 1)
            digest = hashlib.sha256(content)
            if len(content) <= _WHOLE:
                if not self._blob(digest.hexdigest(), kind).exists():
                    with self._new_blob() as (blob, path):
                        blob.write(content)
                        blob.flush()
                        self._publish(path, digest.hexdigest(), kind)
                return digest.hexdigest()
            while chunk := source.read(_WHOLE):
                digest.update(chunk)
            if self._blob(digest.hexdigest(), kind).exists():
                return digest.hexdigest()
            source.seek(0)
            digest = hashlib.sha256()
            with self._new_blob() as (blob, path):
                while chunk := source.read(_WHOLE):
                    digest.update(chunk)
                    blob.write(chunk)
                blob.flush()
                self._publish(path, digest.hexdigest(), kind)
            return digest.hexdigest()

    @contextlib.contextmanager
    def _new_blob(self) -> Iterator[tuple[object, Path]]:
        raise NotImplementedError
        yield

    def _blob(self, digest: str, kind: str) -> Path:
        # A hard link shares its mode with the blob: the same content, executable and not, is two blobs.
        return self.store / BLOBS / digest[:2] / (digest + (".x" if kind == "x" else ""))
