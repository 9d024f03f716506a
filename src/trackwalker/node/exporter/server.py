"""Serves /metrics: what every collector last found, and how the collectors themselves fare."""

from __future__ import annotations

import contextlib
import gzip
import hmac
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

from trackwalker.job.private import metrics_token
from trackwalker.node.exporter.backlog import Backlog
from trackwalker.node.exporter.exposition import Family, render, render_openmetrics
from trackwalker.node.exporter.schedule import Collector, Worker, health
from trackwalker.node.network.address import LOOPBACK

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_SMALLEST_GZIP = 1024
DEFAULT_INTERVAL_S = 1.0
_MOST_CONNECTIONS = 32  # a Prometheus or two, a few people with curl; each costs a thread beside the training
_JOB_HEADER = "Trackwalker-Job"  # in every answer: the recorder tells us from a stranger on the same port by it


class Exporter:
    """Collectors in threads of their own, one HTTP server in front of them."""

    def __init__(
        self,
        node: str,
        collectors: list[Collector],
        info: dict[str, str] | None = None,
        backlog: Backlog | None = None,
        token: str = "",
    ) -> None:
        """With a `token`, who scrapes has to send it as a bearer token."""
        self._node, self.token = node, token
        self.info = info or {}
        self.backlog = backlog or Backlog()
        self._lock = threading.Lock()
        self._workers: list[Worker] = []
        self._started = False
        self._server: _Server | None = None
        for collector in collectors:
            self.add(collector)

    @property
    def path(self) -> str:
        """Where this job's scraper asks: another job's agent, or nearly any other program, has nothing there."""
        return f"/jobs/{quote(self.info.get('job_id', ''))}/metrics"

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
        about = Family("hw_agent_info", "gauge", "The job (and which attempt of it) and the agent that reports it.")
        if self.info:
            about.add(1, None, host=self._node, **self.info)
        return merge([*(f for w in workers for f in w.families()), about, *health(workers, self._node)])

    def text(self) -> str:
        """One scrape in the classic format, by somebody who never scraped before."""
        return render(merge([*self.families(), *self.backlog.since(0)[0]]))

    def labels(self, name: str) -> list[Mapping[str, str]]:
        """The labels of all fresh samples of one metric."""
        with self._lock:
            workers = list(self._workers)
        return [labels for w in workers for f in w.families() if f.name == name for labels, _, _ in f.samples]

    def refresh(self, name: str) -> None:
        """Have a collector look once more, now: its next turn would come too late."""
        with self._lock:
            workers = [w for w in self._workers if w.name == name]
        for worker in workers:
            worker.collect()

    def sick(self) -> list[str]:
        """Collectors that hang or have nothing fresh; empty means healthy."""
        with self._lock:
            return [w.name for w in self._workers if w.wedged() or not w.fresh()]

    def start(self, port: int = 0, address: str = LOOPBACK) -> int:
        """Begin collecting and serve on one address: on `port` if it is free, else on any; returns the port."""
        with self._lock:
            self._started = True
            for worker in self._workers:
                worker.start()
        self.token = self.token or metrics_token()
        handler = _handler(self)
        try:
            self._server = _Server((address, port), handler)
        except OSError:
            if port == 0:
                raise
            self._server = _Server((address, 0), handler)  # somebody else has it now: never share a port
        threading.Thread(target=self._server.serve_forever, name="exporter", daemon=True).start()
        return int(self._server.server_address[1])

    def keep(self, connection: socket.socket) -> None:
        """A connection that asks for something keeps its place among those that only wait."""
        if self._server is not None:
            self._server.served(connection)

    def stop(self) -> None:
        """Stop collecting and close the port."""
        with self._lock:
            for worker in self._workers:
                worker.stop()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    """A thread for each connection, and only so many: who says nothing makes room for who comes."""

    daemon_threads = True
    request_queue_size = 128  # who finds the queue full tries again only after a second, a scraper too
    _held: dict[socket.socket, bool]  # connections in the order they came, and whether a request was answered on it

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._held = {}
        self._room = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take one more connection, in the place of the oldest that never asked anything; else refuse it."""
        with self._room:
            idle = next((held for held, served in self._held.items() if not served), None)
            full = len(self._held) >= _MOST_CONNECTIONS
            if full and idle is not None:
                del self._held[idle]
            if not full or idle is not None:
                self._held[request] = False
        if full and idle is not None:
            with contextlib.suppress(OSError):
                idle.shutdown(socket.SHUT_RDWR)  # its thread wakes up and closes it
        if full and idle is None:
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def served(self, request: Any) -> None:
        """A connection on which a request was answered is a scraper's: it keeps its place."""
        with self._room:
            if request in self._held:
                self._held[request] = True

    def shutdown_request(self, request: Any) -> None:
        """The connection is over."""
        with self._room:
            self._held.pop(request, None)
        super().shutdown_request(request)

    def server_bind(self) -> None:
        """Only bind: the library would also look up our own name, and without DNS wait for it."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: a scraper that gave up or was killed is no news, and a traceback each time would drown our log."""


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
    job = quote(exporter.info.get("job_id", ""))
    token = exporter.token.encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keep-alive: one connection for the whole run
        cursor: int | None = None  # how far into the backlog this connection is; one object lives as long as it
        timeout = 60  # a client that opens a connection and says nothing does not keep a thread for ever

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            if token and not hmac.compare_digest(self.headers.get("Authorization", "").encode(), b"Bearer " + token):
                self.close_connection = True
                self._answer(401, b"this needs its bearer token\n", "text/plain")
                return
            exporter.keep(self.connection)
            if path in ("/metrics", exporter.path):
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
            lasting = self.cursor is not None
            if self.cursor is not None:  # who asks again on the same connection has read the last answer to its end
                exporter.backlog.confirm(self.cursor)
            stamped, cursor = exporter.backlog.since(self.cursor or 0)
            body = write(merge([*exporter.families(), *stamped])).encode()
            self._answer(200, body, _OPENMETRICS if modern else _TEXT)
            self.cursor = cursor
            if lasting:
                exporter.backlog.sent(cursor)

        def _answer(self, code: int, body: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header(_JOB_HEADER, job)
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
