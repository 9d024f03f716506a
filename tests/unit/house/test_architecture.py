"""The house: imports point along the flow, the page about it is true."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name("lint-imports")
    env = {**os.environ, "PYTHONPATH": str(root / "src")}
    return subprocess.run(
        [tool, "--no-cache"], cwd=root, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.starts_processes
def test_imports_point_along_the_flow() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("stats/segments.py", "from trackwalker.diagnose import engine"),
        ("logs/scanning/reader.py", "from trackwalker.telemetry import store"),
        ("record/status.py", "from trackwalker.diagnose import case"),
        ("node/agent/agent.py", "import numpy"),
        ("node/agent/agent.py", "from trackwalker.job import resolve"),
        ("diagnose/engine.py", "from trackwalker.launch import plan"),
        ("report/html.py", "from trackwalker.cli import app"),
    ],
)
def test_an_import_the_wrong_way_is_noticed(tmp_path: Path, file: str, line: str) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    target = tmp_path / "src" / "trackwalker" / file
    text = target.read_text()
    marker = "from __future__ import annotations\n"
    target.write_text(text.replace(marker, f"{marker}\n{line}\n", 1))
    result = lint(tmp_path)
    assert result.returncode != 0, result.stdout
    assert "BROKEN" in result.stdout


def test_the_architecture_page_names_every_folder() -> None:
    page = (ROOT / "docs" / "why" / "architecture.md").read_text()
    package = ROOT / "src" / "trackwalker"
    folders = {p.name for p in package.iterdir() if p.is_dir() and p.name != "__pycache__"}
    named = set(re.findall(r"`(\w+)/", page))
    assert folders <= named, f"not on the page: {folders - named}"


def test_no_folder_holds_more_files_than_one_can_keep_in_mind() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "rooms"))
    found = script["rooms"](ROOT / "src" / "trackwalker")
    assert {room: files for room, (files, _) in found.items() if files > script["MOST_FILES"]} == {}


def test_every_folder_says_what_it_holds() -> None:
    doors = (ROOT / "src").rglob("__init__.py")
    assert [str(p) for p in doors if not p.read_text().lstrip().startswith('"""')] == []


def test_no_file_is_longer_than_four_hundred_lines() -> None:
    long = {str(p): n for p in (ROOT / "src").rglob("*.py") if (n := len(p.read_text().splitlines())) > 400}
    assert not long


def test_above_the_record_nobody_reads_a_log_for_facts() -> None:
    """Lines may be shown (reports, pages) or counted (`record.line_clock`); facts come from the record."""
    reads = re.compile(r"\bread_lines\(|\bindex_logs\(|\blog\.path\.open|\bjob\.log\.open|\blog\.open\(")
    package = ROOT / "src" / "trackwalker"
    rooms = ("diagnose", "perf", "sweep", "fleet", "watch")
    found = [p.relative_to(package).as_posix() for room in rooms for p in (package / room).rglob("*.py")
             if reads.search(p.read_text())]  # fmt: skip
    assert found == []
