"""RDMA ports from sysfs: ionic, mlx5, bnxt_re and plain InfiniBand counters under one set of names."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable

from trackwalker.job.processes import read_bytes
from trackwalker.node.exporter.exposition import Family
from trackwalker.node.sensors.sysfs import DECLARED, PciCard, SysFile, declared, families, line, names, target

_IB = "counters/"
_HW = "hw_counters/"


METRICS = declared("rdma")
_COUNTERS = {name: row for name, row in DECLARED["rdma"].items() if "files" in row}

_STATE = re.compile(rb"(\d+): *([A-Za-z_]+)")
_RATE = re.compile(rb"([\d.]+) Gb/sec")
_WARM_S = 1.0


class RdmaCollector:
    """Every port of every adapter in /sys/class/infiniband."""

    name = "rdma"

    def __init__(self, node: str, sysfs: str = "/sys") -> None:
        self._node = node
        self._root = f"{sysfs}/class/infiniband"
        self._listing: list[str] = []
        self._ports: list[_Port] = []
        self._cards: list[tuple[dict[str, str], PciCard]] = []

    def collect(self) -> list[Family]:
        """All families of now."""
        listing = names(self._root)
        if listing != self._listing:
            self._find(listing)
        out = families(METRICS)
        for port in self._ports:
            port.read(out)
        for labels, card in self._cards:
            for name, value in card.samples():
                out[f"hw_rdma_{name}"].add(value, None, **labels)
        return list(out.values())

    def _find(self, listing: list[str]) -> None:
        self._listing = listing
        devices = {device: f"{self._root}/{device}" for device in listing}
        warm_up(path for device in devices.values() for path in _one_counter(device))
        self._ports = [
            _Port({"device": device, "port": port, "host": self._node}, path, f"{path}/ports/{port}")
            for device, path in devices.items()
            for port in names(f"{path}/ports")
        ]
        self._cards = [
            ({"device": device, "host": self._node}, PciCard(f"{path}/device")) for device, path in devices.items()
        ]


class _Port:
    """The files of one port."""

    def __init__(self, labels: dict[str, str], device: str, path: str) -> None:
        present = {folder + file for folder in (_IB, _HW) for file in names(f"{path}/{folder}")}
        netdev = line(f"{path}/gid_attrs/ndevs/0") or _only(names(f"{device}/device/net"))
        self._labels = labels
        self._info = {
            "driver": target(f"{device}/device/driver"),
            "link_layer": line(f"{path}/link_layer"),
            "netdev": netdev,
            "pci": target(f"{device}/device"),
            "guid": line(f"{device}/node_guid"),
            "firmware": line(f"{device}/fw_ver"),
        }
        self._counters: list[tuple[str, list[SysFile], int]] = []
        for name, row in _COUNTERS.items():
            found = next((has for source in row["files"] if (has := [f for f in source if f in present])), [])
            if found:
                words = "words" in row and found[0] == row["files"][0][0]
                self._counters.append((name, [SysFile(f"{path}/{file}") for file in found], 4 if words else 1))
        self._state, self._phys = SysFile(f"{path}/state"), SysFile(f"{path}/phys_state")
        self._rate = SysFile(f"{path}/rate")
        self._carrier = SysFile(f"{device}/device/net/{netdev}/carrier_changes") if netdev else None

    def read(self, out: dict[str, Family]) -> None:
        """Add this port's samples."""
        labels = self._labels
        for name, files, factor in self._counters:
            total = 0
            for file in files:
                value = file.number()
                if value is None or value < 0:
                    break  # a sum with a part missing would look like a reset, and the next whole one like a storm
                total += value
            else:
                out[name].add(total * factor, None, **labels)
        state = _STATE.match(self._state.read() or b"")
        if state:
            out["hw_rdma_port_state"].add(b"ACTIVE" in state[2], None, **labels)
        physical = _STATE.match(self._phys.read() or b"")
        if physical:
            out["hw_rdma_port_phys_state"].add(int(physical[1]), None, **labels)
        rate = _RATE.match(self._rate.read() or b"")
        if rate:
            out["hw_rdma_port_rate_gbps"].add(float(rate[1]), None, **labels)
        if self._carrier:
            out["hw_rdma_port_carrier_changes_total"].add(self._carrier.number(), None, **labels)
        out["hw_rdma_port_info"].add(1, None, **labels, **self._info)


def warm_up(paths: Iterable[str]) -> None:
    """Read one counter of each adapter at once: the first read asks the firmware, about 60 ms each on ionic."""
    threads = [threading.Thread(target=read_bytes, args=(path,), daemon=True) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_WARM_S)


def _one_counter(device: str) -> list[str]:
    for port in names(f"{device}/ports"):
        folder = f"{device}/ports/{port}/{_HW}"
        counters = [f for f in names(folder) if f != "lifespan"]
        if counters:
            return [os.path.join(folder, counters[0])]
    return []


def _only(found: list[str]) -> str:
    return found[0] if len(found) == 1 else ""
