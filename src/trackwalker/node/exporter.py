"""Serves /metrics on loopback: what every collector last found, and how the collectors themselves fare."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from trackwalker.node.exposition import Family, render, render_openmetrics
from trackwalker.node.schedule import Collector, Worker, health

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_SMALLEST_GZIP = 1024
DEFAULT_INTERVAL_S = 1.0


class Exporter:
    """Collectors in threads of their own, one HTTP server in front of them."""

    def __init__(self, node: str, collectors: list[Collector], info: dict[str, str] | None = None) -> None:
        self._node = node
        self._info = info or {}
        self._lock = threading.Lock()
        self._workers: list[Worker] = []
        self._started = False
        self._server: ThreadingHTTPServer | None = None
        for collector in collectors:
            self.add(collector)

    def add(self, collector: Collector, interval_s: float = DEFAULT_INTERVAL_S) -> None:
        """Take in one more collector, also while running."""
        worker = Worker(collector, interval_s)
        with self._lock:
            self._workers.append(worker)
            if self._started:
                worker.start()

    def remove(self, name: str) -> None:
        """Let go of a collector; its series end."""
        with self._lock:
            for worker in [w for w in self._workers if w.name == name]:
                worker.stop()
                self._workers.remove(worker)

    def families(self) -> list[Family]:
        """All fresh families and the collectors' health; before `start` the collectors run here and now."""
        with self._lock:
            workers = list(self._workers)
            if not self._started:
                for worker in workers:
                    worker.collect()
        about = Family("hw_agent_info", "gauge", "The job and the agent that reports it.")
        if self._info:
            about.add(1, None, host=self._node, **self._info)
        return merge([*(f for w in workers for f in w.families()), about, *health(workers, self._node)])

    def text(self) -> str:
        """One scrape in the classic format."""
        return render(self.families())

    def sick(self) -> list[str]:
        """Collectors that hang or have nothing fresh; empty means healthy."""
        with self._lock:
            return [w.name for w in self._workers if w.wedged() or not w.fresh()]

    def start(self, port: int = 0) -> int:
        """Begin collecting and serve on loopback: on `port` if it is free, else on any; returns the port."""
        with self._lock:
            self._started = True
            for worker in self._workers:
                worker.start()
        handler = _handler(self)
        try:
            self._server = _Server(("127.0.0.1", port), handler)
        except OSError:
            if port == 0:
                raise
            self._server = _Server(("127.0.0.1", 0), handler)  # somebody else has it now: never share a port
        threading.Thread(target=self._server.serve_forever, name="exporter", daemon=True).start()
        return int(self._server.server_address[1])

    def stop(self) -> None:
        """Stop collecting and close the port."""
        with self._lock:
            for worker in self._workers:
                worker.stop()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True


def merge(families: list[Family]) -> list[Family]:
    """One family per name: the format forbids a name twice, and lanes and machine share names."""
    merged: dict[str, Family] = {}
    for family in families:
        if family.name in merged:
            merged[family.name].samples.extend(family.samples)
        else:
            merged[family.name] = Family(family.name, family.kind, family.help, list(family.samples))
    return list(merged.values())


def _handler(exporter: Exporter) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keep-alive: one connection for the whole run
        timeout = 60  # a client that opens a connection and says nothing does not keep a thread for ever

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            if path == "/metrics":
                self._metrics()
            elif path == "/healthz":
                sick = exporter.sick()
                said = "ok\n" if not sick else "".join(f"{name}: no fresh result\n" for name in sick)
                self._answer(503 if sick else 200, said.encode(), "text/plain")
            else:
                self._answer(404, b"only /metrics and /healthz live here\n", "text/plain")

        def _metrics(self) -> None:
            modern = "application/openmetrics-text" in self.headers.get("Accept", "")
            write: Callable[[list[Family]], str] = render_openmetrics if modern else render
            self._answer(200, write(exporter.families()).encode(), _OPENMETRICS if modern else _TEXT)

        def _answer(self, code: int, body: bytes, kind: str) -> None:
            self.send_response(code)
            if len(body) >= _SMALLEST_GZIP and "gzip" in self.headers.get("Accept-Encoding", ""):
                body = gzip.compress(body, compresslevel=1)
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass  # a line per second per scraper would drown the agent's log

    return Handler
