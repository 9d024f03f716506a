"""Spans of time as people type and read them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from trackwalker.errors import UsageError

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)")


def span(text: str) -> float:
    """Seconds of `90s`, `10m`, `12h`, `30d`, `2w`."""
    found = _SPAN.fullmatch(text.strip())
    if not found:
        raise UsageError(f"'{text}' is no span of time: use 10m, 12h, 30d or 2w")
    return float(found[1]) * _UNITS[found[2]]


def since(text: str) -> float:
    """The moment that a span ago was, or that a date names (UTC)."""
    if _SPAN.fullmatch(text.strip()):
        return time.time() - span(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"'{text}' is neither a span (12h, 30d) nor a date (2026-11-16)") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def clock(seconds: float | None) -> str:
    """As squeue has it: `3-04:05:06`, `4:05:06`, `5:06`; empty where it is not known."""
    if seconds is None or not 0 <= seconds < 1e9:
        return ""
    days, rest = divmod(int(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
