"""The node agent as one zipapp: what is shipped to a compute node, and nothing else."""

from __future__ import annotations

import shutil
import tempfile
import zipapp
from pathlib import Path

import trackwalker

# The agent's own room and the hallway files it shares with everyone.
_CARRIED = ["__init__.py", "job/__init__.py", "job/journal.py", "job/processes.py", "node"]


def build_agent(target: Path) -> Path:
    """Write the zipapp to `target`; it needs a Python 3.9 and no packages."""
    source = Path(trackwalker.__file__).parent
    with tempfile.TemporaryDirectory(prefix="trackwalker-bundle-") as tmp:
        root = Path(tmp)
        for name in _CARRIED:
            to = root / "trackwalker" / name
            to.parent.mkdir(parents=True, exist_ok=True)
            if (source / name).is_dir():
                shutil.copytree(source / name, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source / name, to)
        (root / "__main__.py").write_text("import sys\nfrom trackwalker.node.__main__ import main\nsys.exit(main())\n")
        target.parent.mkdir(parents=True, exist_ok=True)
        zipapp.create_archive(root, target, interpreter="/usr/bin/env python3", compressed=True)
    return target
