"""Quiet hours: what they hold back, and the one message that tells it afterwards."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from trackwalker.watch.config import Config
from trackwalker.watch.message import Message, heading, short_id

_LINES = 40
_SEVERITIES = ("info", "warning", "critical")


def is_held(config: Config, channel: str, message: Message, now: float) -> bool:
    """Whether a channel keeps quiet about a message now; a critical one always passes."""
    quiet = getattr(config.channels[channel], "quiet", None)
    return quiet is not None and message.severity != "critical" and quiet.until(now) is not None


def digest(held: list[Message], channel: str, timezone: str, still_open: set[str], now: float) -> Message:
    """One message for many; the same many give the same key."""
    zone = ZoneInfo(timezone)
    keys = "\n".join(message.key for message in held)
    lines = []
    for message in held[:_LINES]:
        clock = datetime.fromtimestamp(message.time, UTC).astimezone(zone)
        lines.append(f"{clock:%H:%M} {heading(message)}")
    if len(held) > _LINES:
        lines.append(f"and {len(held) - _LINES} more")
    going_on = len({m.thread for m in held if m.thread in still_open and not m.resolves and m.severity != "info"})
    title = f"{len(held)} messages from the quiet hours"
    title += f", {going_on} incident{'' if going_on == 1 else 's'} still open" if going_on else ", all of it over"
    name = f"quiet:{channel}:{short_id(keys)}"
    severity = max((message.severity for message in held), key=_SEVERITIES.index) if going_on else "info"
    return Message(
        key=name, thread=name, severity=severity, kind="summary", title=title, text="\n".join(lines), time=now
    )
