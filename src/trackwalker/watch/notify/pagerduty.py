"""PagerDuty Events API v2: one incident of ours is one alert there, by its dedup_key."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from trackwalker.report.text import clip
from trackwalker.watch.notify.base import Letter, Receipt
from trackwalker.watch.notify.http import Http, OverHttp
from trackwalker.watch.notify.message import short_id

URL = "https://events.pagerduty.com"
_SUMMARY = 1024
_DETAIL = 8000


class PagerDuty(OverHttp):
    """Trigger and resolve. The same dedup_key is the same alert, so sending again does no harm."""

    def __init__(self, key: str, url: str = URL) -> None:
        self._http = Http("PagerDuty", url, [key])
        self._url = f"{url.rstrip('/')}/v2/enqueue"
        self._key = key

    def send(self, letter: Letter) -> Receipt:
        """One event."""
        message = letter.message
        name = f"trackwalker-{short_id(message.thread)}"
        event: dict[str, Any] = {
            "routing_key": self._key,
            "event_action": "resolve" if message.resolves else "trigger",
            "dedup_key": name,
        }
        if not message.resolves:
            event["client"] = "Trackwalker"
            event["payload"] = {
                "summary": clip(message.title, _SUMMARY),
                "source": f"job {message.job}" if message.job else "trackwalker",
                "severity": message.severity,
                "timestamp": datetime.fromtimestamp(message.time, UTC).isoformat(),
                "class": message.kind,
                "custom_details": {**message.facts, "text": clip(message.text, _DETAIL)},
            }
        status, said, _ = self._http.post(self._url, json=event)
        if status >= 400:
            errors = said.get("errors") if isinstance(said, dict) else None
            raise self._http.refused(status, "; ".join(map(str, errors)) if isinstance(errors, list) else "")
        if not isinstance(said, dict) or said.get("status") != "success":
            raise self._http.in_doubt("gave an answer that cannot be read")
        return {"dedup_key": name}
