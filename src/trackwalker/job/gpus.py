"""Every GPU we know: `gpus.json`, for plans, peaks, yardsticks and the lab. Standard library: it travels to nodes."""

from __future__ import annotations

import json
import pkgutil
from functools import lru_cache
from typing import Any

NAME = "gpus.json"


@lru_cache(maxsize=1)
def gpus() -> dict[str, dict[str, Any]]:
    """Name -> what is known of it."""
    found: dict[str, dict[str, Any]] = json.loads(pkgutil.get_data("trackwalker.job", NAME) or b"{}")["gpus"]
    return found


def by_name(text: str) -> str | None:
    """The GPU whose name is in a text, as drivers and JAX write it; of several the longest name."""
    low = text.lower()
    fits = [(len(part), name) for name, gpu in gpus().items() for part in gpu["names"] if part in low]
    return max(fits)[1] if fits else None
