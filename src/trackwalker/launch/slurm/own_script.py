"""A user's own batch script, queued as it is: what its `srun` lines start is recorded.

The script itself is not changed. What sbatch gets is a few lines with the script's own `#SBATCH` options, which put a
word named `srun` in front of the real one on PATH and go on as the script. A script without `srun` is recorded whole.
"""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from trackwalker.errors import MaybeQueuedError, TrackwalkerError, UsageError
from trackwalker.job.trust import ours_alone
from trackwalker.launch.command import name_of
from trackwalker.launch.slurm.client import Slurm

FOLDER = ".scripts"
_CALLS = re.compile(r"(?:^|[\s;&|(`])srun\s", re.MULTILINE)
_RECORDS = re.compile(r"trackwalker\s+record\b")
_LONGEST = 4 << 20


@dataclass(frozen=True)
class OwnScript:
    """A script and how it is recorded: `tasks` by srun's word, `whole`, or `itself` where it says so already."""

    path: Path
    text: str
    how: str


def read_script(path: Path) -> OwnScript:
    """The user's script; what is none is one clear error."""
    try:
        raw = path.read_bytes()
    except OSError as e:
        raise UsageError(f"--script {path}: {e.strerror}") from e
    if not raw.startswith(b"#!") or b"\0" in raw or len(raw) > _LONGEST:
        raise UsageError(f"--script {path}: not a batch script (its first line must begin with '#!')")
    text = raw.decode("utf-8", "surrogateescape")
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    how = "itself" if _RECORDS.search(code) else "tasks" if _CALLS.search(code) else "whole"
    return OwnScript(path.absolute(), text, how)


def directives(text: str) -> list[str]:
    """The `#SBATCH` lines that sbatch would read: those before the first command."""
    found = []
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            found.append(line)
        elif line.strip() and not line.startswith("#"):
            break
    return found


def name_words(script: OwnScript, options: list[str]) -> list[str]:
    """Options that keep the script's name in the queue, under which it is not spooled; none where a name is given."""
    given = [*options, *(word for line in directives(script.text) for word in line.split())]
    return [] if any(word.startswith(("-J", "--job-name")) for word in given) else ["-J", script.path.name]


def wrapped(script: OwnScript, folder: Path, workspace: Path, python: str) -> str:
    """What sbatch is given."""
    copy = shlex.quote(str(folder / script.path.name))
    lines = ["#!/bin/bash", *directives(script.text), f"export JOB_WORKSPACE={shlex.quote(str(workspace))}"]
    if script.how == "tasks":
        lines += [f'export PATH={shlex.quote(str(folder / "bin"))}:"$PATH"', f'exec {copy} "$@"']
    elif script.how == "whole":
        record = f"{shlex.quote(python)} -m trackwalker record --name {shlex.quote(name_of([script.path.name]))}"
        lines.append(f'exec {record} -- {copy} "$@"')
    else:
        lines.append(f'exec {copy} "$@"')
    return "\n".join(lines) + "\n"


def queue(script: OwnScript, options: list[str], words: list[str], workspace: Path) -> str:
    """Queue it with sbatch's `options` and words of its own; the job's number. A refusal leaves nothing behind."""
    batch = write(script, workspace, sys.executable)
    try:
        return Slurm().submit(batch, [*name_words(script, options), *options], words, own=True).id
    except MaybeQueuedError:
        raise
    except TrackwalkerError:
        shutil.rmtree(batch.parent, ignore_errors=True)
        raise


def write(script: OwnScript, workspace: Path, python: str) -> Path:
    """The folder that the job's first node reads; the script to queue."""
    folder = workspace.absolute() / FOLDER / secrets.token_hex(6)
    real = shutil.which("srun")
    try:
        with ours_alone():
            (folder / "bin").mkdir(parents=True)
            copy, batch, word = folder / script.path.name, folder / "batch.sh", folder / "bin" / "srun"
            if copy == batch:
                batch = folder / "queued.sh"
            copy.write_bytes(script.text.encode("utf-8", "surrogateescape"))
            batch.write_text(wrapped(script, folder, workspace.absolute(), python), errors="surrogateescape")
            ours = f"{shlex.quote(python)} -P -m trackwalker.launch.slurm.srun_word"
            word.write_text(f'#!/bin/sh\nexec {ours} {shlex.quote(real or "srun")} "$@"\n')
            for path in (copy, batch, word):
                path.chmod(0o700)
    except OSError as e:
        raise UsageError(f"cannot write {folder}: {e.strerror}; choose another --workspace") from e
    return batch
