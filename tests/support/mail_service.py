"""A small SMTP server on a free port of this machine; it fails like the services of message_services.py."""

from __future__ import annotations

import base64
import email
import email.message
import email.policy
import socketserver
import threading
from collections import deque
from collections.abc import Callable
from typing import ClassVar

from message_services import Fault


class MailService:
    """A small SMTP server; a mailbox keeps each Message-ID once."""

    PASSWORD: ClassVar[str] = "mail-pass-neverShownAnywhere"  # noqa: S105

    def __init__(self) -> None:
        self.faults: deque[Fault] = deque()
        self.mails: list[email.message.EmailMessage] = []
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.lock = threading.Lock()
        service = self

        class Handler(socketserver.StreamRequestHandler):
            disable_nagle_algorithm = True

            def handle(self) -> None:
                self.wfile.write(b"220 mail.example ESMTP\r\n")
                while line := self.rfile.readline():
                    word = line.split()[0].upper() if line.split() else b""
                    if word == b"EHLO":
                        self.wfile.write(b"250-mail.example\r\n250 AUTH PLAIN LOGIN\r\n")
                    elif word == b"AUTH":
                        given = base64.b64decode(line.split()[2])
                        right = given.endswith(b"\0" + service.PASSWORD.encode())
                        self.wfile.write(b"235 welcome\r\n" if right else b"535 5.7.8 authentication failed\r\n")
                    elif word == b"DATA":
                        self.wfile.write(b"354 go on\r\n")
                        if not self._data():
                            return
                    elif word == b"QUIT":
                        self.wfile.write(b"221 bye\r\n")
                        return
                    else:
                        self.wfile.write(b"250 ok\r\n")

            def _data(self) -> bool:
                raw = b""
                while not raw.endswith(b"\r\n.\r\n"):
                    block = self.rfile.readline()
                    if not block:
                        return False
                    raw += block
                with service.lock:
                    fault = service.faults.popleft() if service.faults else None
                service.before()
                if fault == "drop":
                    return False
                if isinstance(fault, int):
                    self.wfile.write(f"{fault} not now\r\n".encode())
                    return True
                with service.lock:
                    parsed = email.message_from_bytes(raw[:-5], policy=email.policy.default)
                    service.mails.append(parsed)  # type: ignore[arg-type]
                service.after()
                if fault == "take-drop":
                    return False
                self.wfile.write(b"250 2.0.0 queued\r\n")
                return True

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.port = self._server.server_address[1]

    @property
    def mailbox(self) -> dict[str, email.message.EmailMessage]:
        """What a mail program shows."""
        return {str(mail["Message-ID"]): mail for mail in self.mails}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
