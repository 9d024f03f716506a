"""Which files are the code: what git tracks and does not ignore, without the workspace and without secrets."""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from trackwalker.errors import UsageError

# Where there is no git to say what is ignored.
_IGNORED = {"__pycache__", "node_modules", "venv", ".venv", ".git", ".hg", ".svn", ".tox", ".nox"}
_IGNORED |= {".mypy_cache", ".pytest_cache", ".ruff_cache", ".artifacts", ".submissions"}
_SECRET_FILES = (
    *(".env", ".env.*", "*.env", "*.local.sh", ".netrc", ".pgpass", ".pypirc", ".git-credentials", ".htpasswd"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"),
    *("credentials", "credentials.json", "service-account*.json", "service_account*.json", "kubeconfig"),
    *("*.kubeconfig", "token", "*.token", "secrets.y*ml", "secrets.json", "secrets.toml"),
)
_HARMLESS = (".env.example", ".env.sample", ".env.template")
_GIT_SECONDS = 120


def code_files(root: Path, workspace: Path) -> list[bytes]:
    """Paths below `root`, relative and sorted; links are listed, folders are not."""
    below = os.fsencode(workspace.relative_to(root)) + b"/" if workspace.is_relative_to(root) else None
    found = {path for path in _files(os.fsencode(root)) if below is None or not path.startswith(below)}
    return sorted(found)


def is_secret_file(name: str) -> bool:
    """Whether a file's name says that it holds a secret; upper and lower case are the same."""
    base = name.rsplit("/", 1)[-1].lower()
    return base not in _HARMLESS and any(fnmatch.fnmatchcase(base, pattern) for pattern in _SECRET_FILES)


def _files(root: bytes) -> Iterator[bytes]:
    listed = _git_files(root)
    if not listed:  # no git here, or a folder that the repository around it ignores as a whole
        yield from _walk(root)
        return
    for path in listed:
        path = path.rstrip(b"/")
        full = os.path.join(root, path)
        if os.path.isdir(full) and not os.path.islink(full):  # a submodule, or a repository nobody added
            yield from (os.path.join(path, inner) for inner in _files(full))
        else:
            yield path


def _git_files(root: bytes) -> list[bytes]:
    git = shutil.which("git")
    if git is None:
        return []
    argv = [git, "-C", os.fsdecode(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_GIT_SECONDS, check=False)
    except subprocess.TimeoutExpired as e:
        raise UsageError(f"git does not list the files of {os.fsdecode(root)} in {_GIT_SECONDS} s") from e
    if done.returncode != 0:
        # A repository that git refuses (another owner, damage) must not be copied with all that it ignores.
        if os.path.exists(os.path.join(root, b".git")):
            why = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
            raise UsageError(f"git cannot list the files of {os.fsdecode(root)}: {why[0]}")
        return []
    return [path for path in done.stdout.split(b"\0") if path]


def _walk(root: bytes) -> Iterator[bytes]:
    ignored = {os.fsencode(name) for name in _IGNORED}
    for folder, folders, files in os.walk(root, onerror=_raise):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [name for name in folders if name not in ignored and name not in links]
        for name in (*files, *links):
            yield os.path.relpath(os.path.join(folder, name), root)


def _raise(error: OSError) -> None:
    raise error
