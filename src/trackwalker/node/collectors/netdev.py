"""Network devices: bytes, errors and drops from /proc/net/dev, link state and speed from sysfs."""

from __future__ import annotations

from trackwalker.job.processes import read_bytes
from trackwalker.node.exporter.exposition import Family
from trackwalker.node.sensors.sysfs import SysFile, declared, families

_COLUMNS = {"rx_bytes": 0, "rx_errors": 2, "rx_drop": 3, "tx_bytes": 8, "tx_errors": 10, "tx_drop": 11}
METRICS = declared("netdev")


class NetdevCollector:
    """Every network device but loopback, docker0 and the containers' veth pairs."""

    name = "netdev"

    def __init__(self, node: str, proc: str = "/proc", sysfs: str = "/sys") -> None:
        self._node = node
        self._proc = proc
        self._sysfs = sysfs
        self._links: dict[str, _Link] = {}

    def collect(self) -> list[Family]:
        """All families of now."""
        out = families(METRICS)
        links = {}
        for text in (read_bytes(f"{self._proc}/net/dev") or b"").decode("utf-8", "replace").splitlines()[2:]:
            device, _, rest = text.strip().rpartition(":")
            if not device or device in ("lo", "docker0") or device.startswith("veth"):
                continue
            fields = rest.split()
            for name, column in _COLUMNS.items():
                if column < len(fields) and fields[column].isdecimal():
                    out[f"hw_net_{name}_total"].add(int(fields[column]), device=device, host=self._node)
            links[device] = self._links.get(device) or _Link(f"{self._sysfs}/class/net/{device}")
            links[device].read(out, {"device": device, "host": self._node})
        self._links = links
        return list(out.values())


class _Link:
    """The link of one device."""

    def __init__(self, path: str) -> None:
        self._state, self._speed = SysFile(f"{path}/operstate"), SysFile(f"{path}/speed")
        self._changes = SysFile(f"{path}/carrier_changes")

    def read(self, out: dict[str, Family], labels: dict[str, str]) -> None:
        """Add the link's samples; a link without a known state or speed has none."""
        state = (self._state.read() or b"").strip()
        if state in (b"up", b"down", b"lowerlayerdown", b"dormant"):
            out["hw_net_up"].add(state == b"up", None, **labels)
        megabits = self._speed.number()
        if megabits is not None and 0 < megabits < 1 << 31:  # -1: not known
            out["hw_net_speed_gbps"].add(megabits / 1000, None, **labels)
        out["hw_net_carrier_changes_total"].add(self._changes.number(), None, **labels)
