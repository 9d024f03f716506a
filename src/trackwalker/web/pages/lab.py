"""The lab's scoreboard: how often the diagnosis is right where the truth is known."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trackwalker.errors import UsageError
from trackwalker.web.data.cache import Cache
from trackwalker.web.pages.render import in_thread, page, workspace_of

try:
    from trackwalker.lab.scoring import scoreboard
    from trackwalker.lab.scoring.results import read_results
    from trackwalker.lab.scoring.table import Table
except ModuleNotFoundError:  # a distribution of its own
    _APART = ["the scoreboard needs the lab: pip install trackwalker-lab"]
else:
    _APART = []

FOLDER = "lab"  # in the workspace: what `lab score --out` wrote
# A checkout has the published scoreboard beside the code; an installed package has not.
_PUBLISHED = Path(__file__).parents[4] / "docs" / "reference" / "scoreboard.md"
_MOST = 12
_EMPHASIS = re.compile(r"\*{1,2}([^*\s](?:[^*]*[^*\s])?)\*{1,2}")
_LARGEST = 256 << 20


@dataclass(frozen=True)
class Part:
    """A heading with paragraphs and tables below it, in their order."""

    title: str
    body: list[str | Table] = field(default_factory=list)


@dataclass(frozen=True)
class Scores:
    """What there is to show."""

    source: str
    parts: list[Part]
    problems: list[str]


_KEPT: Cache[Scores] = Cache(4)


def routes() -> list[BaseRoute]:
    """One page."""
    return [Route("/lab", scores)]


async def scores(request: Request) -> Response:
    """The results files of the workspace's lab folder, else the published scoreboard, else how to make one."""
    folder = workspace_of(request).root / FOLDER
    found = await in_thread(_find, folder)
    return page(request, "lab.html.j2", found=found, folder=str(folder))


def _find(folder: Path) -> Scores:
    if _APART:
        return Scores("", [], _APART)
    files = sorted(p for p in folder.glob("*.json") if p.is_file() and not p.is_symlink())[:_MOST]
    files = [p for p in files if p.stat().st_size <= _LARGEST]
    if files:
        found = _KEPT.get(folder, _states(files), lambda: _scored(files))
        if found.parts:
            return found
    if _PUBLISHED.is_file():
        return _KEPT.get(_PUBLISHED, _states([_PUBLISHED]), lambda: _published(_PUBLISHED.read_text(encoding="utf-8")))
    return Scores("", [], [])


def _states(files: list[Path]) -> tuple[tuple[str, int, int], ...]:
    return tuple((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files)


def _scored(files: list[Path]) -> Scores:
    read, problems = [], []
    for path in files:
        try:
            read.append(read_results(path))
        except UsageError as e:
            problems.append(str(e))
    parts = [Part(table.title, [table, *table.notes]) for table in scoreboard.tables(read)] if read else []
    return Scores(", ".join(p.name for p in files), parts, problems)


def _published(text: str) -> Scores:
    """The scoreboard of the documentation: headings, paragraphs and tables are all that it is made of."""
    parts: list[Part] = []
    for block in text.split("\n\n"):
        lines = [line for line in block.strip().splitlines() if line.strip()]
        if lines and lines[0].startswith("#"):
            parts.append(Part(lines.pop(0).lstrip("# ")))
        if not lines:
            continue
        if not parts:
            parts.append(Part("Scoreboard"))
        parts[-1].body.append(_table(parts[-1].title, lines) if lines[0].startswith("|") else _plain(" ".join(lines)))
    return Scores("docs/reference/scoreboard.md", parts, [])


def _table(title: str, lines: list[str]) -> Table:
    rows = [[_plain(cell) for cell in line.strip().strip("|").replace("\\|", "\0").split("|")] for line in lines]
    return Table(title, rows[0], [row for row in rows[1:] if not all(set(cell) <= set("-: ") for cell in row)])


def _plain(text: str) -> str:
    return _EMPHASIS.sub(r"\1", text.replace("\0", "|").replace("`", "").replace("&lt;", "<")).strip()
