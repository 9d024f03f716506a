"""One network for all nodes: chosen from all of them, never a bridge or a public address, the user's word above all."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from fabric_trees import netdev, rdma

from trackwalker.node.network.interfaces import Nic, links, nics
from trackwalker.node.network.plan import (
    NetworkPlan,
    NodeNet,
    NoNetwork,
    Wishes,
    ifname_matches,
    plan_network,
    this_node,
)
from trackwalker.node.stages.stage_work import KNOWN, NoPort, ephemeral_range, hold_port

LO = Nic("lo", "127.0.0.1", 8, kind="loopback")
DOCKER = Nic("docker0", "172.17.0.1", 16, kind="bridge")
VIRBR = Nic("virbr0", "192.168.122.1", 24, kind="bridge")
BMC = Nic("enx0", "169.254.3.1", 24)


def node(number: int, *more: Nic, inside: bool = True) -> NodeNet:
    """A node with the networks that every machine has for itself."""
    overlays = (
        DOCKER,
        VIRBR,
        BMC,
        Nic("cni0", f"10.244.{number}.1", 24, kind="bridge"),
        Nic("flannel.1", f"10.244.{number}.0", 32, kind="virtual"),
        Nic("net1", f"10.244.9.{number}", 24, kind="virtual"),  # a plug-in network under an innocent name
        Nic("br-3f2a", "172.18.0.1", 16, kind="bridge"),
        Nic("eth9", "192.168.7.1", 24, kind="bridge"),  # one address on all machines: nobody's network
    )
    return NodeNet(f"n{number}", f"boot-{number}", (LO, *(overlays if inside else ()), *more))


def private(number: int, name: str = "ens1", net: str = "10.1.0", speed: int = 25_000) -> Nic:
    return Nic(name, f"{net}.{number}", 24, speed=speed)


def public(number: int, name: str = "eth0") -> Nic:
    return Nic(name, f"203.0.113.{number}", 24, speed=10_000)


def test_r26_bridges_and_overlays_are_never_chosen() -> None:
    plan = plan_network([node(n, public(n), private(n)) for n in (1, 2, 3)])
    assert plan.coordinator == "10.1.0.1"
    assert plan.network == "10.1.0.0/24"
    assert [(p.host, p.bind, p.socket_ifname) for p in plan.places] == [
        (f"n{n}", f"10.1.0.{n}", "=ens1") for n in (1, 2, 3)
    ]
    assert "NCCL INFO n2: NCCL_SOCKET_IFNAME==ens1" in plan.lines


def test_r26_without_a_common_private_network_nothing_is_chosen() -> None:
    with pytest.raises(NoNetwork) as error:
        plan_network([node(1), node(2)])
    assert "docker0 172.17.0.1/16 (inside)" in str(error.value)
    assert "NCCL_SOCKET_IFNAME" in str(error.value)


def test_r26_a_card_numbered_like_a_container_network_is_a_card() -> None:
    plan = plan_network([node(n, private(n, net="10.244.77")) for n in (1, 2)])
    assert plan.coordinator == "10.244.77.1"


def test_r27_the_users_interface_wins_over_a_good_detection() -> None:
    nodes = [node(n, private(n), private(n, "ens2", "10.2.0")) for n in (1, 2)]
    plan = plan_network(nodes, Wishes(socket_ifname="ens2"))
    assert plan.coordinator == "10.2.0.1"
    assert {p.socket_ifname for p in plan.places} == {"ens2"}  # as the user wrote it
    assert [p.bind for p in plan.places] == ["10.2.0.1", "10.2.0.2"]


def test_r27_the_users_interface_wins_when_detection_fails() -> None:
    nodes = [node(n, public(n)) for n in (1, 2)]
    with pytest.raises(NoNetwork):
        plan_network(nodes)
    plan = plan_network(nodes, Wishes(socket_ifname="eth0"))
    assert plan.coordinator == "203.0.113.1"
    assert any("public address, used because you asked" in text for text in plan.lines)


def test_r27_the_users_coordinator_wins_when_detection_fails() -> None:
    plan = plan_network([node(1), node(2)], Wishes(coordinator="head.cluster"))
    assert plan.coordinator == "head.cluster"
    assert {p.bind for p in plan.places} == {"127.0.0.1"}  # what nobody knows stays closed
    assert {p.socket_ifname for p in plan.places} == {""}
    assert any(text.startswith("[WARN] no private network") for text in plan.lines)


def test_r27_an_interface_that_only_ranks_see_needs_the_coordinator_too() -> None:
    nodes = [node(1), node(2)]
    with pytest.raises(NoNetwork, match="JAX_COORDINATOR_IP"):
        plan_network(nodes, Wishes(socket_ifname="hsn0"))
    plan = plan_network(nodes, Wishes(socket_ifname="hsn0", coordinator="10.9.0.1"))
    assert {(p.socket_ifname, p.bind) for p in plan.places} == {("hsn0", "127.0.0.1")}


@pytest.mark.parametrize("wanted", ["ens2", "10.2.0.0/16"])
def test_r27_a_network_to_listen_on(wanted: str) -> None:
    nodes = [node(n, private(n), private(n, "ens2", "10.2.0")) for n in (1, 2)]
    plan = plan_network(nodes, Wishes(network=wanted))
    assert [p.bind for p in plan.places] == ["10.2.0.1", "10.2.0.2"]
    assert plan.places[1].socket_ifname == "=ens2"
    with pytest.raises(NoNetwork, match=r"n1 has no address on 10\.3"):
        plan_network(nodes, Wishes(network="10.3.0.0/16"))


def test_r30_public_addresses_are_refused_unless_asked_for() -> None:
    nodes = [node(n, public(n)) for n in (1, 2)]
    with pytest.raises(NoNetwork, match=r"eth0 203\.0\.113\.1/24 \(public\)"):
        plan_network(nodes)
    assert plan_network(nodes, Wishes(public=True)).coordinator == "203.0.113.1"
    with_private = [node(n, public(n), private(n, speed=1000)) for n in (1, 2)]
    assert plan_network(with_private, Wishes(public=True)).coordinator == "10.1.0.1"


def test_r30_nothing_listens_on_all_addresses() -> None:
    for wishes in (Wishes(), Wishes(public=True), Wishes(coordinator="x"), Wishes(socket_ifname="ens1")):
        plan = plan_network([node(n, public(n), private(n)) for n in (1, 2)], wishes)
        assert not {p.bind for p in plan.places} & {"", "0.0.0.0", "::"}  # noqa: S104 - that is the point


def test_r30_one_machine_stays_on_loopback() -> None:
    one = plan_network([node(1, public(1))])
    assert (one.coordinator, one.places[0].bind, one.places[0].socket_ifname) == ("127.0.0.1", "127.0.0.1", "=lo")
    assert one.lines == []
    shared = [replace(node(n, public(1)), machine="same") for n in (1, 2, 3)]  # several agents on one machine
    assert {p.bind for p in plan_network(shared).places} == {"127.0.0.1"}


def test_names_may_differ_where_the_subnet_agrees() -> None:
    nodes = [node(1, private(1, "ens1")), node(2, private(2, "enp65s0")), node(3, private(3, "ens1"))]
    assert [p.socket_ifname for p in plan_network(nodes).places] == ["=ens1", "=enp65s0", "=ens1"]


def test_two_cards_in_one_subnet() -> None:
    crossed = [node(1, private(1, "a"), private(11, "b")), node(2, private(12, "a"), private(2, "b"))]
    assert {p.interface for p in plan_network(crossed).places} == {"a"}


def test_rdma_rails_are_left_to_the_collectives() -> None:
    rails = [[replace(private(n, f"rail{r}", f"10.0.{r}", 400_000), rdma=True) for r in range(8)] for n in (1, 2)]
    plan = plan_network([node(n, *rails[n - 1], private(n, "ens1", "192.168.1")) for n in (1, 2)])
    assert plan.network == "192.168.1.0/24"
    assert plan_network([node(n, *rails[n - 1]) for n in (1, 2)]).network == "10.0.0.0/24"  # when there is nothing else


def test_the_faster_of_two_networks_and_links_that_are_up() -> None:
    nodes = [node(n, private(n, "eno1", "10.0.0", 1000), private(n, "ens1", "10.1.0", 100_000)) for n in (1, 2)]
    assert plan_network(nodes).network == "10.1.0.0/24"
    down = node(2, private(2, "eno1", "10.0.0", 1000), replace(private(2, "ens1", "10.1.0", 100_000), up=False))
    assert plan_network([nodes[0], down]).network == "10.0.0.0/24"


def test_nodes_behind_routers_meet_on_one_device_name() -> None:
    plan = plan_network([node(n, Nic("bond0", f"10.{n}.0.5", 24, kind="bond")) for n in (1, 2)])
    assert [p.bind for p in plan.places] == ["10.1.0.5", "10.2.0.5"]
    assert any("different subnets" in text for text in plan.lines)


def test_ipv6_when_there_is_nothing_else() -> None:
    plan = plan_network([node(n, Nic("ens1", f"fd00::{n}", 64), Nic("ens1", f"fe80::{n}", 64)) for n in (1, 2)])
    assert plan.coordinator == "fd00::1"


def test_the_order_of_interfaces_does_not_matter() -> None:
    nodes = [node(n, private(n, "a", "10.5.0"), private(n, "b", "10.4.0")) for n in (1, 2)]
    mixed = [replace(n, nics=tuple(reversed(n.nics))) for n in nodes]
    assert plan_network(nodes) == plan_network(mixed)
    assert plan_network(nodes).network == "10.4.0.0/24"


def test_records_travel_as_json() -> None:
    nodes = [node(n, private(n)) for n in (1, 2)]
    back = [NodeNet.from_record(json.loads(json.dumps(asdict(n)))) for n in nodes]
    plan = plan_network(back)
    assert NetworkPlan.from_record(json.loads(json.dumps(asdict(plan)))) == plan == plan_network(nodes)


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("eth", "eth0", True),
        ("eth0", "eth01", True),
        ("=eth0", "eth01", False),
        ("=eth0,ens1", "ens1", True),
        ("ib,ens", "ens3", True),
        ("^docker", "docker0", False),
        ("^docker", "ens1", True),
        ("^docker", "lo", False),
        ("^=eth0", "eth01", True),
    ],
)
def test_the_grammar_of_nccl(pattern: str, name: str, fits: bool) -> None:
    assert ifname_matches(pattern, name) is fits


def test_links_from_sysfs(tmp_path: Path) -> None:
    netdev(tmp_path, "ens1", speed=100_000)
    netdev(tmp_path, "ens2", state="down", speed=-1)
    netdev(tmp_path, "virtio", state="unknown")
    netdev(tmp_path, "bond0", kind="bond", speed=200_000)
    netdev(tmp_path, "ens1.7", kind="vlan", speed=100_000)
    netdev(tmp_path, "docker0", kind="bridge")
    netdev(tmp_path, "veth1", kind="virtual", speed=10_000)
    netdev(tmp_path, "lo", state="unknown", kind="loopback")
    (tmp_path / "class/net/bonding_masters").write_text("bond0\n")
    rdma(tmp_path, 4)
    found = {link.name: link for link in links(str(tmp_path))}
    assert {n: (k.up, k.speed, k.kind, k.rdma) for n, k in found.items() if n != "ens4"} == {
        "ens1": (True, 100_000, "physical", False),
        "ens2": (False, 0, "physical", False),
        "virtio": (True, 0, "physical", False),
        "bond0": (True, 200_000, "bond", False),
        "ens1.7": (True, 100_000, "vlan", False),
        "docker0": (True, 0, "bridge", False),
        "veth1": (True, 10_000, "virtual", False),
        "lo": (True, 0, "loopback", False),
    }


def test_this_machine() -> None:
    here = this_node("here")
    assert Nic("lo", "127.0.0.1", 8, kind="loopback") in here.nics
    assert here.machine == this_node("again").machine
    assert len(nics()) == len({(n.name, n.address) for n in nics()})


def listening(port: int) -> socket.socket:
    taken = socket.socket()
    taken.bind(("127.0.0.1", port))
    taken.listen()
    return taken


def port_of(held: socket.socket) -> int:
    return int(held.getsockname()[1])


def test_r31_a_port_is_out_of_everybodys_way() -> None:
    first, last = ephemeral_range()
    with hold_port("coordinator", "42") as held:
        port = port_of(held)
        assert port not in KNOWN
        assert not 10002 <= port < 20000, "Ray gives these to its workers"
        assert not first <= port <= last


def test_r31_two_jobs_on_one_host_never_share_a_port() -> None:
    with hold_port("coordinator", "42") as one, hold_port("coordinator", "42") as two:
        assert port_of(one) != port_of(two)


def test_r31_a_port_somebody_listens_on_is_passed_over() -> None:
    with hold_port("coordinator", "7") as held:
        port = port_of(held)
    with listening(port), hold_port("coordinator", "7") as other:
        assert port_of(other) != port


def test_r31_a_held_port_cannot_be_connected_to_and_a_released_one_can_be_bound() -> None:
    with hold_port("coordinator", "9") as held:
        port = port_of(held)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=2)
        with pytest.raises(OSError, match="in use"):
            listening(port)
    listening(port).close()


def test_r31_the_ephemeral_range_is_used_only_when_it_is_everything(tmp_path: Path) -> None:
    folder = tmp_path / "sys/net/ipv4"
    folder.mkdir(parents=True)
    (folder / "ip_local_port_range").write_text("1024\t65535\n")
    with hold_port("coordinator", "1", proc=str(tmp_path)) as held:
        assert port_of(held) >= 20000
    (folder / "ip_local_port_range").write_text("20010\t65535\n")
    with hold_port("coordinator", "1", avoid=range(20001, 20010), proc=str(tmp_path)) as held:
        assert port_of(held) == 20000 or port_of(held) >= 20010
    with pytest.raises(NoPort, match="Could not find a free port for JAX coordinator"):
        hold_port("JAX coordinator", avoid=range(65536), proc=str(tmp_path))
