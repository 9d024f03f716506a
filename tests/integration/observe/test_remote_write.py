"""A second copy of every sample in a real VictoriaMetrics: it arrives, an outage heals, the local record is whole."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_ports
from recorded_job import Exporter, Job, wait_for
from victoria import PASSWORD, USER, Victoria, find_victoria

from trackwalker.observe.remote_write import AUTH_VARIABLE, URL_VARIABLE


@pytest.fixture
def job(tmp_path: Path, prometheus: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.close()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter()
    yield exporter
    exporter.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Victoria]:
    store = Victoria(find_victoria(), tmp_path, free_ports(1)[0])
    yield store
    store.stop()


def command_lines() -> bytes:
    """Of every process on this machine but stores: each was told its password so, another test's beside us, too."""
    found = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes()
            found += b"" if b"-storageDataPath=" in words else words
    return found


def test_samples_arrive_and_an_outage_leaves_no_gap(
    job: Job, exporter: Exporter, store: Victoria, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = tmp_path / "auth"
    auth.write_text(f"basic {USER}:{PASSWORD}\n")
    monkeypatch.setenv(URL_VARIABLE, f"{store.url}/api/v1/write")
    monkeypatch.setenv(AUTH_VARIABLE, str(auth))
    store.start()
    job.announce(exporter)
    recorder = job.start()
    job.server()
    wait_for(lambda: len(store.samples("scrapes_total")) >= 3, 60, job.output)
    [secret] = job.local.glob("1-*/remote-write.secret")
    assert secret.stat().st_mode & 0o777 == 0o600
    assert PASSWORD not in secret.with_name("prometheus.yml").read_text()

    store.stop()
    # The store itself was told its password by argument; nothing of ours may be.
    assert PASSWORD.encode() not in command_lines()
    outage = exporter.scrapes
    wait_for(lambda: exporter.scrapes >= outage + 6, 60, job.output)
    during = exporter.scrapes
    store.start()
    wait_for(lambda: set(range(1, during + 1)) <= set(store.samples("scrapes_total")), 90, job.output)

    job.event("run-end")
    assert recorder.wait(40) == 0, job.output.read_text()
    assert job.counts()[exporter.address] == list(range(1, exporter.scrapes + 1)), "the local record is whole"
    written = [p for p in job.dir.rglob("*") if p.is_file()]
    assert len(written) > 3
    for path in (*written, job.output):
        assert PASSWORD.encode() not in path.read_bytes(), path


def test_a_store_that_never_answers_costs_nothing(
    job: Job, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, f"http://127.0.0.1:{free_ports(1)[0]}/api/v1/write")
    job.announce(exporter)
    recorder = job.start()
    job.server()
    wait_for(lambda: exporter.scrapes >= 4, 30, job.output)
    ended = time.monotonic()
    job.event("run-end")
    assert recorder.wait(40) == 0, job.output.read_text()
    assert time.monotonic() - ended < 30, "waiting for the store must not hold up the end for its usual minute"
    assert job.counts()[exporter.address] == list(range(1, exporter.scrapes + 1))


def test_a_broken_auth_file_does_not_stop_the_recording(
    job: Job, exporter: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:9/api/v1/write")
    monkeypatch.setenv(AUTH_VARIABLE, str(tmp_path / "gone"))
    job.announce(exporter)
    recorder = job.start()
    job.server()
    job.event("run-end")
    assert recorder.wait(40) == 0, job.output.read_text()
    assert "gone cannot be read: No such file or directory; nothing is sent" in job.output.read_text()
