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


WRONG_WAYS = {
    "stats/segments.py": "trackwalker.diagnose",
    "logs/scanning/reader.py": "trackwalker.telemetry",
    "record/status.py": "trackwalker.diagnose",
    "node/agent/agent.py": "trackwalker.job.resolve",
    "node/agent/services.py": "numpy",
    "diagnose/engine.py": "trackwalker.launch",
    "report/html.py": "trackwalker.cli",
}


@pytest.mark.starts_processes
def test_imports_the_wrong_way_are_noticed(tmp_path: Path) -> None:
    """All in one copy, since reading the tree is what costs; that the tree itself is right `make check` says."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    marker = "from __future__ import annotations\n"
    for file, module in WRONG_WAYS.items():
        target = tmp_path / "src" / "trackwalker" / file
        text = target.read_text()
        assert marker in text, file
        target.write_text(text.replace(marker, f"{marker}\nimport {module}\n", 1))
    result = lint(tmp_path)
    assert result.returncode != 0, result.stdout
    said = [
        (file, module) for file, module in WRONG_WAYS.items()
        if not re.search(rf"trackwalker\.{file[:-3].replace('/', '[.]')} -> {module}\b", result.stdout)
    ]  # fmt: skip
    assert said == [], result.stdout


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
