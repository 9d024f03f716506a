"""Alertmanager, outwards: an incident is an alert that stays until it is resolved or until it is forgotten."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from trackwalker.report.text import clip
from trackwalker.watch.notify.base import Letter, Receipt
from trackwalker.watch.notify.http import Http, OverHttp
from trackwalker.watch.notify.message import Message

OURS = "trackwalker_incident"  # the label that says the alert is ours: it is not told again when it comes back
_ANNOTATION = 4000


class Alertmanager(OverHttp):
    """API v2. An alert is known by its labels, so sending again does no harm."""

    def __init__(self, url: str, token: str = "", keep_hours: float = 24.0) -> None:
        self._http = Http("Alertmanager", url, [token])
        self._url = f"{url.rstrip('/')}/api/v2/alerts"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._keep_s = keep_hours * 3600.0

    def send(self, letter: Letter) -> Receipt:
        """One alert; the labels of the first message stay, or the resolve message would end another alert."""
        message, first = letter.message, letter.first or {}
        labels = dict(first.get("labels") or _labels(message))
        started = float(first.get("started", message.time))
        ends = message.time if message.resolves else message.time + self._keep_s
        alert: dict[str, Any] = {
            "labels": labels,
            "annotations": {
                "summary": message.title,
                "description": clip(message.text, _ANNOTATION),
                **{_word(name): value for name, value in message.facts.items()},
            },
            "startsAt": _utc(started),
            "endsAt": _utc(ends),
        }
        status, said, _ = self._http.post(self._url, json=[alert], headers=self._headers)
        if status >= 400:
            raise self._http.refused(status, str(said))
        if isinstance(said, str) and said.strip():  # it answers with nothing; a page is from something in between
            raise self._http.in_doubt("gave an answer that cannot be read")
        return {"labels": labels, "started": started}


def _labels(message: Message) -> dict[str, str]:
    labels = {
        "alertname": "Trackwalker" + "".join(part.capitalize() for part in _word(message.kind).split("_")),
        "severity": message.severity,
        OURS: message.thread,
    }
    return {**labels, "job_id": message.job} if message.job else labels


def _word(text: str) -> str:
    """A label name: letters, digits and underscores, not a digit first."""
    word = "".join(c if c.isascii() and c.isalnum() else "_" for c in text).strip("_") or "fact"
    return f"_{word}" if word[0].isdigit() else word


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
