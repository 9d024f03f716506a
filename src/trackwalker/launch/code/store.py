"""Where snapshots live: blobs by content, trees of hard links to them. Nobody holds a lock.

A blob appears whole under its final name, a tree by one rename; whoever comes second takes what is there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
from pathlib import Path

from trackwalker.job.trust import distrust

FOLDER = ".artifacts"  # of a workspace; upstream's name for it
BLOBS = "blobs"
UNFINISHED = ".tmp-"
_CHUNK = 1 << 20
# A file system without hard links, another user's blob (protected_hardlinks), a blob with too many links already.
_NO_LINK = {errno.EPERM, errno.EMLINK, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EACCES}


class Store:
    """The blobs of one workspace, and what this process added to them."""

    def __init__(self, workspace: Path) -> None:
        self.path = workspace / FOLDER
        self.blobs = self.path / BLOBS
        self.added: list[Path] = []
        self.added_bytes = 0

    def unfinished(self) -> Path:
        """A name for something that is not whole yet."""
        return self.path / f"{UNFINISHED}{secrets.token_hex(8)}"

    def blob(self, digest: str, executable: bool) -> Path:
        """Where that content is. A link shares its mode with the blob, so an executable one is a blob of its own."""
        return self.blobs / digest[:2] / (digest + (".x" if executable else ""))

    def keep(self, source: bytes, executable: bool) -> str:
        """See to it that the store has the file's content, where it can; returns its hash."""
        digest = _hash(source)
        return digest if os.path.lexists(self.blob(digest, executable)) else self._copy(source, executable)

    def link(self, digest: str, executable: bool, to: bytes, source: bytes) -> None:
        """Put the content at `to`: linked to the blob, or copied from `source` where the blob is not to be had.

        A blob's name says what it should hold, not what it holds: it is hashed here, and one whose owner could change
        it later is not linked to. Raises FileNotFoundError when neither has that content any more.
        """
        blob = self.blob(digest, executable)
        try:
            if not distrust(blob, self.path.parent) and _hash(os.fsencode(blob)) == digest:
                os.link(blob, to)
                return
        except OSError as e:
            if e.errno not in _NO_LINK and not isinstance(e, FileNotFoundError):
                raise
        shutil.copyfile(source, to)
        os.chmod(to, _mode(executable))
        if _hash(to) != digest:
            os.unlink(to)
            raise FileNotFoundError(errno.ENOENT, "its content has changed", os.fsdecode(source))

    def forget(self, blobs: list[Path]) -> None:
        """Remove those blobs that no tree holds; empty folders stay, another submitter may be about to use them."""
        for blob in blobs:
            with contextlib.suppress(OSError):
                if blob.stat().st_nlink == 1:
                    blob.unlink()

    def _copy(self, source: bytes, executable: bool) -> str:
        # The hash is taken of what is written: an editor that saves meanwhile changes the hash, never a blob.
        temporary = self.unfinished()
        digest = hashlib.sha256()
        try:
            with open(source, "rb") as read, temporary.open("xb") as write:
                while chunk := read.read(_CHUNK):
                    digest.update(chunk)
                    write.write(chunk)
                size = write.tell()
            temporary.chmod(_mode(executable))
            blob = self.blob(digest.hexdigest(), executable)
            blob.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(temporary, blob)
            except FileExistsError:
                return digest.hexdigest()
            except OSError as e:
                if e.errno not in _NO_LINK:
                    raise
                os.replace(temporary, blob)
        finally:
            temporary.unlink(missing_ok=True)
        self.added.append(blob)
        self.added_bytes += size
        return digest.hexdigest()


def remove_tree(tree: Path) -> None:
    """Remove a read-only tree. Only folders become writable: a file's mode is its blob's, and so every tree's."""
    for folder, _, _ in os.walk(tree):
        os.chmod(folder, stat.S_IRWXU)
    shutil.rmtree(tree)


def _mode(executable: bool) -> int:
    return 0o555 if executable else 0o444


def _hash(path: bytes) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
