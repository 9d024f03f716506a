"""Serves /metrics on loopback; each collector is contained and exports its own health."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol

from trackwalker.node.exposition import Family, render


class Collector(Protocol):
    """A source of metrics. A read that fails yields no sample, never a zero."""

    name: str

    def collect(self) -> list[Family]:
        """The families as of now."""
        ...


class Exporter:
    """Runs the collectors at scrape time, so that a stuck agent can never serve old values as new."""

    def __init__(self, node: str, collectors: list[Collector]) -> None:
        self._node = node
        self._collectors = collectors
        self._lock = threading.Lock()  # collectors keep state between reads; two scrapers take turns
        self._server: ThreadingHTTPServer | None = None

    def text(self) -> str:
        """One scrape: all collectors' families and their health."""
        up = Family("hw_collector_up", "gauge", "Whether the collector answered this scrape.")
        took = Family("hw_collector_duration_seconds", "gauge", "How long the collector took this scrape.")
        total = Family("hw_scrape_duration_seconds", "gauge", "How long all collectors took this scrape.")
        out: list[Family] = []
        with self._lock:
            begin = time.perf_counter()
            for collector in self._collectors:
                t0 = time.perf_counter()
                try:
                    out.extend(collector.collect())
                    ok = 1
                except Exception:  # a broken collector must not take the others' samples with it
                    ok = 0
                up.add(ok, host=self._node, collector=collector.name)
                took.add(time.perf_counter() - t0, host=self._node, collector=collector.name)
            total.add(time.perf_counter() - begin, host=self._node)
        return render([*merge(out), up, took, total])

    def start(self) -> int:
        """Serve from a thread on a free loopback port; returns the port."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self.text))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="exporter", daemon=True).start()
        return int(self._server.server_address[1])

    def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


def merge(families: list[Family]) -> list[Family]:
    """One family per name: the format forbids a name twice, and lanes and machine share names."""
    merged: dict[str, Family] = {}
    for family in families:
        if family.name in merged:
            merged[family.name].samples.extend(family.samples)
        else:
            merged[family.name] = family
    return list(merged.values())


def _handler(text: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keep-alive: one connection for the whole run

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            if path == "/metrics":
                self._answer(200, text().encode(), "text/plain; version=0.0.4; charset=utf-8")
            elif path == "/healthz":
                self._answer(200, b"ok\n", "text/plain")
            else:
                self._answer(404, b"only /metrics and /healthz live here\n", "text/plain")

        def _answer(self, code: int, body: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass  # a line per second per scraper would drown the agent's log

    return Handler
