"""Network devices: the right columns, the right devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from sysfs_trees import Sample, mutate, put, samples, series

from trackwalker.node.collectors.netdev import METRICS, NetdevCollector

TABLE = """\
Inter-|   Receive                                           |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 999 9 0 0 0 0 0 0 999 9 0 0 0 0 0 0
  eth0: 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116
docker0: 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1
veth12ab: 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1
 bond0:201 202 203 204 205 206 207 208 209 210 211 212 213 214 215 216
"""
COLUMNS = {"rx_bytes": 1, "rx_errors": 3, "rx_drop": 4, "tx_bytes": 9, "tx_errors": 11, "tx_drop": 12}


def tree(root: Path) -> None:
    put(root / "proc/net", {"dev": TABLE.rstrip("\n")})
    put(root / "sys/class/net/eth0", {"operstate": "up", "speed": 100000, "carrier_changes": 5})
    put(root / "sys/class/net/bond0", {"operstate": "up", "speed": 25000, "carrier_changes": 6})


def collector(root: Path) -> NetdevCollector:
    return NetdevCollector("n1", str(root / "proc"), str(root / "sys"))


def read(root: Path) -> dict[Sample, float]:
    return samples(collector(root).collect())


def expected() -> dict[Sample, float]:
    out: dict[Sample, float] = {}
    for device, base, speed, changes in (("eth0", 100, 100, 5), ("bond0", 200, 25, 6)):
        for name, column in COLUMNS.items():
            out[series(f"hw_net_{name}_total", device=device)] = base + column
        out[series("hw_net_up", device=device)] = 1
        out[series("hw_net_speed_gbps", device=device)] = speed
        out[series("hw_net_carrier_changes_total", device=device)] = changes
    return out


def test_devices_give_exactly_these_samples(tmp_path: Path) -> None:
    tree(tmp_path)
    assert read(tmp_path) == expected()
    assert {name for name, _ in expected()} == set(METRICS)


def test_every_metric_follows_its_source(tmp_path: Path) -> None:
    tree(tmp_path)
    c = collector(tmp_path)
    before = samples(c.collect())
    mutate(tmp_path)
    after = samples(c.collect())
    assert before.keys() == after.keys()
    assert not {key for key in before if before[key] == after[key]}


@pytest.mark.parametrize(
    ("file", "content", "lost"),
    [
        ("sys/class/net/eth0/speed", "-1", {"hw_net_speed_gbps"}),  # no link
        ("sys/class/net/eth0/speed", "4294967295", {"hw_net_speed_gbps"}),  # the same by older kernels
        ("sys/class/net/eth0/operstate", "unknown", {"hw_net_up"}),  # tun devices
        ("sys/class/net/eth0/carrier_changes", "", {"hw_net_carrier_changes_total"}),
        ("proc/net/dev", TABLE.replace(" 103 ", " x "), {"hw_net_rx_errors_total"}),
        ("proc/net/dev", TABLE.replace(" 112 113 114 115 116", ""), {"hw_net_tx_drop_total"}),
    ],
)
def test_a_bad_value_costs_its_own_sample_only(tmp_path: Path, file: str, content: str, lost: set[str]) -> None:
    tree(tmp_path)
    put(tmp_path, {file: content})
    got = read(tmp_path)
    assert {(name, dict(labels)["device"]) for name, labels in expected() if (name, labels) not in got} == {
        (name, "eth0") for name in lost
    }
    assert got == {key: value for key, value in expected().items() if key in got}


def test_a_device_in_another_place_has_its_counters(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "sys").rename(tmp_path / "elsewhere")
    assert {name for name, _ in read(tmp_path)} == {f"hw_net_{name}_total" for name in COLUMNS}


@pytest.mark.parametrize("content", ["", "garbage", "a\nb\nc\n:\n : : 1 2 3\n"])
def test_without_a_table_there_is_nothing(tmp_path: Path, content: str) -> None:
    assert read(tmp_path) == {}
    put(tmp_path / "proc/net", {"dev": content})
    assert not [name for name, _ in read(tmp_path) if name.endswith("drop_total")]


def test_this_machine() -> None:
    for (name, labels), value in samples(NetdevCollector("n1").collect()).items():
        assert value >= 0, (name, labels)
