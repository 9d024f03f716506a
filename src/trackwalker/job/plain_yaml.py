"""YAML read fast: most of what the package knows is in such files, and every command reads some of them."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML was built with it


def read_yaml(text: str) -> Any:
    """What a text says; nothing but plain values."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - both are safe loaders


def shipped(room: str, name: str) -> Any:
    """What a file of a room of this package says."""
    return read_yaml((files(f"trackwalker.{room}") / name).read_text(encoding="utf-8"))
