"""Alertmanager, inwards: its webhook on a port of this machine; each alert becomes a message of its own incident."""

from __future__ import annotations

import hashlib
import hmac
import http.server
import json
import math
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

from trackwalker.watch.message import Message, Severity
from trackwalker.watch.notify.alertmanager import OURS

PATH = "/alertmanager"
_LARGEST = 4 << 20
_SEVERITIES: dict[str, Severity] = {
    "critical": "critical", "page": "critical", "error": "critical", "emergency": "critical", "fatal": "critical",
    "info": "info", "none": "info", "notice": "info", "debug": "info",
}  # fmt: skip
_DULL = frozenset({"alertname", "severity"})


def messages(document: Any, now: float) -> list[Message]:
    """The messages of one webhook call (version 4); TypeError where it is not one. Our own alerts are left out."""
    if not isinstance(document, dict) or not isinstance(document.get("alerts"), list):
        raise TypeError("not an Alertmanager webhook: it has no list of alerts")
    return [_message(alert, now) for alert in document["alerts"] if OURS not in (alert.get("labels") or {})]


def _message(alert: dict[str, Any], now: float) -> Message:
    labels = {str(k): str(v) for k, v in (alert.get("labels") or {}).items()}
    notes = {str(k): str(v) for k, v in (alert.get("annotations") or {}).items()}
    over = alert.get("status") == "resolved"
    started = str(alert.get("startsAt", ""))
    # One alert that fires, ends and fires again is two incidents: its labels and when it began name it.
    print_ = str(alert.get("fingerprint") or _fingerprint(labels))
    thread = f"alert:{print_}:{started}"
    name = labels.get("alertname", "alert")
    host = labels.get("host") or labels.get("instance", "")
    said = notes.get("summary") or notes.get("message") or notes.get("description", "")
    return Message(
        key=f"{thread}:{'resolved' if over else 'firing'}",
        thread=thread,
        severity=_SEVERITIES.get(labels.get("severity", "").lower(), "warning"),
        kind=f"alert:{name}",
        title=f"{name}{f' on {host}' if host else ''}{f': {said}' if said else ''}",
        text=notes.get("description", "") if notes.get("description") != said else "",
        facts={k: v for k, v in labels.items() if k not in _DULL},
        resolves=over,
        time=_time(alert.get("endsAt" if over else "startsAt"), now),
        job=labels.get("job_id", ""),
    )


def _fingerprint(labels: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(labels, sort_keys=True).encode()).hexdigest()[:16]


def _time(text: Any, now: float) -> float:
    try:
        moment = datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return now
    return moment if math.isfinite(moment) and 0 < moment <= now + 60 else now  # year 1 is "not ended"


class AlertReceiver:
    """The listener. Alertmanager hears 200 only when its alerts are in the outbox; it repeats what it is unsure of."""

    def __init__(self, port: int, token: str, put: Callable[[Message], object], clock: Callable[[], float]) -> None:
        class Handler(_Handler):
            pass

        Handler.token, Handler.put, Handler.clock = token.encode(), staticmethod(put), staticmethod(clock)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), daemon=True, name="alerts-in")

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_port)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10.0
    token: bytes
    put: Callable[[Message], object]
    clock: Callable[[], float]

    def do_POST(self) -> None:
        said = self.headers.get("Authorization", "").encode("utf-8", "replace")
        length = self.headers.get("Content-Length", "")
        if not hmac.compare_digest(said, b"Bearer " + self.token):
            return self._answer(401, "give the token of the watcher's settings")
        if self.path.rstrip("/") != PATH:
            return self._answer(404, f"POST to {PATH}")
        if not length.isdigit() or int(length) > _LARGEST:
            return self._answer(413, "no length, or too long")
        try:
            found = messages(json.loads(self.rfile.read(int(length))), self.clock())
        except (ValueError, TypeError, AttributeError, RecursionError) as e:
            return self._answer(400, f"not understood: {type(e).__name__}")
        try:
            for message in found:
                self.put(message)
        except OSError:
            return self._answer(503, "the outbox cannot be written: send it again")
        return self._answer(200, f"{len(found)} taken")

    def _answer(self, status: int, text: str) -> None:
        raw = f"{text}\n".encode()
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(raw)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *args: object) -> None:
        """Say nothing: the requests hold a token."""
