"""The operating system: clock, limits, and memory settings that cost training time."""

from __future__ import annotations

import ctypes
import re
import resource

from trackwalker.node.checks.result import Check, Context, Result, failed, passed, skipped
from trackwalker.node.checks.storage import filesystem, look
from trackwalker.node.network.rdma_ports import ports
from trackwalker.node.sensors.sysfs import line

NOFILE = 65536
_UNSYNCHRONISED = 0x40  # STA_UNSYNC
_NANO = 0x2000  # STA_NANO: the offset counts nanoseconds
_CHOSEN = re.compile(r"\[(\w+)\]")


class _Timex(ctypes.Structure):
    """struct timex up to its time; the kernel writes more than we name."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 512),
    )


def clock(context: Context) -> Result:
    """Kept in step by NTP or PTP; on NFS also how far from the server's clock, which `compare` holds side by side."""
    data: dict[str, object] = {}
    if context.job_dir and filesystem(context.job_dir, context.proc).get("type", "").startswith("nfs"):
        found = look(context.job_dir)  # elsewhere the client itself stamps files: that would compare us to ourselves
        data.update({key: found[key] for key in ("offset_s", "offset_error_s") if key in found})
    timex = _Timex(modes=0)  # modes 0: only ask
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    if state < 0:
        return skipped("the kernel does not say whether the clock is kept in step", **data)
    data["synchronised"] = not timex.status & _UNSYNCHRONISED
    if not data["synchronised"]:
        return failed("nothing keeps the clock in step", "start chrony, systemd-timesyncd or ptp4l", **data)
    error = timex.esterror / 1e6
    offset = timex.offset / (1e9 if timex.status & _NANO else 1e6)
    return passed(f"kept in step (estimated error {error:.3g} s)", estimated_error_s=error, ntp_offset_s=offset, **data)


def limits(context: Context) -> Result:
    """Enough open files, memory that RDMA may lock, and core dumps."""
    nofile, memlock, core = (
        resource.getrlimit(what)[0] for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_CORE)
    )
    data = {"nofile": nofile, "memlock": memlock, "core": core}  # -1: without limit
    unlimited = resource.RLIM_INFINITY
    wrong, names = [], []
    if nofile != unlimited and nofile < NOFILE:
        wrong.append(f"nofile {nofile} (expected {NOFILE})")
        names.append("LimitNOFILE")
    if memlock != unlimited and ports(context.sys):
        wrong.append(f"memlock {memlock >> 10} KiB (RDMA needs unlimited)")
        names.append("LimitMEMLOCK")
    if wrong:
        # Only what is too low may be named: a log reader takes the word for the finding.
        return failed(", ".join(wrong), f"raise it in limits.conf or in slurmd's unit ({', '.join(names)})", **data)
    return passed(f"nofile {_limit(nofile)}, memlock {_limit(memlock)}, core {_limit(core)}", **data)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def huge_pages(context: Context) -> Result:
    """Transparent huge pages not forced on everything: compaction stalls ranks for no reason of theirs."""
    root = f"{context.sys}/kernel/mm/transparent_hugepage"
    data = {name: chosen[1] for name in ("enabled", "defrag") if (chosen := _CHOSEN.search(line(f"{root}/{name}")))}
    if not data:
        return skipped("this kernel has none")
    text = " | ".join(f"{name}: {value}" for name, value in data.items())
    if "always" in data.values():
        return failed(text, f"as root: echo madvise > {root}/enabled (and defrag)", **data)
    return passed(text, **data)


def numa_balancing(context: Context) -> Result:
    """The kernel does not move pages between sockets under a running rank."""
    value = line(f"{context.proc}/sys/kernel/numa_balancing")
    if not value:
        return skipped("this kernel has none")
    if value != "0":
        return failed(value, "as root: sysctl kernel.numa_balancing=0", value=value)
    return passed(value, value=value)


CHECKS = (
    Check("clock", clock, gates=False),
    Check("limits", limits, gates=False),
    Check("thp", huge_pages, gates=False),
    Check("numa_balancing", numa_balancing, gates=False),
)
