"""Commits as frozen code: each becomes a folder of the workspace that holds exactly its files, made once.

`<workspace>/sweeps/code/<commit>` is `git archive` of it. The repository's working tree is neither read nor changed, so
a sweep of five commits can run while somebody goes on editing.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trackwalker.errors import UsageError

FOLDER = "code"
_GIT_S = 300.0
_SHORT = 10


@dataclass(frozen=True)
class Commit:
    """One commit of a repository."""

    sha: str
    subject: str
    asked: str  # as the user named it: v1.2, HEAD~3, 3f2a1b0

    @property
    def short(self) -> str:
        """As tables name it."""
        return self.sha[:_SHORT]

    def to_dict(self) -> dict[str, str]:
        """For the plan."""
        return {"sha": self.sha, "subject": self.subject, "asked": self.asked}


def find_commits(repository: Path, names: Sequence[str]) -> list[Commit]:
    """The commits that the names mean, in the given order; an unknown or repeated one is refused."""
    found: list[Commit] = []
    for name in names:
        if name.startswith("-"):
            raise UsageError(f"'{name}' is no commit of {repository}")
        sha = _git(repository, f"'{name}' is no commit of {repository}", "rev-parse", "--verify", f"{name}^{{commit}}")
        subject = _git(repository, f"cannot read {name}", "show", "-s", "--format=%s", sha)
        twin = next((commit for commit in found if commit.sha == sha), None)
        if twin is not None:
            raise UsageError(f"'{name}' and '{twin.asked}' are the same commit, {sha[:_SHORT]}: name it once")
        found.append(Commit(sha, subject, name))
    return found


def code_folder(sweeps: Path, commit: Commit) -> Path:
    """Where the code of a commit is, or will be."""
    return sweeps / FOLDER / commit.sha


def freeze(repository: Path, commit: Commit, sweeps: Path) -> Path:
    """The folder with a commit's files; made aside and renamed, so that it is whole or not there."""
    folder = code_folder(sweeps, commit)
    if folder.is_dir():
        return folder
    archive = _run(repository, f"cannot take the code of {commit.short}", "archive", "--format=tar", commit.sha)
    aside = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{commit.short}-", dir=folder.parent))
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(aside, filter="tar")
        if (aside / ".gitmodules").exists():
            raise UsageError(
                f"commit {commit.short} has submodules, whose code git archive leaves out: check it out with them into "
                "a folder of its own and sweep that with --code"
            )
        aside.chmod(0o755)  # mkdtemp lets only its owner in, and jobs may run as somebody else's
        os.rename(aside, folder)
    except OSError as e:
        if not folder.is_dir():  # else another sweep was faster, and made the same
            raise UsageError(f"cannot write {folder}: {e.strerror}; choose another --workspace") from e
    finally:
        if aside is not None and aside.exists():
            shutil.rmtree(aside, ignore_errors=True)
    return folder


def _git(repository: Path, wrong: str, *words: str) -> str:
    return _run(repository, wrong, *words).decode("utf-8", "replace").strip()


def _run(repository: Path, wrong: str, *words: str) -> bytes:
    git = shutil.which("git")
    if git is None:
        raise UsageError("--commits needs git, which is not installed here")
    try:
        argv = [git, "-C", str(repository), *words]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(f"{wrong}: git did not answer in {_GIT_S:g} s") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise UsageError(f"{wrong}: {said[0].removeprefix('fatal: ')}")
    return done.stdout
