"""Every kind of channel with the service behind it: what is configured, and what a person sees there."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import message_services as services
from mail_service import MailService

from trackwalker.watch.notify.message import Message

KINDS = ("telegram", "slack", "slack-webhook", "pagerduty", "alertmanager", "webhook", "email")
ANSWERED = ("telegram", "slack", "slack-webhook", "pagerduty", "alertmanager")  # their answer says more than a status


@dataclass
class Station:
    """One channel: its settings, its service, the secret it needs, and how often each title is seen."""

    kind: str
    settings: dict[str, Any]
    service: Any
    secret: str
    seen: Callable[[], Counter[str]]


@contextmanager
def station(kind: str, folder: Path) -> Iterator[Station]:
    """A running service and the settings of a channel to it; the secret is in a file."""
    service, settings, secret, seen = _MAKERS[kind]()
    path = folder / f"{kind}.secret"
    path.write_text(secret + "\n")
    os.chmod(path, 0o600)
    filled = {k: {"file": str(path)} if v is SECRET else v for k, v in settings.items()}
    try:
        yield Station(kind, filled, service, secret, seen)
    finally:
        service.close()


SECRET = object()
Made = tuple[Any, dict[str, Any], str, Callable[[], Counter[str]]]


def _title(text: str) -> str:
    """The title in a heading line, whatever stands around it."""
    lines = [line for line in text.splitlines() if ": " in line and not line.startswith("(")]
    return lines[0].partition(": ")[2] if lines else text


def _telegram() -> Made:
    s = services.TelegramService()
    settings = {"kind": "telegram", "token": SECRET, "chat": s.chat, "url": s.url}
    return s, settings, s.TOKEN, lambda: Counter(_title(m["text"]) for m in s.told if "text" in m)


def _slack() -> Made:
    s = services.SlackService()
    settings = {"kind": "slack", "token": SECRET, "channel": "C0123", "url": s.url}
    return s, settings, s.TOKEN, lambda: Counter(_title(m["blocks"][0]["text"]["text"]) for m in s.messages)


def _slack_webhook() -> Made:
    s = services.SlackService()
    settings = {"kind": "slack", "webhook": SECRET}
    return s, settings, s.url + s.HOOK, lambda: Counter(_title(m["blocks"][0]["text"]["text"]) for m in s.messages)


def _pagerduty() -> Made:
    s = services.PagerDutyService()
    settings = {"kind": "pagerduty", "key": SECRET, "url": s.url}
    return s, settings, s.KEY, lambda: Counter(dict.fromkeys(s.titles, s.opened))


def _alertmanager() -> Made:
    s = services.AlertmanagerService()
    settings = {"kind": "alertmanager", "token": SECRET, "url": s.url}
    return s, settings, "am-token-neverShown", lambda: Counter(a["annotations"]["summary"] for a in s.alerts.values())


def _webhook() -> Made:
    s = services.WebhookService()
    settings = {"kind": "webhook", "secret": SECRET, "url": f"{s.url}/in"}
    return s, settings, s.SECRET, lambda: Counter(m["title"] for m in s.messages.values())


def _email() -> Made:
    s = MailService()
    settings = {
        "kind": "email", "host": "127.0.0.1", "port": s.port, "security": "none", "user": "bot", "password": SECRET,
        "sender": "Trackwalker <bot@example.org>", "to": ["oncall@example.org"],
    }  # fmt: skip
    return s, settings, s.PASSWORD, lambda: Counter(_title(str(m["Subject"])) for m in s.mailbox.values())


_MAKERS: dict[str, Callable[[], Made]] = {
    "telegram": _telegram, "slack": _slack, "slack-webhook": _slack_webhook, "pagerduty": _pagerduty,
    "alertmanager": _alertmanager, "webhook": _webhook, "email": _email,
}  # fmt: skip


def message(key: str, now: float, **values: Any) -> Message:
    """A message of incident 1."""
    said = {"thread": "8043-hang-1", "severity": "critical", "kind": "hang", "title": f"title {key}", "job": "8043"}
    return Message(key=key, time=now, **{**said, **values})
