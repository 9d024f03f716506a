"""The pages of docs/: in four parts, each reachable from the index, none longer than one can read."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PARTS = ("start", "how-to", "reference", "why")
PAGES = sorted(p for part in PARTS for p in (DOCS / part).glob("*.md"))
# Longer than 200 lines, each with its reason; a page that is not here may not be.
LONG = {
    "tour.md": "made by running it",
    "metrics.md": "one row for each metric, made from the collectors",
    "alerts.md": "one row for each alert",
}


def links(page: Path) -> list[str]:
    return [t for t in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if not re.match(r"[a-z]+:|#", t)]


def test_every_page_lies_in_one_of_the_four_parts() -> None:
    assert [p.name for p in DOCS.glob("*.md")] == ["index.md"]
    assert len(PAGES) > 30


def test_every_page_is_reachable_from_the_index_and_the_navigation() -> None:
    index = {(DOCS / target).resolve() for target in links(DOCS / "index.md")}
    assert [p.name for p in PAGES if p.resolve() not in index] == []
    told = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    listed = {page for part in told if isinstance(part, dict) for pages in part.values() for page in pages}
    assert listed == {p.relative_to(DOCS).as_posix() for p in PAGES}


@pytest.mark.parametrize("page", [DOCS / "index.md", *PAGES], ids=lambda p: p.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    gone = [t for t in links(page) if not (page.parent / t.partition("#")[0]).exists()]
    assert gone == []


def test_the_scoreboard_is_what_the_history_says() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "scoreboard"), run_name="scoreboard")["page"]()
    assert (DOCS / "reference" / "scoreboard.md").read_text() == made, "run scripts/scoreboard"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_page_is_short_or_says_why_not(page: Path) -> None:
    lines = len(page.read_text().splitlines())
    assert lines <= 200 or page.name in LONG, f"{page.name}: {lines} lines"


def test_what_the_page_about_places_names_is_there() -> None:
    rows = re.findall(
        r"^\| [^|]+ \| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \|$", (DOCS / "why" / "where.md").read_text(), re.M
    )
    assert len(rows) >= 10
    gone = [(p, word) for p, word, _ in rows if word not in (ROOT / "src" / "trackwalker" / p).read_text()]
    assert gone == []
    assert [tests for _, _, tests in rows if not (ROOT / tests).exists()] == []
