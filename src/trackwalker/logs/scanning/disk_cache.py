"""What every start would make anew, kept in the user's cache folder: compiled searches, signatures read from YAML.

The name of a kept file is the hash of all it was made from, so an old one is never read for a new one. A cache that
cannot be read or written costs time and nothing else. Only files of our own user are believed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from trackwalker import __version__
from trackwalker.job.whole import write_whole

_MOST = 40  # files; the oldest go first


def folder() -> Path:
    """Where it is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "trackwalker" / "kept"


def kept(kind: str, source: bytes, make: Callable[[], bytes]) -> bytes:
    """What `make` gives, or gave when it was last called for this source."""
    try:
        path = folder() / f"{kind}-{sha256(__version__.encode() + source).hexdigest()[:40]}"
    except RuntimeError:  # a user without a home
        return make()
    known = _read(path)
    if known is not None:
        return known
    made = make()
    with contextlib.suppress(OSError):
        _write(path, made)
    return made


def forget(kind: str, source: bytes) -> None:
    """Remove what turned out to be unusable."""
    with contextlib.suppress(OSError, RuntimeError):
        (folder() / f"{kind}-{sha256(__version__.encode() + source).hexdigest()[:40]}").unlink()


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as f:
            about = os.fstat(f.fileno())
            if about.st_uid != os.geteuid() or about.st_mode & 0o022:
                return None  # somebody else could have written it
            data = f.read()
    except OSError:
        return None
    digest, body = data[:32], data[32:]
    return body if sha256(body).digest() == digest else None


def _write(path: Path, made: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, sha256(made).digest() + made, mode=0o600)
    others = sorted(path.parent.iterdir(), key=lambda p: p.stat().st_mtime)
    for old in others[:-_MOST]:
        old.unlink(missing_ok=True)
