"""The kinds of sweeps by name; a kind is imported when it is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from trackwalker.errors import UsageError
from trackwalker.sweep.model import Strategy

# A folder of this room with a `strategy.py` is a kind: `build(request) -> Strategy` checks the request and raises
# UsageError before anything is submitted. Its command is in the file of its name in `cli/sweeps/`.
KINDS = {
    folder.parent.name: f"trackwalker.sweep.{folder.parent.name}.strategy:build"
    for folder in sorted(Path(__file__).parent.glob("*/strategy.py"))
}


def build(kind: str, request: Mapping[str, Any]) -> Strategy:
    """The strategy of a plan; an unknown kind or a request that cannot work is one clear error."""
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(KINDS)}"
        raise UsageError(f"no sweep is called '{kind}': {hint}")
    module, _, name = KINDS[kind].partition(":")
    return cast("Strategy", getattr(import_module(module), name)(request))
