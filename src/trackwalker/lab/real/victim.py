"""Whom a fault hits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Victim:
    """The rank a fault hits, and its job."""

    rank: int
    host: str
    pid: int
    job_dir: Path
