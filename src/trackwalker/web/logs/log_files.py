"""The logs of a job by the names a page may ask for: only what is listed here can be opened."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from trackwalker.agent.workspace import Workspace
from trackwalker.errors import EvidenceError
from trackwalker.job.layout import Job
from trackwalker.logs.formats.workers import earlier_parts
from trackwalker.logs.scanning.index import rank_files
from trackwalker.report.text import clip, one_line

_RANK = re.compile(r"(\d{1,6})\.log$")
_SUFFIXES = (".log", ".out", ".err")
_MOST = 5000  # files of one folder


@dataclass(frozen=True)
class LogFile:
    """One log: its name within the job, and the rank it belongs to where it is one rank's."""

    name: str
    path: Path
    rank: int | None = None


def log_files(ws: Workspace, job: Job) -> list[LogFile]:
    """The main log first, then parts that were rotated away, the ranks' own logs and Ray's; links out are left out."""
    found: list[LogFile] = []
    if job.log is not None:
        found += [LogFile(path.name, path) for path in (job.log, *earlier_parts(job.log))]
    if job.dir is not None:
        found += [LogFile(path.name, path, rank) for rank, path in rank_files(job.dir).items()]
        own = [(int(match[1]), path) for path in _below(job.dir / "ranks") if (match := _RANK.fullmatch(path.name))]
        found += [LogFile(f"ranks/{path.name}", path, rank) for rank, path in sorted(own)]
        found += [LogFile(str(path.relative_to(job.dir)), path) for path in sorted(_below(job.dir / "ray_logs"))]
    return [each for each in found if each.path.is_file() and ws.inside(each.path)]


def pick(files: list[LogFile], name: str, rank: int | None) -> LogFile:
    """The log that is meant: by name, else the rank's own, else the main one."""
    if not files:
        raise EvidenceError("this job has no log yet: its launcher writes the first lines when it starts")
    if name:
        # Findings name a file without its folder.
        same = [f for f in files if f.name == name] or [f for f in files if f.path.name == name]
        if not same:
            raise EvidenceError(f"this job has no log '{clip(one_line(name), 80)}': the list on its log page has all")
        return same[0]
    own = [f for f in files if rank is not None and f.rank == rank]
    return own[0] if own else files[0]


def _below(folder: Path) -> list[Path]:
    """The logs below a folder, links to folders not followed."""
    found: list[Path] = []
    for parent, _, names in os.walk(folder):
        found += [Path(parent, name) for name in names if name.endswith(_SUFFIXES)]
        if len(found) > _MOST:
            break
    return found[:_MOST]
