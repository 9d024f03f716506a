"""Local servers that speak the documented APIs of the services that carry messages, and fail in the ways those fail.

A fault is taken for each request from `faults`: None (serve it), a status, or a word of `Fault`. What a service has
taken in is in its own state, so a test can count what a person would have seen.
"""

from __future__ import annotations

import base64
import email
import email.policy
import hashlib
import hmac
import http.server
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

Fault = int | str | None  # a status; "garbage", "drop" (nothing taken in), "take-drop" (taken in, no answer), "hang"
Reply = tuple[int, Any]


class Service:
    """One HTTP server on a free port of this machine."""

    def __init__(self) -> None:
        self.faults: deque[Fault] = deque()
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.retry_after = 7
        self.before: Callable[[], None] = lambda: None  # called with each request before it is taken in
        self.after: Callable[[], None] = lambda: None  # and when it was taken in, before the answer
        self.lock = threading.Lock()
        self.released = threading.Event()  # ends what hangs
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet, or each answer waits for a delayed acknowledgement

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {k.lower(): v for k, v in self.headers.items()}
                service.answer(self, self.path, headers, body)

            do_GET = do_POST

            def log_message(self, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, handler: Any, path: str, headers: dict[str, str], body: bytes) -> None:
        with self.lock:
            self.requests.append((path, headers, body))
            fault = self.faults.popleft() if self.faults else None
        self.before()
        if fault == "drop":
            handler.close_connection = True
            return
        if fault == "hang":
            self.released.wait(20)
            handler.close_connection = True
            return
        if fault is None or fault in ("take-drop", "take-500"):
            with self.lock:
                status, said = self.serve(path, headers, body)
            self.after()
            if fault == "take-drop":
                handler.close_connection = True
                return
            if fault == "take-500":
                status, said = 500, {"error": "internal"}
        elif fault == "garbage":
            status, said = 200, "<html>a proxy was here</html>"
        else:
            status, said = self.trouble(int(fault))
        raw = (said if isinstance(said, str) else json.dumps(said)).encode()
        handler.send_response(status)
        if status in (429, 503):
            handler.send_header("Retry-After", str(self.retry_after))
        handler.send_header("Content-Length", str(len(raw)))
        handler.end_headers()
        handler.wfile.write(raw)

    def trouble(self, status: int) -> Reply:
        return status, {"error": f"status {status}"}

    def serve(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        raise NotImplementedError


def fields(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """The fields of a JSON, form or multipart body; files as bytes."""
    kind = headers.get("content-type", "")
    if kind.startswith("application/json"):
        said: dict[str, Any] = json.loads(body)
        return said
    if kind.startswith("multipart/"):
        head = f"Content-Type: {kind}\r\n\r\n".encode()
        found: dict[str, Any] = {}
        for part in email.message_from_bytes(head + body, policy=email.policy.HTTP).iter_parts():  # type: ignore[attr-defined]
            name = part.get_param("name", header="content-disposition")
            raw = part.get_payload(decode=True)
            found[name] = raw if part.get_filename() else raw.decode()
        return found
    from urllib.parse import parse_qsl

    return dict(parse_qsl(body.decode(), keep_blank_values=True))


class TelegramService(Service):
    """The Bot API for one bot in one chat, as its documentation and its error texts have it."""

    TOKEN: ClassVar[str] = "123456789:AAF0nTheRealBotTokenNeverShownAnywhe"  # noqa: S105
    BOT: ClassVar[int] = 123456789

    def __init__(self, chat: int = -1001) -> None:
        super().__init__()
        self.chat = chat
        self.number = 40
        self.messages: dict[int, dict[str, Any]] = {}
        self.updates: list[dict[str, Any]] = []
        self.update_number = 900

    def says(self, user: int, text: str, chat: int | None = None, kind: str = "supergroup", age: float = 0.0) -> None:
        """A person writes."""
        with self.lock:
            self.number += 1
            self.update_number += 1
            place = {"id": self.chat if chat is None else chat, "type": kind}
            message = {
                "message_id": self.number, "from": {"id": user, "is_bot": False}, "chat": place,
                "date": int(time.time() - age), "text": text,
            }  # fmt: skip
            self.messages[self.number] = {**message, "own": False}
            self.updates.append({"update_id": self.update_number, "message": message})

    def answer(self, handler: Any, path: str, headers: dict[str, str], body: bytes) -> None:
        if path.endswith("/getUpdates"):  # a long poll: held until there is something, or its time is over
            asked = json.loads(body)
            deadline = time.monotonic() + min(asked["timeout"], 5)
            while time.monotonic() < deadline and not self.released.is_set():
                if any(u["update_id"] >= asked["offset"] for u in list(self.updates)):
                    break
                time.sleep(0.05)
        super().answer(handler, path, headers, body)

    @property
    def told(self) -> list[dict[str, Any]]:
        return [m for m in self.messages.values() if m["own"]]

    def trouble(self, status: int) -> Reply:
        if status == 429:
            words = f"Too Many Requests: retry after {self.retry_after}"
            return 429, {
                "ok": False, "error_code": 429, "description": words, "parameters": {"retry_after": self.retry_after},
            }  # fmt: skip
        words = {401: "Unauthorized", 403: "Forbidden: bot was kicked from the supergroup chat"}.get(status, "Oops")
        return status, {"ok": False, "error_code": status, "description": words}

    def serve(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        token, _, method = path.removeprefix("/bot").partition("/")
        if token != self.TOKEN:
            return self.trouble(401)
        said = fields(headers, body)
        if method == "getUpdates":
            self.updates = [u for u in self.updates if u["update_id"] >= said["offset"]]
            return 200, {"ok": True, "result": list(self.updates)}
        if method == "sendChatAction":
            return 200, {"ok": True, "result": True}
        if method.startswith("send"):
            return self._send(method, said)
        return self._edit(method, said)

    def _send(self, method: str, said: dict[str, Any]) -> Reply:
        chat = int(said["chat_id"])
        if chat != self.chat and chat < 0:
            return self._no("chat not found")
        kept = {"own": True, "chat": {"id": chat}, "date": int(time.time())}
        if method == "sendMessage":
            if not said.get("text", "").strip():
                return self._no("message text is empty")
            if len(said["text"].encode("utf-16-le")) // 2 > 4096:
                return self._no("message is too long")
            for entity in said.get("entities", []):
                assert entity["offset"] + entity["length"] <= len(said["text"].encode("utf-16-le")) // 2
            kept["text"] = said["text"]
        elif method == "sendPhoto":
            if not said["photo"].startswith(b"\x89PNG\r\n\x1a\n"):
                return self._no("IMAGE_PROCESS_FAILED")
            kept["photo"] = said["photo"]
        else:
            kept["document"] = said["document"]
        reply = said.get("reply_parameters") or {}
        kept["reply_to"] = (json.loads(reply) if isinstance(reply, str) else reply).get("message_id")
        self.number += 1
        self.messages[self.number] = {**kept, "message_id": self.number}
        result = {"message_id": self.number, "chat": {"id": chat}, "date": kept["date"]}
        return 200, {"ok": True, "result": result}

    def _edit(self, method: str, said: dict[str, Any]) -> Reply:
        held = self.messages.get(said["message_id"])
        if held is None or held["chat"]["id"] != int(said["chat_id"]):
            return self._no("message to edit not found")
        if not held["own"]:
            return self._no("message can't be edited")
        if method == "editMessageReplyMarkup" or held.get("text") == said.get("text"):
            words = "specified new message content and reply markup are exactly the same"
            return self._no(f"message is not modified: {words} as a current content and reply markup of the message")
        held["text"] = said["text"]
        return 200, {"ok": True, "result": {"message_id": said["message_id"]}}

    def _no(self, words: str) -> Reply:
        return 400, {"ok": False, "error_code": 400, "description": f"Bad Request: {words}"}


class SlackService(Service):
    """The Web API for one bot in one channel, and an incoming webhook."""

    TOKEN: ClassVar[str] = "xoxb-1111-2222-neverShownAnywhere"  # noqa: S105
    HOOK: ClassVar[str] = "/services/T000/B000/neverShownAnywhere"

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[dict[str, Any]] = []
        self.files: list[dict[str, Any]] = []
        self.uploads: dict[str, bytes] = {}
        self.may_read = True

    def serve(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        if path == self.HOOK:
            self.messages.append({**json.loads(body), "ts": "0"})
            return 200, "ok"
        if path.startswith("/services/"):
            return 404, "no_service"
        if path.startswith("/upload/"):
            self.uploads[path.rpartition("/")[2]] = body
            return 200, "OK"
        if headers.get("authorization") != f"Bearer {self.TOKEN}":
            return 200, {"ok": False, "error": "invalid_auth"}
        said, method = fields(headers, body), path.rpartition("/")[2]
        if method == "chat.postMessage":
            return self._post(said)
        if method in ("conversations.history", "conversations.replies"):
            if not self.may_read:
                return 200, {"ok": False, "error": "missing_scope"}
            inside = [m for m in self.messages if m.get("thread_ts") == said.get("ts") or m["ts"] == said.get("ts")]
            outside = [m for m in self.messages if not m.get("thread_ts")]
            found = inside if method.endswith("replies") else outside
            return 200, {"ok": True, "messages": [m for m in found if float(m["ts"]) >= float(said["oldest"])]}
        if method == "files.getUploadURLExternal":
            name = f"F{len(self.uploads)}"
            self.uploads[name] = b""
            return 200, {"ok": True, "upload_url": f"{self.url}/upload/{name}", "file_id": name}
        if method == "files.completeUploadExternal":
            self.files.append({**said, "data": self.uploads[said["files"][0]["id"]]})
            return 200, {"ok": True, "files": said["files"]}
        return 200, {"ok": False, "error": "unknown_method"}

    def _post(self, said: dict[str, Any]) -> Reply:
        for block in said["blocks"]:
            assert 0 < len(block["text"]["text"]) <= 3000
        ts = f"{time.time() + len(self.messages) * 1e-5:.6f}"
        self.messages.append({**said, "ts": ts})
        return 200, {"ok": True, "ts": ts, "channel": "C0123"}


class PagerDutyService(Service):
    """Events API v2: alerts by dedup_key."""

    KEY: ClassVar[str] = "R0neverShownAnywhere0123456789ab"

    def __init__(self) -> None:
        super().__init__()
        self.alerts: dict[str, str] = {}
        self.opened = 0
        self.titles: set[str] = set()

    def serve(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        said = json.loads(body)
        if path != "/v2/enqueue" or said.get("routing_key") != self.KEY:
            return 400, {
                "status": "invalid event",
                "message": "Event object is invalid",
                "errors": ["Invalid routing key"],
            }
        key = said["dedup_key"]
        if said["event_action"] == "trigger":
            payload = said["payload"]
            assert payload["severity"] in ("critical", "error", "warning", "info")
            assert payload["summary"]
            assert payload["source"]
            self.titles.add(payload["summary"])
            self.opened += self.alerts.get(key) != "open"
            self.alerts[key] = "open"
        elif key in self.alerts:
            self.alerts[key] = "resolved"
        return 202, {"status": "success", "message": "Event processed", "dedup_key": key}


class AlertmanagerService(Service):
    """API v2: alerts by their labels."""

    def __init__(self) -> None:
        super().__init__()
        self.alerts: dict[str, dict[str, Any]] = {}

    def serve(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        if path != "/api/v2/alerts":
            return 404, "not found"
        for alert in json.loads(body):
            for name in (*alert["labels"], *alert["annotations"]):
                if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name):
                    return 400, f"invalid label name {name}"
            self.alerts[json.dumps(alert["labels"], sort_keys=True)] = alert
        return 200, ""


class WebhookService(Service):
    """A receiver that checks the signature and keeps each id once, as the documentation asks it to."""

    SECRET: ClassVar[str] = "whsec_bmV2ZXJTaG93bkFueXdoZXJl"  # noqa: S105

    def __init__(self) -> None:
        super().__init__()
        self.messages: dict[str, dict[str, Any]] = {}
        self.repeats = 0

    def serve(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        name, when = headers["webhook-id"], headers["webhook-timestamp"]
        key = base64.b64decode(self.SECRET.removeprefix("whsec_"))
        digest = hmac.new(key, f"{name}.{when}.".encode() + body, hashlib.sha256).digest()
        if headers["webhook-signature"] != f"v1,{base64.b64encode(digest).decode()}":
            return 401, "bad signature"
        if abs(time.time() - int(when)) > 300:
            return 401, "too old"
        self.repeats += name in self.messages
        self.messages.setdefault(name, json.loads(body))
        return 200, ""
