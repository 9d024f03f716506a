"""Putting skills where an agent finds them, without touching what a person changed there."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trackwalker.agent.skills.skills import Skill
from trackwalker.errors import UsageError
from trackwalker.job.whole import write_whole

# Claude Code reads the first, and so does Cursor; the second is what the other agents agreed on.
FOLDERS = {"claude": Path(".claude/skills"), "agents": Path(".agents/skills")}
LEDGER = ".trackwalker-skills.json"  # what we wrote, by checksum: tells an old file of ours from a changed one
_SCHEMA = "trackwalker.skills-installed/1"

What = Literal["added", "updated", "unchanged", "replaced", "removed", "kept"]


@dataclass(frozen=True)
class Done:
    """What happened to one file."""

    path: str  # inside the folder of skills
    what: What


def install(skills: list[Skill], into: Path, force: bool = False) -> list[Done]:
    """Write the skills' files; one that a person changed is kept unless forced, one that we no longer ship goes."""
    try:
        return _install(skills, into, force)
    except OSError as e:
        raise UsageError(f"cannot install into {into}: {e.strerror}: {e.filename}") from e


def _install(skills: list[Skill], into: Path, force: bool) -> list[Done]:
    into.mkdir(parents=True, exist_ok=True)
    ours = {f"{s.name}/{p.relative_to(s.folder)}": p.read_bytes() for s in skills for p in s.files}
    written = _ledger(into)
    done = [Done(path, _put(into, path, data, written.get(path), force)) for path, data in sorted(ours.items())]
    done += [Done(path, _drop(into / path, was)) for path, was in sorted(written.items()) if path not in ours]
    kept = {d.path for d in done if d.what == "kept"}
    ledger = {path: _sum(data) for path, data in ours.items() if path not in kept}
    ledger |= {path: was for path, was in written.items() if path in kept}
    text = json.dumps({"schema": _SCHEMA, "files": dict(sorted(ledger.items()))}, indent=1)
    _write(into / LEDGER, text.encode() + b"\n")
    return done


def _put(into: Path, path: str, data: bytes, was: str | None, force: bool) -> What:
    target = into / path
    if _linked(target, into):
        return "kept"  # a link leads to a place of somebody else
    there = _sum(target.read_bytes()) if target.is_file() else None
    if there == _sum(data):
        return "unchanged"
    if there is not None and there != was and not force:
        return "kept"
    _write(target, data)
    if there is None:
        return "added"
    return "updated" if there == was else "replaced"


def _drop(target: Path, was: str) -> What:
    if not target.is_file() or target.is_symlink():
        return "removed"
    if _sum(target.read_bytes()) != was:
        return "kept"
    target.unlink()
    for folder in list(target.parents)[:2]:
        if not any(folder.iterdir()):
            folder.rmdir()
    return "removed"


def _linked(target: Path, into: Path) -> bool:
    return any(p.is_symlink() for p in (target, *target.parents) if into in p.parents)


def _write(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, data)


def _ledger(into: Path) -> dict[str, str]:
    try:
        files = json.loads((into / LEDGER).read_text(encoding="utf-8"))["files"]
        return {str(k): str(v) for k, v in files.items() if not Path(k).is_absolute() and ".." not in Path(k).parts}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return {}  # then every file that differs counts as a person's


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
