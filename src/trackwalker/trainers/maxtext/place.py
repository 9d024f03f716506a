"""Which process of the run this is, and what its words and its config file say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"^([A-Za-z_]\w*):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s+)#.*$")


@dataclass(frozen=True)
class Place:
    """One process among those of the run."""

    rank: int
    world: int
    local: int | None = None  # its GPU where every GPU has a process of its own; None: it sees all of them
    coordinator: str = ""  # host:port; empty when it is alone


def find_place(env: Mapping[str, str]) -> Place:
    """The process that the launcher's variables describe."""
    own = bool(env.get("NPROCS"))
    address = env.get("JAX_COORDINATOR_IP", "")
    return Place(
        rank=int((env.get("GLOBAL_RANK") if own else env.get("NODE_RANK")) or 0),
        world=int((env.get("NPROCS") if own else env.get("NNODES")) or 1),
        local=int(env.get("LOCAL_RANK") or 0) if own else None,
        coordinator=f"{address}:{env.get('JAX_COORDINATOR_PORT', '')}" if address else "",
    )


class Words:
    """The trainer's words, CONFIG key=value …, and the plain values of its config file below them."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self._file = _plain_values(Path(words[0])) if words and "=" not in words[0] else {}

    def get(self, key: str, default: str = "") -> str:
        """What the last word says, else the file, else the default."""
        told = [word.partition("=")[2] for word in self.words[1:] if word.startswith(f"{key}=")]
        return told[-1] if told else self._file.get(key, default)

    def in_file(self, key: str) -> bool:
        """Whether the file itself has the key."""
        return key in self._file

    def without(self, key: str) -> list[str]:
        """The words without those for a key."""
        return [word for word in self.words if not word.startswith(f"{key}=")]


def _plain_values(path: Path) -> dict[str, str]:
    """Top-level `key: value` pairs of a YAML file: all that is asked for, and no package is needed to read them."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}  # MaxText will say so better
    return {key: _COMMENT.sub("", value).strip("\"'") for key, value in _LINE.findall(text)}
