"""YAML files: what the package ships and others write, read fast; and those that decide something, read strictly."""

from __future__ import annotations

from collections.abc import Hashable
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


class Strict(yaml.SafeLoader):
    """The safe loader; a key that stands twice is an error, where YAML would let the last one win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping, every key of which stands once."""
        seen: set[Any] = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if isinstance(name, Hashable) and name in seen:
                problem = f"the key {str(name)!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            if isinstance(name, Hashable):
                seen.add(name)
        return super().construct_mapping(node, deep)
