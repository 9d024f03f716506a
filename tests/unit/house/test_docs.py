"""The pages say what the code does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from trackwalker.diagnose.causes.playbook import load_playbooks

ROOT = Path(__file__).parents[3]


def test_the_metrics_page_is_what_the_collectors_declare() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "metrics-page"))
    assert (ROOT / "docs" / "reference" / "metrics.md").read_text() == script["page"](), "run scripts/metrics-page"


def test_playbooks_ask_only_for_metrics_that_someone_collects() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    known = set(re.findall(r"^\| `(\w+)`", page, re.M))
    asked = {m for p in load_playbooks() for t in p.tests for m in t.metrics}
    others = ("ray_", "gpu_row_remap_")  # Ray's own are upstream's; rows are also counted by exporters of others
    assert {m for m in asked - known if not m.startswith(others)} == set()


def test_every_link_of_the_readme_leads_somewhere() -> None:
    for target in re.findall(r"\]\((\S+?)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target


def test_every_picture_of_a_page_is_there_and_small() -> None:
    shown = [(p, t) for p in (ROOT / "docs").rglob("*.md") for t in re.findall(r"!\[[^]]+\]\((\S+?)\)", p.read_text())]
    assert shown
    for page, target in shown:
        assert (page.parent / target).stat().st_size < 150_000, target
