"""Attacks 13 to 15, 17, 18: small inputs with large ideas; a log that is cut while it is read."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from surface import Agent, Cluster, Mcp, children, get, job_log, lands, put_job, stopped_for_time, tw


@pytest.mark.long(reason="its defence is tested from within at every landing; on the surface it takes seconds of work")
def test_a13_a_long_word_does_not_hold_the_redactor_for_minutes(tmp_path: Path) -> None:
    """Words of 300 kB that begin like a name, a flag, a key, a scheme: each once took minutes or none."""
    size = 300_000
    words = ("eyJ-" * (size // 4), "a" * size, "a=" * (size // 2), "--a " * (size // 4), "a." * (size // 2),
             "a://" * (size // 4), '\\"' * (size // 2), "-----BEGIN PRIVATE KEY-----" * (size // 27),
             "token=" + " " * size, "".join(f"A_TOKEN=s{i:07d}x " for i in range(size // 18)))  # fmt: skip
    put_job(tmp_path / "ws", job_log("".join(f"0: {word}\n" for word in words)))
    done = tw("lab", "pack", "77", "--out", tmp_path / "b.tar.gz", "--workspace", tmp_path / "ws", cpu_s=30)
    if stopped_for_time(done):
        lands("thirty seconds of processor time were not enough to pack a log of 2.7 MB")
    assert done.code == 0, done.err


def doubling(levels: int) -> bytes:
    """A pickle of a tuple of twice the tuple before, and so on, as the key of a dictionary."""
    out = b"\x80\x02)q\x00"
    for n in range(levels):
        out += b"h%ch%c\x86q%c" % (n, n, n + 1)
    return out + b"}h%cK\x01s." % levels


def test_a14_a_short_pickle_does_not_run_for_ever(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="the agent extra is not installed")
    folder = put_job(tmp_path / "ws", job_log("0: watchdog: collective timed out\n"))
    node = folder / "stacks" / "hang-1" / "n1"
    (node / "flight-recorder").mkdir(parents=True)
    assert len(doubling(60)) < 600
    ranks = [{"rank": r, "host": "n1", "pid": 10 + r, "now": None, "later": None, "notes": []} for r in range(2)]
    for rank in range(2):
        (node / "flight-recorder" / str(rank)).write_bytes(doubling(60))
    done = {"v": 1, "node": "n1", "attempt": 0, "t": time.time(), "why": "x", "brief": False, "seconds": 1.0,
            "ranks": ranks, "collectors": {}, "files": {}}  # fmt: skip
    (node / "done.json").write_text(json.dumps(done))
    server = Mcp(tmp_path / "ws", tmp_path / "state")
    timer = threading.Timer(40.0, server.process.kill)
    timer.start()
    try:
        answer = server.call("stacks", job="77")
    finally:
        timer.cancel()
        server.end()
    if not answer:
        lands("two dumps of 400 bytes keep a reader busy for ever")
    assert "hang-1" in json.dumps(answer)


@pytest.mark.long(reason="its defence is tested from within at every landing; on the surface it takes a bomb of 1.6 GB")
def test_a15_a_compressed_trace_does_not_take_gigabytes(tmp_path: Path) -> None:
    bomb = tmp_path / "a.xplane.pb.gz"
    with gzip.open(bomb, "wb", compresslevel=1) as out:
        for _ in range(96):
            out.write(bytes(16 << 20))
    assert bomb.stat().st_size < 8 << 20
    done = tw("perf", "show", bomb, file_mb=1024)
    if done.most_mb > 1024 or stopped_for_time(done) or "File too large" in done.err:
        lands(f"{bomb.stat().st_size >> 20} MB became more than a gigabyte in memory or in the temporary folder")
    assert done.code != 0
    assert "times its size" in done.err


@pytest.mark.long(
    reason="its defence is tested from within at every landing; on the surface it takes an agent and its preflight"
)
def test_a17_silent_connections_do_not_take_a_thread_each(tmp_path: Path) -> None:
    told = Cluster(tmp_path / "slurm").submits(tmp_path / "ws")
    agent = Agent(told, "4801", "import time; time.sleep(60)", tmp_path)
    try:
        host, port = agent.address()
        assert get(host, port, "/metrics") == 200

        def threads() -> int:
            family = [agent.process.pid, *children(agent.process.pid)]
            return sum(len(os.listdir(f"/proc/{pid}/task")) for pid in family)

        before = threads()
        with contextlib.ExitStack() as held:
            for _ in range(200):
                held.enter_context(socket.create_connection((host, port), timeout=20))
            time.sleep(1.0)  # the wait is the subject: threads that may come late
            more = threads() - before
            if more > 60:
                lands(f"200 silent connections took {more} threads of the agent")
            assert get(host, port, "/metrics") == 200
    finally:
        agent.end()


@pytest.mark.long(
    reason="its defence is tested from within at every landing; on the surface it takes ten seconds of cutting"
)
def test_a18_a_log_that_is_cut_while_it_is_read_does_not_end_the_mcp_server(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="the agent extra is not installed")
    put_job(tmp_path / "ws", job_log())
    log, size = tmp_path / "ws" / "77-JAX-toy.log", len(job_log())
    server, stop = Mcp(tmp_path / "ws", tmp_path / "state"), threading.Event()

    def cut() -> None:
        """The log grows to hundreds of megabytes without writing them, and is cut again."""
        while not stop.is_set():
            os.truncate(log, 400 << 20)
            stop.wait(0.03)
            os.truncate(log, size)
            stop.wait(0.01)

    cutter = threading.Thread(target=cut)
    cutter.start()
    answers, end = 0, time.monotonic() + 10.0
    try:
        tool = "logs" if "logs" in server.tools else "log_window"
        while time.monotonic() < end and server.call(tool, job="77", contains="nowhere to be found"):
            answers += 1
        time.sleep(0.1)
        ended = server.process.poll()
    finally:
        stop.set()
        cutter.join()
        server.end()
    if ended is not None:
        lands(f"the MCP server died with {ended} after {answers} questions")
    assert answers > 0
