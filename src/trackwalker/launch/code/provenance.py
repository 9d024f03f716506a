"""Where the code came from: commit, branch, uncommitted changes, installed packages. It never stops a run.

What cannot be found out is a note, not an error. Everything is bounded, and secrets are starred before they are kept.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel

from trackwalker.job.scrub import Scrubber
from trackwalker.launch.code.sources import is_secret_file
from trackwalker.launch.code.store import FOLDER

_SECONDS = 6.0  # for git and for the packages, each in all: a repository on a slow file system holds nobody up
_MOST_PATCH = 1 << 20
_MOST_NAMES = 1000
_MOST_PACKAGES = 3000

NAME = "provenance.json"
_INVENTORY = (
    "import json; from importlib import metadata; about = [d.metadata for d in metadata.distributions()]; "
    "print(json.dumps({m['Name']: m['Version'] for m in about if m['Name']}))"
)


class Provenance(BaseModel):
    """What is known about the code of a run."""

    commit: str = ""
    branch: str = ""  # as `git status -sb` says it, with the distance to its upstream
    last_commit: str = ""
    last_commit_stat: str = ""
    changes: str = ""  # name and status of what is not committed
    patch: str = ""  # against the commit, starred and bounded; the snapshot has the files themselves
    patch_cut: int = 0  # bytes of the patch that were over the bound
    untracked: list[str] = []
    packages: dict[str, str] = {}
    image: str = ""
    image_digest: str = ""
    notes: list[str] = []

    @property
    def dirty(self) -> bool:
        """Whether the commit alone does not say what ran."""
        return bool(self.changes or self.untracked)

    def facts(self) -> dict[str, str]:
        """What stands in the run's record: the rest is in provenance.json."""
        if not self.commit:
            return {}
        dirty = "true" if self.dirty else "false"
        return {"commit": self.commit, "branch": self.branch.removeprefix("## "), "dirty": dirty}

    def save(self, folder: Path) -> None:
        """Write provenance.json."""
        (folder / NAME).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")


def provenance(root: Path, python: str | None = None, image: str = "", image_digest: str = "") -> Provenance:
    """Everything git and the interpreter `python` (None: this one, empty: none) can tell; never raises."""
    found = Provenance(image=image, image_digest=image_digest)
    with ThreadPoolExecutor(1) as aside:  # git keeps other processes busy, the packages this one
        asked = aside.submit(_ask_git, root, found)
        try:
            found.packages, notes = _packages(python)
        except (OSError, subprocess.SubprocessError, ValueError) as e:
            notes = [f"package inventory unavailable: {_said(e)}"]
        try:
            asked.result()
        except (OSError, subprocess.SubprocessError, ValueError) as e:
            found.notes.append(f"git summary unavailable: {_said(e)}")
    found.notes += notes
    return found


def code_of(root: Path, workspace: Path, python: str | None) -> Provenance:
    """The provenance of a run's code; `python` is whose packages it uses, empty where only its image knows."""
    if root.parent.resolve() == (workspace / FOLDER).resolve():  # git would answer for the repository around it
        return Provenance(notes=[f"git summary unavailable: the code is the snapshot {root.name}"])
    return provenance(root, python)


def git_summary(found: Provenance) -> str:
    """The block that upstream prints into every log, for the tools that look for it."""
    rows = ["=== GIT SUMMARY BEGIN ==="]
    rows += [f"[WARN] {note}" for note in found.notes]
    sections = (
        ("[BRANCH]", found.branch),
        ("[LAST COMMIT]", found.last_commit),
        ("[LAST COMMIT DIFF --stat]", found.last_commit_stat),
        ("[CHANGES --name-status]", found.changes),
        ("[DIFF]", found.patch + (f"\n[{found.patch_cut} more bytes]" if found.patch_cut else "")),
        ("[UNTRACKED]", "\n".join(found.untracked)),
    )
    for title, text in sections if found.commit else ():
        rows += [title, *([text.rstrip("\n")] if text else [])]
    return "\n".join([*rows, "=== GIT SUMMARY END ==="]) + "\n"


def starred(text: str) -> str:
    """Text of any kind without its secrets."""
    scrubber = Scrubber()
    scrubber.learn(text)
    return scrubber.clean(text)


def _ask_git(root: Path, found: Provenance) -> None:
    git = shutil.which("git")
    if git is None:
        found.notes.append("git summary unavailable: git is not installed")
        return
    # Reading must not start a monitor or run a configured diff program, and git refreshes the index as it compares:
    # it gets a copy of its own.
    base = [git, "-C", str(root), "-c", "core.fsmonitor=false", "-c", "core.quotepath=off", "-c", "color.ui=never"]

    deadline = time.monotonic() + _SECONDS
    index = root / _output([*base, "rev-parse", "--git-path", "index"], 1 << 16, deadline)[0].removesuffix("\n")
    with tempfile.TemporaryDirectory(prefix="trackwalker-index-") as private:
        copy = Path(private, "index")
        if index.is_file():
            shutil.copyfile(index, copy)
        _read_repository(base, str(copy), deadline, found)


def _read_repository(base: list[str], index: str, deadline: float, found: Provenance) -> None:
    def ask(*words: str, most: int = 1 << 22) -> tuple[str, int]:
        return _output([*base, *words], most, deadline, {"GIT_INDEX_FILE": index})

    found.commit = ask("rev-parse", "HEAD")[0].strip()
    found.branch = ask("status", "-sb", "--untracked-files=no")[0].splitlines()[0]
    found.last_commit = starred(ask("log", "-1", "--format=%h %s (%ad) <%an>")[0].strip())
    found.last_commit_stat = ask("show", "--stat=120", "--format=", "--no-ext-diff", "HEAD", most=1 << 14)[0].strip(
        "\n"
    )
    names = [n for n in ask("diff", "--name-only", "--no-renames", "-z", "HEAD")[0].split("\0") if n]
    hidden = [n for n in names if is_secret_file(n)]
    if names:
        found.changes = ask("diff", "--name-status", "--no-ext-diff", "HEAD", most=1 << 16)[0].strip("\n")
        without = [f":(top,exclude,literal){n}" for n in hidden[:_MOST_NAMES]]
        patch, found.patch_cut = ask(
            "diff", "--no-ext-diff", "--no-textconv", "HEAD", "--", ":/", *without, most=_MOST_PATCH
        )
        found.patch = starred(patch)
    if hidden:
        found.notes.append(f"left out of the patch, their names say secret: {', '.join(hidden[:20])}")
    others = [n for n in ask("ls-files", "-z", "--others", "--exclude-standard")[0].split("\0") if n]
    found.untracked = others[:_MOST_NAMES]
    if len(others) > _MOST_NAMES:
        found.notes.append(f"{len(others) - _MOST_NAMES} more untracked files are not listed")


def _output(argv: Sequence[str], most: int, deadline: float, extra: Mapping[str, str] | None = None) -> tuple[str, int]:
    """At most `most` bytes of what a command prints, as text, and how many there were beyond."""
    env = {**os.environ, "LC_ALL": "C", **(extra or {})}
    left = max(0.1, deadline - time.monotonic())
    done = subprocess.run(argv, capture_output=True, timeout=left, env=env, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ValueError(lines[0] if lines else f"{argv[0]} ended with exit code {done.returncode}")
    return done.stdout[:most].decode("utf-8", "backslashreplace"), max(0, len(done.stdout) - most)


def _packages(python: str | None) -> tuple[dict[str, str], list[str]]:
    """Names and versions, and what has to be said about them."""
    if python == "":
        return {}, []
    packages = sorted((_own_packages() if python is None else _packages_of(python)).items())
    more = len(packages) - _MOST_PACKAGES
    return dict(packages[:_MOST_PACKAGES]), [f"{more} more packages are not listed"] if more > 0 else []


def _own_packages() -> dict[str, str]:
    about = [d.metadata for d in metadata.distributions()]  # each look at it reads and parses the file
    return {str(m["Name"]): str(m["Version"]) for m in about if m["Name"]}


def _packages_of(python: str) -> dict[str, str]:
    listed = json.loads(_output([python, "-c", _INVENTORY], 1 << 20, time.monotonic() + _SECONDS)[0])
    return {str(name): str(version) for name, version in listed.items()}


def _said(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer in {_SECONDS:g} s"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
