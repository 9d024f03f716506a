"""Where the agent serves: never wider than it must, on faked interface lists and on this machine."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import pytest

from trackwalker.node.agent.services import address_of
from trackwalker.node.agent.spec import AgentSpec, RankSpec
from trackwalker.node.exporter.server import Exporter
from trackwalker.node.network.address import (
    Interface,
    NoAddress,
    host_port,
    interfaces,
    is_private,
    serving_address,
    source_address,
)

NODE = [
    Interface("lo", "127.0.0.1"),
    Interface("docker0", "172.17.0.1"),
    Interface("br-3f2a", "172.18.0.1"),
    Interface("eth0", "203.0.113.7"),
    Interface("ens1", "10.1.0.7"),
    Interface("ib0", "192.168.4.7"),
    Interface("lo", "::1"),
    Interface("ib0", "fe80::7"),
    Interface("ens1", "fd00::7"),
]


@pytest.mark.parametrize(
    ("towards", "address"),
    [
        ("10.1.0.7", "10.1.0.7"),
        ("192.168.4.7", "192.168.4.7"),
        ("fd00::7", "fd00::7"),
        ("203.0.113.7", "10.1.0.7"),  # the way to the coordinator is public: not without being told
        ("172.17.0.1", "10.1.0.7"),  # nobody else reaches a container bridge
        ("127.0.0.1", "10.1.0.7"),  # we are the coordinator, and our name leads to loopback
        ("", "10.1.0.7"),  # no route
    ],
)
def test_the_private_address_towards_the_coordinator(towards: str, address: str) -> None:
    assert serving_address("", "head", NODE, lambda host: towards) == address
    assert serving_address("", "", NODE, lambda host: pytest.fail("nowhere to go")) == "10.1.0.7"


def test_without_a_private_address_nothing_is_opened() -> None:
    with pytest.raises(NoAddress, match="TRACKWALKER_LISTEN"):
        serving_address("", "head", [i for i in NODE if not is_private(i.address)], lambda host: "203.0.113.7")
    with pytest.raises(NoAddress):
        serving_address("", "head", NODE[:3], lambda host: "172.17.0.1")


@pytest.mark.parametrize(
    ("wanted", "address"),
    [
        ("eth0", "203.0.113.7"),
        ("203.0.113.7", "203.0.113.7"),
        ("203.0.113.0/24", "203.0.113.7"),
        ("192.168.0.0/16", "192.168.4.7"),
        ("fd00::/8", "fd00::7"),
        ("10.9.9.9", "10.9.9.9"),  # a second address of a device is not on our list; the bind will tell
    ],
)
def test_what_was_asked_for(wanted: str, address: str) -> None:
    assert serving_address(wanted, "head", NODE, lambda host: "10.1.0.7") == address


@pytest.mark.parametrize("wanted", ["0.0.0.0", "::", "224.0.0.1", "eth9", "10.77.0.0/16", "no such thing"])  # noqa: S104
def test_what_cannot_be_had_is_said(wanted: str) -> None:
    with pytest.raises(NoAddress, match=r"TRACKWALKER_LISTEN"):
        serving_address(wanted, "head", NODE, lambda host: "10.1.0.7")


@pytest.mark.parametrize(
    ("address", "private"),
    [("10.0.0.1", True), ("172.31.255.1", True), ("172.32.0.1", False), ("169.254.1.1", True), ("100.64.0.1", True),
     ("8.8.8.8", False), ("198.18.0.1", False), ("fd12::1", True), ("2001:db8::1", False), ("127.0.0.1", False)],
)  # fmt: skip
def test_private_means_private(address: str, private: bool) -> None:
    assert is_private(address) == private


def test_this_machine() -> None:
    assert Interface("lo", "127.0.0.1") in interfaces()
    assert source_address("127.0.0.1") == "127.0.0.1"
    assert source_address("no.such.host.invalid") == ""


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_exporter_serves_there_and_only_there(address: str) -> None:
    exporter = Exporter("n", [], {"job_id": "7 é"})
    try:
        port = exporter.start(0, address)
    except OSError:
        pytest.skip(f"no {address} here")
    try:
        with urllib.request.urlopen(f"http://{host_port(address, port)}/healthz") as answer:
            assert answer.headers["Trackwalker-Job"] == "7%20%C3%A9"
        other = socket.socket()
        with other, pytest.raises(OSError, match="refused"):
            other.connect(("127.0.0.2", port))
    finally:
        exporter.stop()


@pytest.mark.parametrize(
    ("world", "told", "address"),
    [(1, "", "127.0.0.1"), (2, "", "10.1.0.7"), (1, "ib0", "192.168.4.7"), (2, "0.0.0.0", "127.0.0.1")],  # noqa: S104
)
def test_an_agent_leaves_loopback_only_for_other_nodes_or_when_told(
    world: int,
    told: str,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ranks = [RankSpec(0, "n-r0", ["true"], {"JAX_COORDINATOR_IP": "head"})]
    spec = AgentSpec("7", "JAX-x", "x", "n", tmp_path / "7-JAX-x", tmp_path / "log", ranks, world, listen=told)
    monkeypatch.delenv("TRACKWALKER_LISTEN", raising=False)
    monkeypatch.setattr("trackwalker.node.network.address.interfaces", lambda: NODE)
    monkeypatch.setattr("trackwalker.node.network.address.source_address", lambda host: "10.1.0.7")
    assert address_of(spec) == address
    assert ("TRACKWALKER_LISTEN" in capfd.readouterr().err) == (told == "0.0.0.0")  # noqa: S104
