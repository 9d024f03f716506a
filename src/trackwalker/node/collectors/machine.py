"""Which collectors a node gets, and how often each runs: what it does not have costs nothing."""

from __future__ import annotations

from collections.abc import Callable

from trackwalker.node.collectors.filesystem import FilesystemCollector, NfsCollector
from trackwalker.node.collectors.gpu_amd import AmdGpuCollector, AmdRasCollector
from trackwalker.node.collectors.gpu_nvidia import NvidiaCollector
from trackwalker.node.collectors.host import HostCollector
from trackwalker.node.collectors.kernel_log import KernelLogCollector
from trackwalker.node.collectors.netdev import NetdevCollector
from trackwalker.node.collectors.rdma import RdmaCollector
from trackwalker.node.schedule import Collector


def machine_collectors(
    node: str, directories: list[str], sysfs: str = "/sys", members: Callable[[], set[int]] = set
) -> list[tuple[Collector, float]]:
    """The collectors of the machine itself with their intervals in seconds.

    File latency is probed in `directories`; `members` are the job's processes, all others on its GPUs are strangers.
    """
    found: list[tuple[Collector, float]] = [
        (HostCollector(node), 1.0),
        (NetdevCollector(node, sysfs=sysfs), 1.0),
        (RdmaCollector(node, sysfs), 2.0),
        (KernelLogCollector(node), 1.0),
        (AmdGpuCollector(node, sysfs), 1.0),
        (AmdRasCollector(node, sysfs), 10.0),  # these reads can wedge in the driver: rarely, and apart from power
        (FilesystemCollector(node, directories), 5.0),
        (NfsCollector(node), 10.0),
    ]
    nvidia = NvidiaCollector(node, members=members)
    if nvidia.available():
        found.append((nvidia, 1.0))
    return found
