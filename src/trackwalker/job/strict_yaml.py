"""YAML for files that decide something: a key that stands twice is an error, where YAML would let the last one win."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml


class Strict(yaml.SafeLoader):
    """The safe loader, without a second opinion on any key."""

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
