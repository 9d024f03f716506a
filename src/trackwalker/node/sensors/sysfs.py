"""Attributes under /sys: kept open, read again in place, and honest about a read that failed."""

from __future__ import annotations

import errno
import json
import os
import pkgutil
import re
import resource
from collections.abc import Iterator, Mapping
from typing import Any

from trackwalker.job.processes import read_bytes
from trackwalker.node.exporter.exposition import Family

_PAGE = 4096  # an attribute is one page at most
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODATA, errno.ENOENT)
_LANES = frozenset((1, 2, 4, 8, 12, 16, 32))  # a card that is gone from the bus reads as 63
_GENERATIONS = {b"2.5": 1, b"5.0": 2, b"5": 2, b"8.0": 3, b"8": 3, b"16.0": 4, b"32.0": 5, b"64.0": 6}
_SPEED = re.compile(rb"([\d.]+) GT/s")
_AER_TOTAL = re.compile(rb"^TOTAL_ERR_\w+ (\d+)\s*$", re.MULTILINE)


class SysFile:
    """One attribute. Open files do not keep a device or its driver from going away."""

    __slots__ = ("_fd", "failed", "path")

    # Half of what the process may open is left to everybody else; past that, files are opened for each read.
    room = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, 4096)

    def __init__(self, path: str) -> None:
        self.path = path
        self.failed = 0  # errno of the last read
        self._fd = -1

    def read(self) -> bytes | None:
        """Its bytes of now, or None."""
        if self._fd < 0:
            return self._open()
        try:
            raw = os.pread(self._fd, _PAGE, 0)
        except OSError as error:
            self.close()
            # The device was taken away; if it was bound anew, the same path leads to another file.
            return self._open() if error.errno == errno.ENODEV else self._failed(error)
        self.failed = 0
        return raw

    def number(self) -> int | None:
        """Its value when it is one whole number, or None."""
        raw = self.read()
        try:
            return None if raw is None else int(raw)
        except ValueError:
            return None

    @property
    def unsupported(self) -> bool:
        """Whether the driver said that this device has no such value (and not that reading it failed)."""
        return self.failed in _UNSUPPORTED

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            SysFile.room += 1
            self._fd = -1

    __del__ = close

    def _open(self) -> bytes | None:
        try:
            fd = os.open(self.path, _FLAGS)
        except OSError as error:
            return self._failed(error)
        try:
            raw = os.pread(fd, _PAGE, 0)
        except OSError as error:
            os.close(fd)
            return self._failed(error)
        if SysFile.room > 0:
            SysFile.room -= 1
            self._fd = fd
        else:
            os.close(fd)
        self.failed = 0
        return raw

    def _failed(self, error: OSError) -> bytes | None:
        self.failed = error.errno or errno.EIO
        return None


class PciCard:
    """What every PCIe card tells: how wide and fast its link runs, and the errors on it."""

    def __init__(self, path: str) -> None:
        self._widths = [(f"pcie_link_width{s}", SysFile(f"{path}/{w}_link_width")) for s, w in _ENDS]
        self._speeds = [(f"pcie_link_generation{s}", SysFile(f"{path}/{w}_link_speed")) for s, w in _ENDS]
        self._errors = [(f"pcie_{kind}_total", SysFile(f"{path}/aer_dev_{kind}")) for kind in _AER]

    def samples(self) -> Iterator[tuple[str, int]]:
        """Name (without prefix) and value of what could be read."""
        for name, file in self._widths:
            width = file.number()
            if width in _LANES and width is not None:
                yield name, width
        for name, file in self._speeds:
            speed = _SPEED.match(file.read() or b"")
            if speed and speed[1] in _GENERATIONS:
                yield name, _GENERATIONS[speed[1]]
        yield from self.errors()

    def errors(self) -> Iterator[tuple[str, int]]:
        """The same of the errors on its link alone."""
        for name, file in self._errors:
            total = _AER_TOTAL.search(file.read() or b"")
            if total:
                yield name, int(total[1])


_ENDS = (("", "current"), ("_max", "max"))
_AER = ("correctable", "nonfatal", "fatal")


def names(path: str) -> list[str]:
    """The sorted entries of a folder; none when it is not there."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def line(path: str) -> str:
    """The first line of a file as text that fits a label; empty when there is none."""
    raw = read_bytes(path) or b""
    return raw.decode("utf-8", "replace").strip("\0 \t\r\n").partition("\n")[0]


def target(path: str) -> str:
    """The name of what a symlink leads to; empty when it leads nowhere."""
    return os.path.basename(os.path.realpath(path)) if os.path.exists(path) else ""


DECLARED: dict[str, Any] = json.loads(pkgutil.get_data("trackwalker.node.collectors", "metrics.json") or b"{}")


def declared(collector: str) -> dict[str, tuple[str, str]]:
    """Type and help of a collector's metrics, as metrics.json has them."""
    return {name: (row["type"], row["help"]) for name, row in DECLARED[collector].items()}


def families(declared: Mapping[str, tuple[str, str]]) -> dict[str, Family]:
    """An empty family for every declared metric."""
    return {name: Family(name, kind, text) for name, (kind, text) in declared.items()}
