"""Bundles as an attacker writes them; the schema is spelled out, so that older revisions can be attacked too."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any


def bundle(path: Path, *members: tuple[str, bytes, dict[str, Any]]) -> Path:
    """An archive with right papers and whatever else: name, content, and attributes of the member."""
    papers: list[tuple[str, bytes, dict[str, Any]]] = [
        ("bundle.json", json.dumps({"schema": "trackwalker.bundle/1", "job": "7-JAX-toy"}).encode(), {}),
        ("truth.json", json.dumps({"outcome": "healthy"}).encode(), {}),
    ]
    with tarfile.open(path, "w:gz") as tar:
        for name, content, more in [*papers, *members]:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in more.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return path


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[str, bytes, dict[str, Any]]:
    return name, b"", {"type": kind, "linkname": target}
