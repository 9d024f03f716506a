"""Op paths for people: a path of twelve scopes has three that tell something."""

from __future__ import annotations

import re

# Scopes that transformations add: they say how, not where.
_COMMON = re.compile(
    r"^(?:jit\(\w*\)|jvp\(\)|transpose\(jvp\(\)\)|while|body|closed_call|eval_jaxpr|checkpoint|vmap\(\)|remat\w*)$"
)


def short_path(path: str) -> str:
    """The last scopes of an op path, without those that every path has."""
    telling = [scope for scope in path.split(";", 1)[0].split("/") if scope and not _COMMON.match(scope)]
    return "/".join(telling[-3:]) or path
