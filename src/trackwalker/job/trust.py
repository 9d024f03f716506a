"""Whose files these are: what others could have written is never executed, resumed, adopted or believed as policy.

A file or folder is trusted when it belongs to this user or to root, no group and nobody else may write to it, and no
link stands on the way to it. Of the folders above it only those below the workspace count, by the same rule, except
that others may write to a sticky one of ours: there they can add names, but not replace ours.

Reading is another matter: anybody's job may be looked at. Standard library only and Python 3.9 syntax: the node agent
carries this file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def distrust(path: Path, below: Path | None = None, friend: int | None = None) -> str:
    """Why nothing may be done because of what `path` says; empty when it is ours alone.

    `below` is the folder (a workspace) from which on every step is looked at; without it only the path itself is.
    `friend` is a user who counts as ourselves: on a node, the one whose order we already carry out.
    """
    path = Path(os.path.abspath(path))
    top = Path(os.path.abspath(below)) if below is not None else path.parent
    if top not in path.parents:
        return f"{path} does not lie in {top}"
    steps = [path, *path.parents]
    steps = steps[: steps.index(top)]
    for step in reversed(steps):
        try:
            held = os.lstat(step)
        except OSError as e:
            return f"{step}: {e.strerror}"
        if why := _foreign(step, held, step != path, friend):
            return why
    return ""


def distrust_open(descriptor: int, name: object) -> str:
    """The same for a file that is open already: what is read is then what was judged."""
    return _foreign(name, os.fstat(descriptor), shared=False)


def _foreign(step: object, held: os.stat_result, shared: bool, friend: int | None = None) -> str:
    if stat.S_ISLNK(held.st_mode):
        return f"{step} is a link"
    if held.st_uid not in (0, os.geteuid(), friend):
        return f"{step} belongs to {_name(held.st_uid)}"
    if held.st_mode & _OTHERS_WRITE and not (shared and held.st_mode & stat.S_ISVTX):
        return f"{step} can be written by others (chmod go-w)"
    return ""


def shared_badly(workspace: Path) -> str:
    """What is unsafe about the mode of a workspace, in one line; empty when nothing is or there is none yet."""
    try:
        held = os.stat(workspace)
    except OSError:
        return ""
    if held.st_mode & _OTHERS_WRITE and not held.st_mode & stat.S_ISVTX:
        return (
            f"others can rename and replace the jobs of {workspace}: chmod +t it, "
            f"or give everybody a folder of their own below it (docs/why/security.md)"
        )
    return ""


@contextlib.contextmanager
def ours_alone() -> Iterator[None]:
    """What is made inside can be written by us only, whatever umask the user has; others may read it as before."""
    before = os.umask(0o022)
    os.umask(before | 0o022)
    try:
        yield
    finally:
        os.umask(before)


def make_folder(path: Path, friend: int | None = None, shared: bool = False) -> None:
    """A folder of ours: made now, or made by us before; one that somebody else put there raises PermissionError.

    `shared` takes a sticky one that others may add to.
    """
    with ours_alone():
        try:
            path.mkdir()
            return
        except FileExistsError:
            pass
    why = _foreign(path, os.lstat(path), shared, friend)
    if why:
        raise PermissionError(errno.EPERM, f"not used: {why}", str(path))


_users_umask = -1  # what subprocess takes for "as ours is"


def keep_to_ourselves() -> None:
    """The same as `ours_alone` for the rest of this process; what the user's programs make is theirs to say."""
    global _users_umask
    _users_umask = os.umask(0o022)
    os.umask(_users_umask | 0o022)


def users_umask() -> int:
    """For the programs of the user that we start."""
    return _users_umask


def _name(uid: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return f"user {uid}"
