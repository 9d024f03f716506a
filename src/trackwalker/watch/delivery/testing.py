"""`trackwalker watch test CHANNEL`: one message to one channel, now and past the outbox."""

from __future__ import annotations

import time
from pathlib import Path

from trackwalker.errors import UsageError
from trackwalker.watch.config import load_config
from trackwalker.watch.notify.base import Letter
from trackwalker.watch.notify.message import Message


def try_channel(settings: Path, name: str) -> str:
    """Send a test message; the sentence says that it was taken, an error in one line says why not."""
    config = load_config(settings)
    if name not in config.channels:
        known = ", ".join(sorted(config.channels)) or "none is set up"
        raise UsageError(f"no channel '{name}' in {settings}: {known}")
    channel, now = config.channels[name], time.time()
    message = Message(
        key=f"test:{name}:{now:.3f}",
        thread=f"test:{name}:{now:.3f}",
        severity="info",
        kind="test",
        title="test message",
        text="Trackwalker can reach this channel.",
        time=now,
    )
    notifier = channel.open()
    try:
        receipt = notifier.send(Letter(message))
        if channel.kind in ("pagerduty", "alertmanager"):  # do not leave an open alert behind
            over = message.model_copy(update={"key": f"{message.key}:over", "resolves": True})
            notifier.send(Letter(over, first=receipt))
    finally:
        notifier.close()
    return f"channel '{name}' ({channel.kind}) took a test message"
