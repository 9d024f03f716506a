"""A store that belongs to others: who we say we are, when it is busy, what we refuse to ask of it."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest

from trackwalker.errors import EvidenceError
from trackwalker.telemetry.foreign import remote
from trackwalker.telemetry.foreign.remote import Access, RemoteStore


class Store:
    """Answers as Prometheus does, after refusing as often as it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str], dict[str, list[str]]]] = []
        self.refusals: list[tuple[int, str]] = []
        self.wanted: dict[str, str] = {}
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = parse_qs(self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode())
                store.answer(self, body)

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/prometheus"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler, body: dict[str, list[str]]) -> None:
        with self._lock:
            self.asked.append((request.path, dict(request.headers), body))
            refused = self.refusals.pop(0) if self.refusals else None
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        sent = {name.lower(): value for name, value in request.headers.items()}
        if any(sent.get(name.lower()) != value for name, value in self.wanted.items()):
            refused = (401, "")
        code, again = refused or (200, "")
        rows = [{"metric": {"host": "n1"}, "values": [[float(t), "1"] for t in range(10, 40, 10)]}]
        data = {"status": "success", "data": {"resultType": "matrix", "result": rows}}
        content = json.dumps(data, separators=(",", ":")).encode() if code == 200 else b"slow down"
        request.send_response(code)
        if again:
            request.send_header("Retry-After", again)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)
        with self._lock:
            self.at_once -= 1

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(remote.time, "sleep", waited.append)
    return waited


def auth(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "auth"
    path.write_text(text + "\n")
    path.chmod(0o600)
    return path


def read(store: RemoteStore, series: int = 1) -> int:
    rows, _ = store.raw(["m"], 0.0, 60.0, series, 10.0)
    return len(rows)


def test_a_token_a_password_and_a_tenant_arrive_as_the_store_wants_them(store: Store, tmp_path: Path) -> None:
    store.wanted = {"Authorization": "Bearer abc", "X-Scope-OrgID": "ml"}
    assert read(RemoteStore(Access(store.url, auth(tmp_path, "bearer abc"), "ml"))) == 1
    store.wanted = {"Authorization": "Basic " + base64.b64encode(b"me:pass word").decode()}
    assert read(RemoteStore(Access(store.url, auth(tmp_path, "basic me:pass word")))) == 1
    assert {path.partition("?")[0] for path, _, _ in store.asked} == {"/prometheus/api/v1/query"}


def test_who_is_refused_is_told_which_options_say_who_he_is(store: Store, tmp_path: Path) -> None:
    store.wanted = {"Authorization": "Bearer abc"}
    with pytest.raises(EvidenceError, match=r"refuses us \(401\).*--metrics-auth-file") as error:
        read(RemoteStore(Access(store.url, auth(tmp_path, "bearer wrong"))))
    assert "wrong" not in str(error.value)


def test_a_busy_store_is_left_alone_for_as_long_as_it_says(store: Store, pauses: list[float]) -> None:
    store.refusals = [(429, "7"), (503, ""), (429, "900")]
    asked = RemoteStore(Access(store.url))
    assert read(asked) == 1
    assert pauses == [7.0, 2.0, 30.0], "its own word, else longer each time, never for minutes"
    assert asked.cost.waited == 3
    assert asked.cost.queries == 4


def test_a_store_that_stays_busy_is_not_asked_for_ever(store: Store, pauses: list[float]) -> None:
    store.refusals = [(503, "")] * 50
    with pytest.raises(EvidenceError, match=r"is busy \(503\) and was asked 5 times"):
        read(RemoteStore(Access(store.url)))
    assert len(store.asked) == 5


def test_four_questions_at_a_time(store: Store) -> None:
    asked = RemoteStore(Access(store.url))
    rows, _ = asked.raw([f"m{i}" for i in range(40)], 0.0, 60.0, 40, 10.0)
    assert len(rows) == 40
    assert store.most_at_once <= remote.AT_ONCE


def test_too_much_is_refused_before_it_is_asked(store: Store) -> None:
    asked = RemoteStore(Access(store.url))
    with pytest.raises(EvidenceError, match="more than 50,000: name fewer --hosts"):
        read(asked, series=50_001)
    with pytest.raises(EvidenceError, match="more than 100,000,000 samples"):
        asked.raw(["m"], 0.0, 7 * 86400.0, 50_000, 60.0)
    assert store.asked == []


def test_a_large_fleet_is_read_coarser_and_says_so(store: Store) -> None:
    _, every = RemoteStore(Access(store.url)).raw(["m"], 0.0, 7200.0, 8000, 30.0)
    assert every == 120.0
    path, _, body = store.asked[0]
    assert path == "/prometheus/api/v1/query_range"
    assert (body["step"], body["query"]) == (["120.000"], ["last_over_time(m[120000ms])"])


def test_samples_on_the_edge_of_two_pieces_count_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_PER_ANSWER", 6)
    rows, _ = RemoteStore(Access(store.url)).raw(["m"], 0.0, 120.0, 1, 10.0)
    assert sorted(np.concatenate([times for _, times, _ in rows]).tolist()) == [10.0, 20.0, 30.0]


@pytest.mark.starts_processes
def test_a_certificate_of_ones_own_is_believed_only_when_it_is_named(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    make += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(make, check=True, capture_output=True)
    store = Store()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    store.server.socket = context.wrap_socket(store.server.socket, server_side=True)
    url = store.url.replace("http://", "https://")
    try:
        assert read(RemoteStore(Access(url, ca_file=cert))) == 1
        with pytest.raises(EvidenceError, match="does not answer"):
            read(RemoteStore(Access(url)))
    finally:
        store.close()
