"""The kernel's log, followed by sequence number: what happened since the agent started, by class.

What the ring buffer already held at the start is classified once and given as gauges of their own, so that trouble from
before the job is neither lost nor mistaken for the job's. Only records of the kernel itself count: programs may write
to /dev/kmsg too, but the kernel marks those.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from trackwalker.node.agent.output import complain
from trackwalker.node.exporter.exposition import Family
from trackwalker.node.sensors.sysfs import DECLARED, declared, families

METRICS = declared("kernel_log")
_RECORD = 16384  # the kernel's records are shorter than this
_MOST = 20000  # records of one call; in a storm the rest waits for the next, or is counted as lost
_KEPT = 64
_AGAIN = (errno.EAGAIN, errno.EWOULDBLOCK)


# What kernel log lines mean: metrics.json says how the table is read.
CLASSES: dict[str, list[list[str]]] = DECLARED["kernel_classes"]
_COMPILED = [(name, word, re.compile(pattern)) for name, rows in CLASSES.items() for word, pattern in rows]

# Upstream's one number: kernel messages of level warning or worse about a GPU; here it counts Xids as well.
_GPU_WORDS = re.compile(r"amdgpu|drm|xgmi|nvrm: xid")
_GPU_TROUBLE = re.compile(r"error|fault|fail|reset|timeout|nvrm: xid")
_WARNING = 4


def classify(text: str) -> tuple[str, dict[str, str]] | None:
    """The class of a line and the parts of it that its pattern names; None for a line that means no trouble."""
    for name, word, pattern in _COMPILED:
        if word in text:
            match = pattern.search(text)
            if match:
                return name, match.groupdict()
    return None


def upstream_gpu_error(level: int, text: str) -> bool:
    """Whether upstream's hw_dmesg_gpu_errors_total counts the line."""
    if level > _WARNING:
        return False
    text = text.lower()
    return bool(_GPU_WORDS.search(text) and _GPU_TROUBLE.search(text))


class KernelLine(NamedTuple):
    """A classified line, as evidence."""

    sequence: int
    time: float  # seconds since 1970, as good as the kernel's clock
    level: int
    kind: str
    text: str


class Record(NamedTuple):
    """One record of /dev/kmsg."""

    facility: int
    level: int
    sequence: int
    uptime: float
    text: str


def parse_record(raw: bytes) -> Record | None:
    """`priority,sequence,microseconds,flags[,more];text`, then lines ` KEY=value`; None for anything else."""
    head, semicolon, body = raw.partition(b";")
    fields = head.split(b",")
    if not semicolon or len(fields) < 3:
        return None
    try:
        priority, sequence, micro = (int(field) for field in fields[:3])
    except ValueError:
        return None
    text = body.split(b"\n", 1)[0].decode("utf-8", "replace")
    return Record(priority >> 3, priority & 7, sequence, micro / 1e6, text)


class KernelLogCollector:
    """Follows /dev/kmsg without ever waiting for it; without the right to read it there are no metrics."""

    name = "kernel_log"

    def __init__(self, node: str, path: str = "/dev/kmsg", read: Callable[[], bytes] | None = None) -> None:
        self._node = node
        self._path = path
        self._fd = -1
        self._turn = threading.Lock()  # the agent may look out of turn: records must be taken in their order
        self._read = read or self._read_device
        self._said = False
        self._next: int | None = None  # the sequence number to come
        self._caught_up = False  # whether all that was there before us has been read
        self._since: Counter[str] = Counter()
        self._before: Counter[str] = Counter()
        self._xids: Counter[tuple[str, str]] = Counter()
        self._gpu_errors = 0
        self._lost = 0
        self._recent: deque[KernelLine] = deque(maxlen=_KEPT)

    def recent(self) -> list[KernelLine]:
        """The last classified lines, oldest first."""
        return list(self._recent)

    def collect(self) -> list[Family]:
        """All families of now; none where the log cannot be read."""
        try:
            with self._turn:
                self._follow()
        except OSError as error:
            self.close()
            if not self._said:
                self._said = True
                complain(f"no kernel log metrics: {self._path}: {error.strerror}")
            return []
        out = families(METRICS)
        for kind in CLASSES:
            out["hw_kmsg_events_total"].add(self._since[kind], None, **{"class": kind, "host": self._node})
            out["hw_kmsg_events_before"].add(self._before[kind], None, **{"class": kind, "host": self._node})
        for (pci, code), count in self._xids.items():
            out["hw_kmsg_xid_total"].add(count, host=self._node, pci=pci, xid=code)
        out["hw_kmsg_lost_total"].add(self._lost, host=self._node)
        out["hw_dmesg_gpu_errors_total"].add(self._gpu_errors, host=self._node)
        return list(out.values())

    def close(self) -> None:
        """Close the device; the next call opens it again and goes on where this one stopped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_device(self) -> bytes:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return os.read(self._fd, _RECORD)

    def _follow(self) -> None:
        for _ in range(_MOST):
            try:
                raw = self._read()
            except OSError as error:
                if error.errno in _AGAIN:
                    self._caught_up = True
                    return
                # Overwritten before we came (EPIPE), or longer than our buffer (EINVAL): the kernel has moved on to
                # the next record, whose number tells how many are missing.
                if error.errno in (errno.EPIPE, errno.EINVAL):
                    continue
                raise
            if not raw:
                self._caught_up = True
                return
            record = parse_record(raw)
            if record:
                self._take(record)

    def _take(self, record: Record) -> None:
        expected = self._next
        if expected is not None:
            if record.sequence < expected:
                return  # read before: the device was opened again
            self._lost += record.sequence - expected
        self._next = record.sequence + 1
        if record.facility != 0:
            return
        if upstream_gpu_error(record.level, record.text):
            self._gpu_errors += 1
        found = classify(record.text)
        if found is None:
            return
        kind, parts = found
        (self._since if self._caught_up else self._before)[kind] += 1
        if self._caught_up and "code" in parts:
            self._xids[parts["pci"], parts["code"]] += 1
        moment = time.time() - (time.monotonic() - record.uptime)
        self._recent.append(KernelLine(record.sequence, moment, record.level, kind, record.text))
