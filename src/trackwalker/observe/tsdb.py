"""What lies in a Prometheus data folder: immutable blocks, and a write-ahead log of segments and checkpoints."""

from __future__ import annotations

import json
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


@dataclass(frozen=True)
class Block:
    """What a block's meta.json says."""

    name: str
    first: int  # milliseconds
    end: int  # milliseconds, exclusive
    samples: int
    series: int
    chunks: int
    replaces: frozenset[str]  # the blocks that were merged into this one, in any generation


def read_block(folder: Path) -> Block:
    """A block's description; ValueError says what is wrong with it, FileNotFoundError that the block is gone."""
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
    except FileNotFoundError:
        if not folder.exists():
            raise
        raise ValueError("meta.json is missing") from None
    except (ValueError, RecursionError):
        raise ValueError("meta.json is not readable") from None
    try:
        compaction, stats = meta.get("compaction") or {}, meta.get("stats") or {}
        older = {p["ulid"] for p in compaction.get("parents") or ()} | set(compaction.get("sources") or ())
        if meta["ulid"] != folder.name or meta["version"] != 1:
            raise ValueError("meta.json is that of another block")
        return Block(
            name=folder.name,
            first=int(meta["minTime"]),
            end=int(meta["maxTime"]),
            samples=int(stats.get("numSamples", 0)),
            series=int(stats.get("numSeries", 0)),
            chunks=int(stats.get("numChunks", 0)),
            replaces=frozenset(older - {folder.name}),
        )
    except (KeyError, TypeError, AttributeError):
        raise ValueError("meta.json is incomplete") from None
