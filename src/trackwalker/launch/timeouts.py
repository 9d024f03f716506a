"""`STAGE_TIMEOUTS`: how long each stage of a job may take."""

from __future__ import annotations

from trackwalker.errors import UsageError
from trackwalker.node.order import STAGES

DEFAULTS: dict[str, float | None] = {"preflight": 900.0, "pull": 900.0, "health": 300.0, "train": None}
_UPSTREAM = {"ecc": "health"}
_NO_LIMIT = ("none", "-1")
_FORM = "the form is stage:seconds or stage:none, separated by commas"


def parse_timeouts(text: str) -> dict[str, float | None]:
    """Seconds for each stage, None where there is no limit: the defaults with the given ones in their place."""
    limits = dict(DEFAULTS)
    for part in text.split(",") if text.strip() else []:
        name, colon, value = (word.strip() for word in part.partition(":"))
        stage = _UPSTREAM.get(name.lower(), name.lower())
        if not colon:
            raise UsageError(f"stage timeouts '{text}': '{part}' cannot be read; {_FORM}")
        if stage not in STAGES:
            raise UsageError(f"stage timeouts: unknown stage '{name}'; stages are {', '.join(STAGES)}")
        limits[stage] = None if value.lower() in _NO_LIMIT else _seconds(stage, value)
    return limits


def _seconds(stage: str, value: str) -> float:
    if not (value.isascii() and value.isdecimal()):
        raise UsageError(f"stage timeouts: '{stage}:{value}' is no number of seconds; {_FORM}")
    if int(value) == 0:
        raise UsageError(f"stage timeouts: '{stage}:0' is not clear; give a number of seconds, or none for no limit")
    return float(value)
