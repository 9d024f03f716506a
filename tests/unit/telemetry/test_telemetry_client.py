"""Answers of Prometheus to numbers, against a server that answers from a script."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from trackwalker.errors import EvidenceError, TrackwalkerError
from trackwalker.telemetry.client import Api, QueryError, Telemetry, host_of
from trackwalker.telemetry.matrix import read_matrix

Answer = Callable[[str, dict[str, str]], Any]


@pytest.fixture
def telemetry() -> Iterator[Callable[[Answer], Telemetry]]:
    """Make a Telemetry whose server answers each request with what the given function returns as `data`."""
    opened: list[tuple[http.server.HTTPServer, threading.Thread, Api]] = []

    def make(answer: Answer) -> Telemetry:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                try:
                    reply = {"status": "success", "data": answer(self.path, dict(urllib.parse.parse_qsl(body)))}
                except ValueError as e:
                    reply = {"status": "error", "error": str(e)}
                raw = json.dumps(reply).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST

            def log_message(self, *args: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        api = Api(f"http://127.0.0.1:{server.server_port}", lambda: "its last words")
        opened.append((server, thread, api))
        return Telemetry(api, [(1_000_000, 2_000_000)], [])

    yield make
    for server, thread, api in opened:
        api.close()
        server.shutdown()
        thread.join()
        server.server_close()


def vector(*series: tuple[dict[str, str], str]) -> dict[str, Any]:
    return {"resultType": "vector", "result": [{"metric": m, "value": [5.0, v]} for m, v in series]}


def test_instant_values_are_sorted_and_special_floats_understood(telemetry: Callable[[Answer], Telemetry]) -> None:
    t = telemetry(lambda path, q: vector(({"host": "b"}, "NaN"), ({"host": "a"}, "+Inf"), ({}, "-1.5e3")))
    samples = t.instant("x", 5.0)
    assert [s.labels for s in samples] == [{}, {"host": "a"}, {"host": "b"}]
    assert samples[0].value == -1500
    assert samples[1].value == float("inf")
    assert np.isnan(samples[2].value)
    assert samples[0].time == 5.0
    assert t.queries == 1
    assert t.bytes_read > 100


def test_hosts_come_from_host_or_instance() -> None:
    assert host_of({"host": "n1", "instance": "x:1"}) == "n1"
    assert host_of({"instance": "n2:9400"}) == "n2"
    assert host_of({"instance": "[fe80::1]:9400"}) == "fe80::1"
    assert host_of({"instance": "n3"}) == "n3"
    assert host_of({"job": "ray"}) is None


def test_by_host_joins_ray_and_ours_and_leaves_the_rest_out(telemetry: Callable[[Answer], Telemetry]) -> None:
    t = telemetry(lambda p, q: vector(({"host": "b"}, "2"), ({"instance": "a:55080"}, "1"), ({"job": "x"}, "9")))
    assert t.by_host("x", 5.0) == {"a": 1.0, "b": 2.0}
    assert t.by("x", 5.0, "job") == {"x": 9.0}


def test_two_series_for_one_host_are_an_error_not_a_choice(telemetry: Callable[[Answer], Telemetry]) -> None:
    t = telemetry(lambda p, q: vector(({"host": "b", "gpu": "0"}, "2"), ({"host": "b", "gpu": "1"}, "1")))
    with pytest.raises(QueryError, match=r'more than one series for host "b"; aggregate by \(host\)'):
        t.by_host("x", 5.0)


def test_an_error_is_prometheus_own_message_in_one_line(telemetry: Callable[[Answer], Telemetry]) -> None:
    def refuse(path: str, q: dict[str, str]) -> Any:
        raise ValueError("parse error:\n  unexpected end")

    with pytest.raises(ValueError, match=r"^parse error: unexpected end$") as caught:
        telemetry(refuse).instant("sum(", 5.0)
    assert isinstance(caught.value, TrackwalkerError)


def test_a_matrix_is_fetched_in_parts_and_put_together(telemetry: Callable[[Answer], Telemetry]) -> None:
    def grid(path: str, q: dict[str, str]) -> Any:
        start, end, step = (float(q[k]) for k in ("start", "end", "step"))
        n = round((end - start) / step) + 1
        assert n <= 11_000
        values = [[start + i * step, str(start + i * step)] for i in range(n)]
        late = [pair for pair in values if pair[0] >= 12_345]
        result = [{"metric": {"host": "b"}, "values": values}]
        if late:
            result.append({"metric": {"host": "a"}, "values": late})
        return {"resultType": "matrix", "result": result}

    t = telemetry(grid)
    m = t.matrix("x", 100.0, 100.0 + 25_000, 1.0)
    assert t.queries == 3
    assert m.labels == [{"host": "a"}, {"host": "b"}]
    assert m.values.shape == (2, 25_001)
    np.testing.assert_array_equal(m.values[1], m.times)
    assert np.isnan(m.values[0, : 12_345 - 100]).all()
    np.testing.assert_array_equal(m.values[0, 12_345 - 100 :], m.times[12_345 - 100 :])


def test_a_matrix_of_nothing_has_its_times(telemetry: Callable[[Answer], Telemetry]) -> None:
    m = telemetry(lambda p, q: {"resultType": "matrix", "result": []}).matrix("x", 0.0, 9.0, 3.0)
    assert m.values.shape == (0, 4)
    assert m.times.tolist() == [0.0, 3.0, 6.0, 9.0]


def test_raw_samples_too_many_for_one_query_come_in_halves(telemetry: Callable[[Answer], Telemetry]) -> None:
    stored = [(1000 + i * 7) for i in range(100)]  # milliseconds

    def samples(path: str, q: dict[str, str]) -> Any:
        end = round(float(q["time"]) * 1000)
        span = int(q["query"].partition("[")[2].removesuffix("ms]"))
        inside = [ms for ms in stored if end - span <= ms <= end]
        if len(inside) > 30:
            raise ValueError("query processing would load too many samples into memory in query execution")
        values = [[ms / 1000, str(ms)] for ms in inside]
        return {"resultType": "matrix", "result": [{"metric": {"host": "a"}, "values": values}] if inside else []}

    t = telemetry(samples)
    [(labels, times, values)] = t.raw("x", stored[1] / 1000, stored[-2] / 1000)
    assert labels == {"host": "a"}
    assert values.tolist() == stored[1:-1], "each once, ends included, nothing from outside"
    np.testing.assert_allclose(times, values / 1000)


def test_a_server_that_is_gone_is_said_with_its_last_words(telemetry: Callable[[Answer], Telemetry]) -> None:
    t = telemetry(lambda p, q: None)
    t._api.url = t._api.url.copy_with(port=9)  # type: ignore[misc]
    with pytest.raises(EvidenceError, match="its last words"):
        t.instant("x", 5.0)


def test_a_connection_that_was_closed_meanwhile_is_made_again(telemetry: Callable[[Answer], Telemetry]) -> None:
    t = telemetry(lambda p, q: vector(({"host": "a"}, q["query"])))
    assert t.instant("1", 5.0)[0].value == 1
    (kept,) = t._api._idle  # type: ignore[attr-defined]
    kept.sock.shutdown(socket.SHUT_RDWR)
    assert t.instant("2", 5.0)[0].value == 2
    assert list(t._api._idle) == [kept]  # type: ignore[attr-defined]


def test_who_has_a_login_shows_it_and_a_list_is_many_words() -> None:
    api, sent = Api("http://me:key@127.0.0.1:9", str), []

    class Connection:
        def request(self, *words: Any, **more: Any) -> None:
            sent.append((*words, *more.values()))

        def getresponse(self) -> Any:
            return SimpleNamespace(status=204, read=lambda: b"")

    api._idle.append(Connection())  # type: ignore[arg-type]
    assert api.call("/delete", {"match[]": ["a", "b"]}) is None
    api.call("/labels", {"start": "1"}, "GET")
    login = {"Authorization": "Basic bWU6a2V5"}
    form = {"Content-Type": "application/x-www-form-urlencoded", **login}
    assert sent == [("POST", "/delete", b"match%5B%5D=a&match%5B%5D=b", form), ("GET", "/labels?start=1", login)]


def test_a_matrix_read_without_json_says_the_same_as_json() -> None:
    awkward = '{"metric":"values":[['
    values = [[1772280794.123, "1e-07"], [1772280804, "NaN"], [1772280814.5, "+Inf"], [1772280824, "600.2500000000001"]]
    result = [{"metric": {"__name__": "a", "x": awkward}, "values": values}, {"metric": {}, "values": [[1, "2"]]}]
    body = orjson.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})
    found = read_matrix(body)
    assert found is not None
    assert [labels for labels, _, _ in found] == [s["metric"] for s in result]
    np.testing.assert_array_equal(found[0][1], [t for t, _ in values])
    np.testing.assert_array_equal(found[0][2], [float(str(v)) for _, v in values])
    assert read_matrix(b'{"status":"success","data":{"resultType":"matrix","result":[]}}') is None
