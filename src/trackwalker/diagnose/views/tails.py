"""The last meaningful line of every rank, those that say the same together: who is the odd one?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackwalker.errors import EvidenceError
from trackwalker.job.journal import open_at_last
from trackwalker.job.layout import Job
from trackwalker.logs.scanning.index import rank_files
from trackwalker.logs.scanning.lines import parse
from trackwalker.record.line_clock import label_of, last_lines, template_of

SCHEMA = "trackwalker.rank-tails/1"
_LINES = 200  # of a rank's own file that are looked at
_MOST_BYTES = 256 << 20  # of a merged log
# What the launcher writes under a rank's label when all is over: the same for everybody.
_EPILOGUE = re.compile(r"(?:NODE_EXIT|FIRST_FAILURE|JOB SUMMARY)\b")


@dataclass(frozen=True)
class Tail:
    """The ranks whose last words are alike, with one of them word by word."""

    ranks: list[int]
    text: str
    file: str
    line: int | None  # in a merged log
    host: str | None = None  # of a single rank

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Tails:
    """All ranks, the smallest group first; and who said nothing."""

    groups: list[Tail]
    ranks: int
    silent: list[int]
    says: str = ""


def tails_of(job: Job, hosts: list[str] | None = None) -> Tails:
    """Read the end of every rank's own file, else of the merged log; `hosts` are the ranks' names."""
    own = _own_files(job)
    last = {rank: found for rank, path in own.items() if (found := _last_of(path)) is not None}
    says = ""
    if not own:
        if job.log is None or not job.log.is_file():
            raise EvidenceError(f"job {job.id} has no log yet")
        last, says = _of_merged(job.log)
    groups: dict[str, list[int]] = {}
    for rank, (_, text, _) in sorted(last.items()):
        groups.setdefault(template_of(text), []).append(rank)
    names = hosts or []
    rows = [
        Tail(
            ranks,
            last[ranks[0]][1],
            last[ranks[0]][2],
            last[ranks[0]][0],
            names[ranks[0]] if len(ranks) == 1 and ranks[0] < len(names) else None,
        )
        for ranks in groups.values()
    ]
    expected = set(range(len(names))) | set(own)
    return Tails(sorted(rows, key=lambda t: (len(t.ranks), t.ranks)), len(last), sorted(expected - set(last)), says)


def _own_files(job: Job) -> dict[int, Path]:
    if job.dir is None:
        return {}
    folder = job.dir / "ranks"
    found = {int(p.stem): p for p in folder.glob("*.log") if p.stem.isdigit()} if folder.is_dir() else {}
    return found or rank_files(job.dir)


def _last_of(path: Path) -> tuple[int | None, str, str] | None:
    name = f"{path.parent.name}/{path.name}" if path.parent.name == "ranks" else path.name
    try:
        with open_at_last(path, _LINES) as file:
            lines = file.readlines(4 << 20)
    except OSError:
        return None
    text = _meaningful(reversed(lines))
    return (None, text, name) if text else None


def _of_merged(path: Path) -> tuple[dict[int, tuple[int | None, str, str]], str]:
    """By the labels of a merged log; its last line that means something for each."""
    last: dict[int, tuple[int | None, str, str]] = {}
    chatter: dict[int, tuple[int | None, str, str]] = {}
    cut, lines = last_lines(path, _MOST_BYTES)
    for number, raw in lines:
        rank = label_of(raw)
        body = parse(raw[:4096].rstrip(b"\n")) if rank is not None else None
        if rank is None or body is None or not body.text.strip() or _EPILOGUE.match(body.text):
            continue
        (chatter if body.informs else last)[rank] = (None if cut else number, body.text.strip(), path.name)
    said = "" if last or chatter else "the merged log has no labels of ranks, and there are no files of single ranks"
    return {**chatter, **last}, said


def _meaningful(lines: Iterator[bytes]) -> str:
    spare = ""
    for raw in lines:
        body = parse(raw[:4096].rstrip(b"\n"))
        if body is None or not body.text.strip() or _EPILOGUE.match(body.text):
            continue
        if not body.informs:
            return body.text.strip()
        spare = spare or body.text.strip()
    return spare
