"""Each rank's own TCP connections and links, from the real kernel."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from trackwalker.lab.real import network
from trackwalker.node.collectors.lane import Lane
from trackwalker.node.collectors.rank_net import Namespace, RankNetCollector
from trackwalker.node.exporter.exposition import Family


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            yield near, far


def values(families: list[Family], name: str) -> dict[str, float]:
    return {labels["host"]: value for f in families if f.name == name for labels, value, _ in f.samples}


def lane(pid: int) -> Lane:
    lane = Lane(0, "box-r0", os.getsid(pid), pid)
    lane.members = [pid]
    return lane


def test_the_kernel_tells_of_a_connection(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    near.sendall(b"x")
    assert far.recv(1) == b"x"
    space = Namespace("/proc/self/ns/net")
    try:
        found = {c.inode: c for c in space.connections()}
        mine = found[os.fstat(near.fileno()).st_ino]
        assert 0 < mine.rtt_s < 1
        assert mine.retransmits == 0
        assert mine.idle_s < 5
        assert space.link_works("lo") is True
        assert space.link_works("no-such-device") is None
    finally:
        space.close()


def test_a_rank_has_its_own_connections_only(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].sendall(b"x")
    nobody = Lane(1, "box-r1", 0, os.getpid())  # a rank that holds no socket
    nobody.members = []
    families = RankNetCollector([lane(os.getpid()), nobody]).collect()
    assert values(families, "hw_rank_tcp_connections")["box-r0"] >= 1
    assert values(families, "hw_rank_tcp_connections")["box-r1"] == 0
    assert list(values(families, "hw_rank_tcp_rtt_seconds")) == ["box-r0"]
    assert values(families, "hw_net_up") == {}, "devices that all ranks share are the machine's"


def test_a_rank_that_is_gone_has_no_metrics() -> None:
    families = RankNetCollector([Lane(0, "box-r0", 0, 2**22 + 1)]).collect()
    assert all(not f.samples for f in families)


def test_closed_connections_stay_counted(pair: tuple[socket.socket, socket.socket]) -> None:
    collector = RankNetCollector([lane(os.getpid())])
    before = values(collector.collect(), "hw_rank_tcp_retransmits_total")
    for end in pair:
        end.close()
    after = values(collector.collect(), "hw_rank_tcp_retransmits_total")
    assert after["box-r0"] >= before["box-r0"]


@pytest.mark.starts_processes
def test_a_rank_in_a_namespace_of_its_own_shows_its_link() -> None:
    reason = network.unavailable()
    if reason:
        pytest.skip(reason)
    name = f"twlab-test{os.getpid()}-r0"
    subprocess.run(["ip", "netns", "add", name], check=True)
    sleeper = None
    try:
        for words in ("link add name p0 type veth peer name eth0", "link set eth0 up"):
            subprocess.run(["ip", "-n", name, *words.split()], check=True)
        sleeper = subprocess.Popen(["nsenter", f"--net=/run/netns/{name}", "sleep", "60"])
        deadline = time.monotonic() + 5
        while os.stat(f"/proc/{sleeper.pid}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        collector = RankNetCollector([lane(sleeper.pid)])
        assert values(collector.collect(), "hw_net_up") == {"box-r0": 0}, "the other end is down"
        subprocess.run(["ip", "-n", name, "link", "set", "p0", "up"], check=True)
        while values(collector.collect(), "hw_net_up") != {"box-r0": 1}:  # the kernel tells it a moment later
            assert time.monotonic() < deadline + 5
            time.sleep(0.01)
        assert os.stat("/proc/self/ns/net").st_ino == os.stat("/proc/thread-self/ns/net").st_ino, "we stay where we are"
    finally:
        if sleeper is not None:
            sleeper.kill()
            sleeper.wait()
        subprocess.run(["ip", "netns", "del", name], check=True)
