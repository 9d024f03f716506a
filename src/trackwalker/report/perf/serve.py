"""The performance page on this machine's own address, for who has a port forwarded and no way to copy a file."""

from __future__ import annotations

import http.server
from collections.abc import Mapping

from trackwalker.errors import UsageError

_HOSTS = ("127.0.0.1", "localhost", "[::1]")


class PageServer:
    """Serves a few documents that are already made; nothing is read from disk, nothing is changed by a request."""

    def __init__(self, documents: Mapping[str, tuple[str, str]], port: int = 0) -> None:
        """`documents` are kind and text by path; port 0 takes any free one."""

        class Handler(_Handler):
            pass

        Handler.pages = {path: (kind, text.encode()) for path, (kind, text) in documents.items()}

        try:
            self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except (OSError, OverflowError) as e:
            raise UsageError(f"cannot listen on port {port}: {e}; --port 0 takes a free one") from e
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Where a browser finds the page."""
        return f"http://127.0.0.1:{self._server.server_port}/"

    def serve(self) -> None:
        """Answer until `close`, or until the user interrupts."""
        self._server.serve_forever(0.2)

    def close(self) -> None:
        """Stop answering; not from the thread that serves."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10.0
    pages: Mapping[str, tuple[str, bytes]]

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        # A page of another site may have its name point here: such a request carries that name.
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in _HOSTS:
            return self._send(403, "text/plain", b"ask for 127.0.0.1\n", body)
        kind, page = self.pages.get(self.path.split("?", 1)[0], ("", b""))
        return self._send(200, kind, page, body) if kind else self._send(404, "text/plain", b"no such page\n", body)

    def _send(self, status: int, kind: str, raw: bytes, body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(raw)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if body:
            self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        """A user's terminal is not a web server's log."""
