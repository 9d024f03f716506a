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
from trackwalker.node.collectors.rank_net import METRICS, Connection, Namespace, RankNetCollector, _Rank
from trackwalker.node.exporter.exposition import Family
from trackwalker.node.sensors.sysfs import families


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            yield near, far


def values(found: list[Family], name: str) -> dict[str, float]:
    return {labels["host"]: value for f in found if f.name == name for labels, value, _ in f.samples}


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
    found = RankNetCollector([lane(os.getpid()), nobody]).collect()
    assert values(found, "hw_rank_tcp_connections")["box-r0"] >= 1
    assert values(found, "hw_rank_tcp_connections")["box-r1"] == 0
    assert values(found, "hw_rank_tcp_rtt_seconds") == {}, "a path that does not leave the machine is none"
    assert values(found, "hw_net_up") == {}, "devices that all ranks share are the machine's"


def test_a_rank_that_is_gone_has_no_metrics() -> None:
    assert all(not f.samples for f in RankNetCollector([Lane(0, "box-r0", 0, 2**22 + 1)]).collect())


def test_closed_connections_stay_counted(pair: tuple[socket.socket, socket.socket]) -> None:
    collector = RankNetCollector([lane(os.getpid())])
    before = values(collector.collect(), "hw_rank_tcp_retransmits_total")
    for end in pair:
        end.close()
    after = values(collector.collect(), "hw_rank_tcp_retransmits_total")
    assert after["box-r0"] >= before["box-r0"]


def test_both_ends_of_a_connection_of_this_machine_know_each_other(pair: tuple[socket.socket, socket.socket]) -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        near = socket.create_connection(("127.0.0.1", server.getsockname()[1]))
        far, _ = server.accept()  # of the other family
        with near, far:
            space = Namespace("/proc/self/ns/net")
            try:
                found = {c.inode: c for c in space.connections()}
            finally:
                space.close()
            one, other = (found[os.fstat(s.fileno()).st_ino] for s in (near, far))
    assert (one.near, one.far) == (other.far, other.near)


def test_what_does_not_leave_the_machine_is_no_path() -> None:
    here, there = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
    late = 0.04  # an acknowledgement that waits for a late rank's answer

    def looked(retransmits: int, *ends: tuple[bytes, bytes]) -> list[Connection]:
        times = [late if far == here else 0.0002 for _, far in ends]
        return [Connection(n, 0.1, t, retransmits, *e) for n, (t, e) in enumerate(zip(times, ends, strict=True))]

    rank = _Rank(lane(os.getpid()))
    rank._looked, rank._sockets = time.monotonic(), {0, 2}  # it holds one end of each of them
    for ends, trips, repeated in (
        ([(here, here), (here, here)], {}, 0),
        ([(here, here), (here, here), (here, there)], {"box-r0": 0.0002}, 7),
    ):
        out = families(METRICS)
        rank.take(looked(7, *ends))
        rank.add(out)
        assert values(list(out.values()), "hw_rank_tcp_rtt_seconds") == trips
        assert values(list(out.values()), "hw_rank_tcp_retransmits_total") == {"box-r0": repeated}
        assert values(list(out.values()), "hw_rank_tcp_connections") == {"box-r0": len(ends) - 1}


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
