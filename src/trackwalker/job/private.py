"""What is this user's own on this machine: a folder that nobody else can read, and secrets kept in it.

Standard library only and Python 3.9 syntax: the node agent carries this file.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from trackwalker.job.trust import distrust_open
from trackwalker.job.whole import write_whole

METRICS_TOKEN = "TRACKWALKER_METRICS_TOKEN_FILE"  # noqa: S105 - a name
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def state_home() -> Path:
    """Where this user's state is; not in a workspace, which others may share."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "trackwalker"


def read_private(path: Path) -> str:
    """A secret's text; PermissionError says in words why a file that others could read or write is not taken."""
    with path.open(encoding="utf-8") as file:
        why = distrust_open(file.fileno(), path)
        if not why and os.fstat(file.fileno()).st_mode & _OTHERS:
            why = f"{path} can be read by others (chmod 600)"
        if why:
            raise PermissionError(1, why)
        return file.read()


def kept_secret(name: str, make: Callable[[], str]) -> str:
    """A secret of this user: the one that is kept, or a new one; where nothing can be kept it is new every time."""
    path = state_home() / name
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return read_private(path)
    made = make()
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, made, mode=0o600)
    return made


def metrics_token() -> str:
    """The bearer token that the agents ask of their scrapers, where the user names a file with one; else empty."""
    path = os.environ.get(METRICS_TOKEN)
    try:
        return read_private(Path(path)).strip() if path else ""
    except UnicodeDecodeError:
        raise OSError(22, f"{path} does not hold a token") from None
