"""What lies in a Prometheus data folder: immutable blocks, and a write-ahead log of segments and checkpoints."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^[0-9A-HJKMNP-TV-Z]{26}$")  # a ULID; half-made blocks have a suffix
_SEGMENT = re.compile(r"^\d{8,}$")
_CHECKPOINT = re.compile(r"^checkpoint\.(\d{8,})$")


@dataclass(frozen=True)
class Listing:
    """The finished parts of a data folder at one moment; segment and checkpoint names are relative to wal/."""

    blocks: tuple[str, ...]
    checkpoints: tuple[str, ...]
    segments: tuple[str, ...]

    @property
    def covered(self) -> int:
        """The last segment whose content is in a checkpoint, -1 without one."""
        return max((int(name.partition(".")[2]) for name in self.checkpoints), default=-1)

    @property
    def needed(self) -> tuple[str, ...]:
        """The segments that still count: a checkpoint replaces those up to its number."""
        return tuple(name for name in self.segments if int(name) > self.covered)


def list_parts(folder: Path) -> Listing:
    """What is in a data folder now; no wal/ means an empty log, a missing folder raises FileNotFoundError."""
    blocks = [name for name in os.listdir(folder) if _BLOCK.match(name)]
    try:
        wal = os.listdir(folder / "wal")
    except FileNotFoundError:
        wal = []
    return Listing(
        blocks=tuple(sorted(blocks)),
        checkpoints=tuple(sorted((n for n in wal if _CHECKPOINT.match(n)), key=lambda n: int(n[11:]))),
        segments=tuple(sorted((n for n in wal if _SEGMENT.match(n)), key=int)),
    )
