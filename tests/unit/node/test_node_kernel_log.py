"""The kernel log: classes by real lines, counters that never shrink, and losses that are counted."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sysfs_trees import Sample, samples, series

from trackwalker.node.agent.outcome import kernel_kill
from trackwalker.node.collectors.kernel_log import (
    CLASSES,
    METRICS,
    KernelLine,
    KernelLogCollector,
    classify,
    parse_record,
)

LINES = {
    "xid": [
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
        "NVRM: Xid (0000:03:00): 14, Channel 00000001",
        "NVRM: Xid (PCI:0000:9d:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 4",
    ],
    "nvlink": [
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
    ],
    "gpu_amd": [
        "amdgpu 0000:0c:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=5389552, emitted seq=5389554",
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=121570, emitted seq=121572",
        "amdgpu 0000:0c:00.0: amdgpu: GPU reset begin!",
        "amdgpu 0000:0c:00.0: Ring gfx_0.0.0 reset failed",
        "amdgpu 0000:03:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:32 vmid:0 pasid:0)",
        "amdgpu 0000:c5:00.0: amdgpu: MES failed to respond to msg=REMOVE_QUEUE",
        "amdgpu 0000:0a:00.0: amdgpu: socket: 0, die: 0, 1 new uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:0a:00.0: [drm:amdgpu_ring_test_helper [amdgpu]] *ERROR* ring kiq_2.1.0 test failed (-110)",
    ],
    "aer": [
        "pcieport 0000:00:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        "pcieport 0000:b0:01.0: AER: device recovery failed",
    ],
    "mce": [
        "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010092",
        "{1}[Hardware Error]: event severity: corrected",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x12345 offset:0x0)",
        "Memory failure: 0x5d2c41: recovery action for dirty LRU page: Recovered",
    ],
    "hung_task": ["INFO: task python:4242 blocked for more than 122 seconds."],
    "soft_lockup": [
        "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4242]",
        "watchdog: Watchdog detected hard LOCKUP on cpu 12",
        "rcu: INFO: rcu_sched self-detected stall on CPU",
    ],
    "oom": [
        "Out of memory: Killed process 4242 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB",
        "Memory cgroup out of memory: Killed process 4242 (python) total-vm:1kB",
        "Out of memory: Kill process 4242 (python) score 900 or sacrifice child",
    ],
    "nic_reset": [
        "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 4 timed out",
        "mlx5_core 0000:0d:00.0: poll_health:956:(pid 0): device's health compromised - reached miss count",
        "bnxt_en 0000:3b:00.0 p1p1: TX timeout detected, starting reset task!",
        "ionic 0000:24:00.0: FW heartbeat stalled at 1342169688",
    ],
    "link_flap": [
        "mlx5_core 0000:0d:00.0 ens1np0: Link down",
        "bnxt_en 0000:01:00.0 eth0: NIC Link is Down",
        "mlx5_core 0000:0d:00.0: Port module event: module 0, Cable unplugged",
        "bond0: (slave eth1): link status definitely down, disabling slave",
    ],
    "nfs_timeout": ["nfs: server 10.0.0.7 not responding, still trying"],
    "lustre": [
        "LustreError: 11-0: scratch-OST0001-osc: operation ost_write to node 10.0.0.9@o2ib failed: rc = -107",
        "Lustre: scratch-MDT0000-mdc: Connection to scratch-MDT0000 (at 10.0.0.1@o2ib) was lost; in progress",
    ],
    "fs_error": [
        "EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0",
        "XFS (nvme1n1): Metadata corruption detected at xfs_agf_read_verify+0x1/0x2, xfs_agf block 0x1",
        "blk_update_request: I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x0",
        "nvme nvme0: I/O 12 QID 3 timeout, aborting",
    ],
    "segfault": [
        "python[4242]: segfault at 10 ip 00007f2b1a sp 00007ffd error 4 in librccl.so.1[7f2b+1000]",
        "traps: python[4242] general protection fault ip:7f2b sp:7ffd error:0 in libc.so.6",
    ],
    "thermal": [
        "CPU3: Core temperature above threshold, cpu clock throttled (total events = 1)",
        "thermal thermal_zone0: critical temperature reached (105 C), shutting down",
    ],
    "kernel_bug": [
        "BUG: kernel NULL pointer dereference, address: 0000000000000014",
        "Kernel panic - not syncing: Fatal exception",
    ],
}
HARMLESS = [
    "Linux version 6.8.0 (gcc 13.2.0)",
    "pcieport 0000:00:01.0: AER: enabled with IRQ 26",
    "amdgpu 0000:05:00.0: amdgpu: ring gfx_0.0.0 uses VM inv eng 0 on hub 0",
    "amdgpu 0000:33:00.0: amdgpu: RAS: optional ras ta ucode is not available",
    "amdgpu 0000:33:00.0: amdgpu: GPU reset succeeded, trying to resume",
    "amdgpu 0000:0a:00.0: amdgpu: socket: 0, 3 uncorrectable hardware errors detected in total in umc block",
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* Process information: process x pid 1 thread x pid 2",
    "mce: CPU0: Thermal monitoring enabled (TM1)",
    "EDAC MC: Ver: 3.0.0",
    "mlx5_core 0000:0d:00.0: firmware version: 28.39.1002",
    "mlx5_core 0000:0d:00.0 ens1np0: Link up",
    "ionic 0000:b5:00.0 enp181s0: Link up - 100 Gbps",
    "bnxt_en 0000:01:00.0 eth0: NIC Link is Up, 100000 Mbps full duplex",
    "nfs: server 10.0.0.7 OK",
    "EXT4-fs (vda): mounted filesystem with ordered data mode. Quota mode: none.",
    "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
    "Lustre: Lustre: Build Version: 2.15.3",
    "ACPI: thermal: Thermal Zone [TZ00] (28 C)",
]


def test_every_class_has_its_lines() -> None:
    assert LINES.keys() == CLASSES.keys()


@pytest.mark.parametrize(("kind", "line"), [(kind, line) for kind, lines in LINES.items() for line in lines])
def test_a10_a_line_has_its_class(kind: str, line: str) -> None:
    found = classify(line)
    assert found is not None
    assert found[0] == kind


@pytest.mark.parametrize("line", HARMLESS)
def test_a_harmless_line_has_none(line: str) -> None:
    assert classify(line) is None


def record(sequence: int, text: str, *, priority: int = 3, micro: int = 5_000_000) -> bytes:
    """A record as /dev/kmsg gives it, with the properties of its device."""
    return f"{priority},{sequence},{micro},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:05:00.0\n".encode()


class Ring:
    """A kernel's ring buffer of four records and one reader of it, with the errors that the device gives."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._records: dict[int, bytes] = {}
        self._written = 0
        self._at = 0

    def write(self, *texts: str) -> None:
        for text in texts:
            self._records[self._written] = record(self._written, text)
            self._written += 1
            self._records.pop(self._written - 1 - self.size, None)

    def read(self) -> bytes:
        if self._at >= self._written:
            raise BlockingIOError(errno.EAGAIN, "again")
        if self._at not in self._records:
            self._at = min(self._records)
            raise BrokenPipeError(errno.EPIPE, "overwritten")
        self._at += 1
        raw = self._records[self._at - 1]
        if len(raw) > 8192:
            raise OSError(errno.EINVAL, "longer than the buffer")
        return raw


def values(collector: KernelLogCollector) -> dict[Sample, float]:
    return samples(collector.collect())


def count(collector: KernelLogCollector, kind: str) -> float:
    return values(collector)[series("hw_kmsg_events_total", **{"class": kind})]


XID, LINK, RESET = LINES["xid"][0], LINES["link_flap"][0], LINES["gpu_amd"][2]


def test_what_was_there_before_is_kept_apart(capfd: pytest.CaptureFixture[str]) -> None:
    ring = Ring(100)
    ring.write("hello", XID, LINK, LINK)
    collector = KernelLogCollector("n1", read=ring.read)
    got = values(collector)
    assert got[series("hw_kmsg_events_before", **{"class": "link_flap"})] == 2
    assert got[series("hw_kmsg_events_before", **{"class": "xid"})] == 1
    assert {v for (name, _), v in got.items() if name == "hw_kmsg_events_total"} == {0}
    assert got[series("hw_kmsg_lost_total")] == 0
    ring.write(XID, XID, LINK)
    got = values(collector)
    assert got[series("hw_kmsg_events_total", **{"class": "xid"})] == 2
    assert got[series("hw_kmsg_events_total", **{"class": "link_flap"})] == 1
    assert got[series("hw_kmsg_xid_total", pci="0000:3b:00", xid="79")] == 2
    assert got[series("hw_kmsg_events_before", **{"class": "xid"})] == 1
    assert got[series("hw_dmesg_gpu_errors_total")] == 3
    assert {name for name, _ in got} == set(METRICS)
    assert capfd.readouterr().err == ""


def test_a10_a_ring_that_wraps_shrinks_no_counter_and_tells_what_was_lost() -> None:
    ring = Ring(4)
    collector = KernelLogCollector("n1", read=ring.read)
    values(collector)
    last: dict[Sample, float] = {}
    for _ in range(10):
        ring.write(LINK, XID, RESET)
        ring.write("filler")
        got = values(collector)
        assert all(got[key] >= value for key, value in last.items())
        last = got
    assert count(collector, "xid") == 10
    assert values(collector)[series("hw_kmsg_lost_total")] == 0
    ring.write(*[LINK] * 9)  # five of them are overwritten before they can be read
    got = values(collector)
    assert got[series("hw_kmsg_lost_total")] == 5
    assert got[series("hw_kmsg_events_total", **{"class": "link_flap"})] == 10 + 4
    assert all(got[key] >= value for key, value in last.items())


def test_a10_a_loss_is_counted_once_even_when_the_log_is_overwritten_again_and_again() -> None:
    ring = Ring(2)
    ring.write("start")
    collector = KernelLogCollector("n1", read=ring.read)
    values(collector)
    for _ in range(3):
        ring.write(*["x"] * 5)
        values(collector)
    assert values(collector)[series("hw_kmsg_lost_total")] == 3 * 3


def test_a_record_too_long_to_read_is_one_lost() -> None:
    ring = Ring(100)
    ring.write("start")
    collector = KernelLogCollector("n1", read=ring.read)
    values(collector)
    ring.write("y" * 9000, LINK)
    got = values(collector)
    assert got[series("hw_kmsg_lost_total")] == 1
    assert got[series("hw_kmsg_events_total", **{"class": "link_flap"})] == 1


@pytest.fixture
def device() -> Iterator[tuple[socket.socket, KernelLogCollector]]:
    """A descriptor that gives one record for each read, as the device does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, KernelLogCollector("n1", read=lambda: os.read(theirs.fileno(), 16384))


def test_records_out_of_order_or_twice_count_once(device: tuple[socket.socket, KernelLogCollector]) -> None:
    ours, collector = device
    values(collector)
    for sequence in (7, 8, 8, 6, 7, 9):
        ours.send(record(sequence, LINK))
    assert count(collector, "link_flap") == 3
    assert values(collector)[series("hw_kmsg_lost_total")] == 0


def test_records_of_programs_and_damaged_ones_do_not_count(
    device: tuple[socket.socket, KernelLogCollector],
) -> None:
    ours, collector = device
    values(collector)
    ours.send(record(1, LINK, priority=(3 << 3) | 3))  # facility 3: systemd
    for junk in (b"no semicolon", b"a,b,c,-;x\n", b"3,2;x\n", b";", b"3,4,5,-;\xff\xfe" + LINK.encode()):
        ours.send(junk)
    got = values(collector)
    assert got[series("hw_kmsg_events_total", **{"class": "link_flap"})] == 1  # the last: bad bytes, but a record
    assert got[series("hw_kmsg_lost_total")] == 2  # numbers 2 and 3


def test_the_lines_are_kept_as_evidence(device: tuple[socket.socket, KernelLogCollector]) -> None:
    ours, collector = device
    values(collector)
    now = int(time.monotonic() * 1e6)
    for sequence in range(70):
        ours.send(record(sequence, f"eth{sequence}: Link down", priority=6, micro=now))
        values(collector)
    lines = collector.recent()
    assert [line.sequence for line in lines] == list(range(6, 70))
    assert (lines[-1].text, lines[-1].kind, lines[-1].level) == ("eth69: Link down", "link_flap", 6)
    assert abs(lines[-1].time - time.time()) < 30


@pytest.mark.parametrize("error", [PermissionError(errno.EPERM, "Operation not permitted"), OSError(errno.EIO, "I/O")])
def test_without_the_right_to_read_nothing_is_exported_and_it_is_said_once(
    error: OSError, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> bytes:
        raise error

    collector = KernelLogCollector("n1", read=refuse)
    assert [collector.collect() for _ in range(3)] == [[], [], []]
    assert capfd.readouterr().err == f"no kernel log metrics: /dev/kmsg: {error.strerror}\n"


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    assert KernelLogCollector("n1", str(tmp_path / "kmsg")).collect() == []


def test_a10_after_a_failure_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    ring = Ring(100)
    broken = False

    def read() -> bytes:
        if broken:
            ring._at = 0  # the device is opened again, at its first record
            raise OSError(errno.EIO, "I/O")
        return ring.read()

    collector = KernelLogCollector("n1", read=read)
    ring.write(LINK)
    values(collector)
    ring.write(LINK)
    assert count(collector, "link_flap") == 1
    broken = True
    assert collector.collect() == []
    broken = False
    ring.write(LINK)
    got = values(collector)
    assert got[series("hw_kmsg_events_total", **{"class": "link_flap"})] == 2
    assert got[series("hw_kmsg_events_before", **{"class": "link_flap"})] == 1


def test_a_record_reads_back() -> None:
    got = parse_record(b"6,339,5140900,-,caller=T12;NET: Registered protocol family 10\n SUBSYSTEM=net\n")
    assert got == (0, 6, 339, 5.1409, "NET: Registered protocol family 10")


def test_this_machine(capfd: pytest.CaptureFixture[str]) -> None:
    collector = KernelLogCollector("n1")
    got = values(collector)
    if not got:
        assert "no kernel log metrics" in capfd.readouterr().err
        pytest.skip("this machine's kernel log is not ours to read")
    assert got[series("hw_kmsg_lost_total")] >= 0
    assert values(collector).keys() == got.keys()
    collector.close()


def test_a_kill_for_memory_is_told_from_a_kill_by_somebody() -> None:
    words = "Memory cgroup out of memory: Killed process 14914 (python3) total-vm:211880kB, anon-rss:48640kB"
    line = KernelLine(7, 100.0, 3, "oom", words)
    assert kernel_kill([line], [14913, 14914], since=90.0) == words
    assert kernel_kill([line], [1491], since=90.0) is None
    assert kernel_kill([line], [14914], since=110.0) is None, "an earlier process of that number"
    assert kernel_kill([line._replace(kind="oops")], [14914], since=90.0) is None
