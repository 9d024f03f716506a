"""The node agent as one zipapp: what is shipped to a compute node, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import marshal
import zipfile
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

import trackwalker
from trackwalker.job import dialects, gpus

# The agent's own room, the hallway files it shares with everyone, and the hook that goes around MaxText in an image.
_SHARED = (
    "__init__",
    "dialects",
    "gpus",
    "journal",
    "payload",
    "private",
    "processes",
    "shards",
    "tfevents",
    "trust",
    "whole",
)
_HALLWAY = ["__init__.py", *(f"job/{name}.py" for name in _SHARED)]
_TRAINERS = [f"trainers/{name}" for name in ("__init__.py", "capture.py", "progress.py", "stacks.py", "maxtext")]
_CARRIED = [*_HALLWAY, "node", *_TRAINERS]
_MAIN = """import sys
if sys.argv[1:2] == ["maxtext"]:
    del sys.argv[1]
    from trackwalker.trainers.maxtext.__main__ import main
else:
    from trackwalker.node.__main__ import main
sys.exit(main())
"""
_UNCHECKED = (1).to_bytes(4, "little")  # byte code that is known by its source's hash, and believed


def build_agent(target: Path) -> Path:
    """Write the zipapp to `target`; it needs a Python 3.9 and no packages.

    The byte code of this Python lies beside the sources: compiling them takes longer than everything else the agent
    does before it starts the ranks. Another version of Python passes over it and reads the sources.
    """
    source = Path(trackwalker.__file__).parent
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("__main__.py", _MAIN)
            for path in carried(source):
                name = path.relative_to(source.parent).as_posix()
                archive.write(path, name)
                archive.writestr(f"{name}c", _byte_code(path))
            for path in (source / "job" / gpus.NAME, *sorted((source / "node").rglob("*.json"))):
                archive.write(path, path.relative_to(source.parent).as_posix())
            # The dialects as they are here and now, with those that TRACKWALKER_DIALECTS adds.
            archive.writestr(f"trackwalker/job/{dialects.NAME}", json.dumps(dialects.document(), indent=1))
    return target


def carried(source: Path) -> Iterator[Path]:
    """The files of the package at `source` that travel; they need a Python 3.9 and no packages."""
    for name in _CARRIED:
        yield from sorted((source / name).rglob("*.py")) if (source / name).is_dir() else [source / name]


def _byte_code(path: Path) -> bytes:
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)  # from Python's own cache, where it is valid
    return (
        importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(path.read_bytes()) + marshal.dumps(code)
    )
