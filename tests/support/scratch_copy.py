"""A scratch copy of the package, in which a recipe of CONTRIBUTING.md is performed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_PLACES = 2
# Imported by nobody but the lab's own commands, and half of all files.
_WITHOUT = shutil.ignore_patterns("lab", "*.tmp")


class Scratch:
    """A copy of the package that a recipe changes; it counts the files that the recipe touches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "src" / "trackwalker"
        self.touched: set[str] = set()
        shutil.copytree(ROOT / "src" / "trackwalker", self.package, ignore=_WITHOUT)

    def add(self, name: str, text: str) -> None:
        """A new file of the package."""
        path = self.package / name
        assert not path.exists(), name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.touched.add(name)

    def put_before(self, name: str, anchor: str, text: str) -> None:
        """Insert text before the first `anchor` of a file."""
        path = self.package / name
        old = path.read_text()
        assert anchor in old, f"{name} has no {anchor!r}"
        path.write_text(old.replace(anchor, text + anchor, 1))
        self.touched.add(name)

    def append(self, name: str, text: str) -> None:
        """Add text at the end of a file."""
        path = self.package / name
        path.write_text(path.read_text().rstrip("\n") + "\n" + text)
        self.touched.add(name)

    def python(self, *argv: str, cwd: Path | None = None, code: int = 0, **env: str) -> str:
        """What a Python with this copy prints."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TRACKWALKER_", "JOB_WORKSPACE"))}
        path = os.pathsep.join([str(self.package.parent), str(ROOT / "tests" / "support")])
        done = subprocess.run(
            [sys.executable, *argv],
            cwd=cwd or self.folder,
            env={**inherited, "PYTHONPATH": path, "COLUMNS": "200", "NO_COLOR": "1", **env},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, f"exit {done.returncode}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def trackwalker(self, *words: str, cwd: Path | None = None, code: int = 0, **env: str) -> str:
        """What a command of this copy prints."""
        run = "import sys; from trackwalker.cli.app import main; sys.exit(main())"
        return self.python("-c", run, *words, cwd=cwd, code=code, **env)

    def few_places(self) -> None:
        """A recipe touches something, and no more files than it may."""
        assert self.touched
        assert len(self.touched) <= MOST_PLACES, f"the recipe touches {sorted(self.touched)}"
