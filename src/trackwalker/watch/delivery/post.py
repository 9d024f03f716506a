"""What the daemon starts for telling: the deliverer, the chats, the alerts that come in."""

from __future__ import annotations

import hashlib
import hmac
import http.server
import json
import math
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from trackwalker.errors import TrackwalkerError, UsageError
from trackwalker.watch.config import Config
from trackwalker.watch.delivery.outbox import Outbox
from trackwalker.watch.notify.alertmanager import OURS
from trackwalker.watch.notify.base import NotSentError
from trackwalker.watch.notify.channels import TelegramChannel
from trackwalker.watch.notify.http import Http
from trackwalker.watch.notify.message import Attachment, Message, Severity

# The plot that goes with the first message of an incident, where one helps.
_QUANTITIES = {"slow": "tgs", "hang": "step", "data-stall": "step", "checkpoint": "step", "loss": "loss"}
_LIMIT_S = 15.0  # a message is not held up for its picture


# Who watches the watcher: a ping to a service that calls people when it stops coming.
_STUCK_S = 120.0  # a loop that has not come round for so long is not alive


# Alertmanager, inwards: its webhook on a port of this machine; each alert becomes a message of its own incident.
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
    mark = alert.get("fingerprint") or hashlib.sha256(json.dumps(labels, sort_keys=True).encode()).hexdigest()[:16]
    thread = f"alert:{mark}:{started}"
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


class Heartbeat:
    """Pings while the watcher's own loop comes round; a watcher that hangs is silent, like one that is dead."""

    def __init__(self, url: str, every_s: float) -> None:
        self._http, self._url, self._every_s = Http("the heartbeat", url, [url]), url, every_s
        self._alive = self._sent = 0.0

    def around(self, wait: Callable[[float], bool], clock: Callable[[], float]) -> Callable[[float], bool]:
        """The loop's own way to wait, noting that the loop came round."""

        def waiting(seconds: float) -> bool:
            self._alive = clock()
            return wait(seconds)

        return waiting

    def beat(self, now: float) -> bool:
        """Ping when it is due; a ping that fails is made up for by the next."""
        if now - self._alive > _STUCK_S or now - self._sent < self._every_s:
            return False
        self._sent = now
        try:
            status, _, _ = self._http.ask("GET", self._url, timeout=10.0, may_repeat=True)
        except NotSentError:
            return False
        return status < 300


def illustrate(workspace: Path, message: Message) -> tuple[Attachment, ...]:
    """One plot of the job's own log and journal, drawn in a process of its own; none where the kind of message has none
    or drawing fails."""
    quantity = _QUANTITIES.get(message.kind)
    if quantity is None or not message.job:
        return ()
    from trackwalker.agent.workspace import Workspace
    from trackwalker.watch.chat.replies import picture_of  # large; a watcher without incidents does not need it

    try:
        job = Workspace(workspace).job(message.job)
        plot = picture_of(job, quantity, _LIMIT_S)
        if plot is None and quantity == "tgs":
            plot = picture_of(job, "step", _LIMIT_S)
    except (TrackwalkerError, OSError):
        return ()
    return (plot,) if plot is not None else ()


class Post:
    """The threads around an outbox; none of them can end the watcher, and the watcher waits for none of them."""

    def __init__(self, outbox: Outbox, config: Config, workspace: Path, folder: Path) -> None:
        self._outbox, self._stop = outbox, threading.Event()
        outbox.illustrate = partial(illustrate, workspace)
        self._heart = Heartbeat(ping.url.read(), 60.0 * ping.every_minutes) if (ping := config.heartbeat) else None
        self._threads = [self._thread("deliver", self._deliver)]
        self._receiver: AlertReceiver | None = None
        if config.receive is not None:
            try:
                self._receiver = AlertReceiver(config.receive.port, config.receive.token.read(), outbox.put, time.time)
            except OSError as e:
                where = f"127.0.0.1:{config.receive.port}"
                raise UsageError(f"cannot listen for alerts on {where}: {e.strerror}; choose another port") from None
        for name, channel in config.channels.items():
            if isinstance(channel, TelegramChannel) and channel.users:
                self._threads.append(self._thread(f"chat-{name}", self._chat(name, channel, config, workspace, folder)))

    def waiting(self, wait: Callable[[float], bool]) -> Callable[[float], bool]:
        """The daemon's way to wait; where a heartbeat is set up, it shows that the daemon's loop comes round."""
        return self._heart.around(wait, time.time) if self._heart is not None else wait

    def start(self) -> None:
        """Begin to deliver, to listen and to answer."""
        if self._receiver is not None:
            self._receiver.start()
        for thread in self._threads:
            thread.start()

    def close(self, patience_s: float = 5.0) -> None:
        """Stop; what is not told yet stays in the outbox."""
        self._stop.set()
        if self._receiver is not None:
            self._receiver.close()
        self._threads[0].join(patience_s)  # a chat may be in the middle of a long poll: it is not waited for

    def _deliver(self) -> None:
        while not self._stop.is_set():
            pause = 1.0
            try:
                self._outbox.deliver()
                if self._heart is not None:
                    self._heart.beat(time.time())
            except Exception as e:  # a full disk may pass; a watcher that has stopped telling must not go unnoticed
                print(f"trackwalker: messages wait: {type(e).__name__}", file=sys.stderr, flush=True)
                pause = 30.0
            self._stop.wait(pause)

    def _chat(
        self, name: str, channel: TelegramChannel, config: Config, workspace: Path, folder: Path
    ) -> Callable[[], None]:
        from trackwalker.agent.policy import state_folder
        from trackwalker.watch.chat.acting import (
            Desk,  # the readers of jobs are large: only a watcher that answers has them
        )
        from trackwalker.watch.chat.telegram_chat import TelegramChat
        from trackwalker.watch.notify.telegram import TelegramApi

        desk = Desk(workspace, config.policy, state_folder())
        chat = TelegramChat(
            TelegramApi(channel.token.read(), channel.url), name, channel.chat, channel.users, self._outbox,
            folder / f"telegram-{name}.json", desk.hear, config.secrets(),
        )  # fmt: skip
        return lambda: chat.listen(self._stop)

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=work, name=name, daemon=True)
