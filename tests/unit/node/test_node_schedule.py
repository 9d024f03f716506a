"""Collectors on a schedule: contained, on time, never serving ghosts; the exporter's formats."""

from __future__ import annotations

import gzip
import socket
import struct
import threading
import time
import urllib.error
import urllib.request

import pytest

from trackwalker.node.exporter.exposition import Family, render_openmetrics
from trackwalker.node.exporter.schedule import Worker
from trackwalker.node.exporter.server import Exporter


class Source:
    """A collector whose next answers the test decides."""

    def __init__(self, name: str = "s") -> None:
        self.name = name
        self.calls: list[float] = []
        self.hang = threading.Event()
        self.hanging = False
        self.error = False

    def collect(self) -> list[Family]:
        self.calls.append(time.monotonic())
        if self.error:
            raise OSError("EIO")
        if self.hanging:
            self.hang.wait(20)
        family = Family("hw_x", "gauge", "x")
        family.add(len(self.calls), host="n")
        return [family]


def wait_for(condition: object, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.real_clock
def test_a_hung_collector_delays_nobody_and_its_values_are_withheld() -> None:
    good, bad = Source("good"), Source("bad")
    exporter = Exporter("n", [])
    exporter.add(good, 0.05)
    exporter.add(bad, 0.05)
    port = exporter.start()
    try:
        wait_for(lambda: exporter.sick() == [])
        bad.hanging = True
        wait_for(lambda: exporter.sick() == ["bad"])
        before = len(good.calls)
        time.sleep(0.3)  # the wait is the subject: who keeps a schedule
        assert len(good.calls) >= before + 3, "the other collector keeps its schedule"
        families = {f.name: f.samples for f in exporter.families()}
        wedged = {labels["collector"]: value for labels, value, _ in families["hw_collector_wedged"]}
        assert wedged == {"good": 0, "bad": 1}
        assert len(families["hw_x"]) == 1, "what the hung one last knew is a ghost by now"
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz")
        assert error.value.code == 503
        assert error.value.read() == b"bad: no fresh result\n"
        bad.hanging = False
        bad.hang.set()
        wait_for(lambda: exporter.sick() == [])  # it recovers by itself
    finally:
        bad.hang.set()
        exporter.stop()


def test_errors_are_counted_and_withhold_the_samples() -> None:
    source = Source()
    worker = Worker(source, 0.02)
    worker.collect()
    assert [f.name for f in worker.families()] == ["hw_x"]
    source.error = True
    worker.collect()
    time.sleep(0.08)
    assert worker.families() == []
    assert not worker.fresh()


@pytest.mark.real_clock
def test_work_does_not_shift_the_schedule() -> None:
    class Slow(Source):
        def collect(self) -> list[Family]:
            families = super().collect()
            time.sleep(0.03)
            return families

    source = Slow()
    worker = Worker(source, 0.1)
    worker.start()
    time.sleep(1.55)  # the wait is the subject: fifteen turns of a schedule
    worker.stop()
    gaps = [b - a for a, b in zip(source.calls, source.calls[1:], strict=False)]
    assert len(source.calls) >= 13, "sleeping after the work would give 12 at most"
    assert sum(gaps) / len(gaps) == pytest.approx(0.1, abs=0.01)


def get(port: int, **headers: str) -> tuple[bytes, dict[str, str]]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - our own loopback address
        return answer.read(), dict(answer.headers)


def test_gzip_and_openmetrics_when_asked_for() -> None:
    class Big(Source):
        def collect(self) -> list[Family]:
            family = Family("hw_things_total", "counter", "Things.")
            for i in range(100):
                family.add(i, host=f"h{i}")
            return [family]

    exporter = Exporter("n", [Big("big")], {"job_id": "7"})
    port = exporter.start()
    try:
        wait_for(lambda: exporter.sick() == [])
        plain, headers = get(port)
        assert "Content-Encoding" not in headers
        assert b'hw_agent_info{host="n",job_id="7"} 1' in plain
        packed, headers = get(port, **{"Accept-Encoding": "gzip"})
        assert headers["Content-Encoding"] == "gzip"
        assert b'hw_things_total{host="h99"} 99' in gzip.decompress(packed)
        modern, headers = get(port, Accept="application/openmetrics-text;version=1.0.0")
        assert headers["Content-Type"].startswith("application/openmetrics-text")
        assert b"# TYPE hw_things counter\n" in modern
        assert modern.endswith(b"# EOF\n")
    finally:
        exporter.stop()


def test_openmetrics_details() -> None:
    stamped = Family("tb_step", "gauge", "Step.")
    stamped.add(5, time=12.3456, host="n")
    odd = Family("hw_io_pressure_full_total_us", "counter", "Upstream's name.")
    odd.add(1, host="n")
    text = render_openmetrics([stamped, odd])
    assert 'tb_step{host="n"} 5 12.346\n' in text
    assert "# TYPE hw_io_pressure_full_total_us unknown\n" in text


def test_a_busy_port_is_never_shared() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        taken = stranger.getsockname()[1]
        exporter = Exporter("n", [Source()])
        try:
            assert exporter.start(taken) != taken
        finally:
            exporter.stop()
    again = Exporter("n", [Source()])
    try:
        assert again.start(taken) == taken, "a free port that was asked for is kept"
    finally:
        again.stop()


def test_a_scraper_that_is_killed_leaves_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    exporter = Exporter("n", [Source()])
    port = exporter.start()
    try:
        with socket.create_connection(("127.0.0.1", port)) as scraper:
            scraper.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            scraper.recv(1)
            scraper.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
        assert get(port)[0]
        time.sleep(0.1)
    finally:
        exporter.stop()
    assert "Traceback" not in capfd.readouterr().err
