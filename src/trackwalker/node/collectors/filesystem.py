"""How long small file operations take on the mounts that matter, and what NFS counts about itself.

The operations run in a child for each probe that can be given up: a server that hangs costs that child, never the
agent. A child that is late is killed; only when it is really gone (one in uninterruptible sleep is not) may another
start on that mount, and each further attempt waits twice as long.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
import re
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from trackwalker.job.processes import read_bytes
from trackwalker.node.exporter.exposition import Family
from trackwalker.node.sensors.sysfs import declared, families

METRICS, NFS_METRICS = declared("filesystem"), declared("nfs")
_LONGEST_PAUSE_S = 600.0
_RESTARTS = 3
# The source comes through the pipe: a module read from a file system that hangs would hang the import.
_START = (
    "import os, sys\nsource, size = b'', int(sys.argv.pop())\n"
    "while len(source) < size: source += os.read(0, size - len(source)) or sys.exit()\n"
    "exec(compile(source, 'fsprobe', 'exec'))"
)


class FilesystemCollector:
    """Probes each directory every `interval` seconds and gives up after `deadline`; a call waits for quick answers
    no longer than `patience`. `close` ends it."""

    name = "filesystem"

    def __init__(
        self,
        node: str,
        directories: Sequence[str],
        interval: float = 30.0,
        deadline: float = 10.0,
        patience: float = 0.1,
    ) -> None:
        self._node = node
        self._patience = patience
        self._server = _Server()
        self._probes = {
            str(key): _Probe(directory, f"{directory}/.trackwalker-probe-{node}-{os.getpid()}", interval, deadline)
            for key, directory in enumerate(dict.fromkeys(directories))
        }

    def collect(self) -> list[Family]:
        """All families of now."""
        started = []
        self._take(0)
        if self._probes and self._server.start(self._forget):
            for key, probe in self._probes.items():
                if probe.due() and self._server.send(f"go {key} {probe.file}"):
                    probe.begin()
                    started.append(probe)
        end = time.monotonic() + self._patience
        while any(probe.waiting for probe in started) and time.monotonic() < end:
            self._take(end - time.monotonic())
        out = families(METRICS)
        for key, probe in self._probes.items():
            if probe.late():
                self._server.send(f"kill {key}")
            probe.samples(out, {"mount": probe.directory, "host": self._node})
        return list(out.values())

    def close(self) -> None:
        """End the probing; what hangs ends by itself when its call returns."""
        self._server.close()

    def _take(self, seconds: float) -> None:
        for key, *words in self._server.hear(max(seconds, 0)):
            self._probes[key].take(words)

    def _forget(self) -> None:
        for probe in self._probes.values():
            probe.gone()


class _Server:
    """The process that starts the children (node/sensors/fsprobe.py)."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._rest = b""

    def start(self, died: Callable[[], None]) -> bool:
        """Have it running; whether it does. One that dies again and again is given up."""
        if self._process is not None and self._process.poll() is not None:
            self.close()
            died()  # its children's answers came through it
        if self._process is None and self._starts <= _RESTARTS:
            self._starts += 1
            source = fsprobe_source()
            with contextlib.suppress(OSError):
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _START, str(len(source))],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,
                    cwd="/",
                    start_new_session=True,  # no signal meant for the agent may end it half-way
                )
                self._write(source)
        return self._process is not None

    def send(self, command: str) -> bool:
        """Give a command; whether it could be given."""
        try:
            self._write(command.encode("utf-8", "surrogateescape") + b"\n")
        except OSError:
            return False
        return True

    def hear(self, seconds: float) -> list[list[str]]:
        """The lines that came within this time, as words."""
        if self._process is None or self._process.stdout is None:
            return []
        pipe = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return []
        chunk = os.read(pipe, 65536)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [line.decode("ascii", "replace").split() for line in lines]

    def close(self) -> None:
        """End it: it leaves at the end of its input."""
        process, self._process, self._rest = self._process, None, b""
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)

    def _write(self, data: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            raise BrokenPipeError
        self._process.stdin.write(data)  # far less than a pipe holds: never waits


class _Probe:
    """What is known of one directory."""

    def __init__(self, directory: str, file: str, interval: float, deadline: float) -> None:
        self.directory = directory
        self.file = file
        self.busy = False  # a child is there
        self.waiting = False  # and has not come to its end
        self._killed = False  # it was given up, and is not gone yet
        self._interval = interval
        self._deadline = deadline
        self._pause = interval
        self._began = 0.0
        self._next = 0.0
        self._wedged: bool | None = None
        self._round: dict[str, float] = {}
        self._times: dict[str, float] = {}  # of the last round that came to its end
        self._measured = 0.0
        self._space: tuple[int, int] | None = None  # free, size
        self._errors: Counter[tuple[str, str]] = Counter()

    def due(self) -> bool:
        """Whether it is time for a child, and none is left from before."""
        return not self.busy and time.monotonic() >= self._next

    def begin(self) -> None:
        """A child has started."""
        self.busy, self.waiting, self._killed = True, True, False
        self._began, self._round = time.monotonic(), {}
        self._next = self._began + self._pause

    def take(self, words: list[str]) -> None:
        """A line of the child's."""
        if words[0] == "gone":
            self.gone()
        elif self._killed:
            return  # too late
        elif words[0] == "done":
            self._round[words[1]] = float(words[2])
        elif words[0] == "space":
            self._space = (int(words[1]), int(words[2]))
        elif words[0] == "error":
            self._errors[words[1], words[2]] += 1
        elif words[0] == "end":
            self.waiting = False
            self._times, self._measured = self._round, time.monotonic()
            self._wedged, self._pause = False, self._interval
            self._next = self._began + self._interval

    def gone(self) -> None:
        """The child is no more."""
        self.busy = self.waiting = False

    def late(self) -> bool:
        """Whether the child must be given up now."""
        if not self.busy or self._killed or time.monotonic() - self._began < self._deadline:
            return False
        self._killed = self._wedged = True
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
        self._next = time.monotonic() + self._pause
        return True

    def samples(self, out: dict[str, Family], labels: dict[str, str]) -> None:
        """The last round while it is fresh, and whether the mount hangs."""
        now = time.monotonic()
        if not self._wedged and now - self._measured < 2 * self._interval:
            for operation, seconds in self._times.items():
                out["hw_fs_probe_seconds"].add(seconds, None, op=operation, **labels)
            if self._space is not None:
                out["hw_fs_free_bytes"].add(self._space[0], None, **labels)
                out["hw_fs_size_bytes"].add(self._space[1], None, **labels)
        out["hw_fs_probe_wedged"].add(self._wedged, None, **labels)
        if self.waiting:
            out["hw_fs_probe_pending_seconds"].add(now - self._began, None, **labels)
        for (operation, error), count in self._errors.items():
            out["hw_fs_probe_errors_total"].add(count, None, op=operation, error=error, **labels)


def fsprobe_source() -> bytes:
    """The text of node/sensors/fsprobe.py, from a folder or from the zipapp."""
    return pkgutil.get_data("trackwalker.node.sensors", "fsprobe.py") or b""


_MOUNT = re.compile(rb"device (.+) mounted on (.+) with fstype (\S+)")
_OPERATIONS = re.compile(
    rb"READ|WRITE|COMMIT|OPEN|CLOSE|CREATE|GETATTR|SETATTR|LOOKUP|ACCESS|REMOVE|RENAME|READDIR|READDIRPLUS|FSSTAT|LOCK"
)
_COLUMNS = (  # of a per-op line: requests, transmissions, timeouts, bytes out and in, then milliseconds, then errors
    ("hw_nfs_ops_total", 0, 1),
    ("hw_nfs_timeouts_total", 2, 1),
    ("hw_nfs_queue_seconds_total", 5, 1000),
    ("hw_nfs_rtt_seconds_total", 6, 1000),
    ("hw_nfs_exec_seconds_total", 7, 1000),
    ("hw_nfs_errors_total", 8, 1),
)


class NfsCollector:
    """What the NFS client counts for each mount and operation in /proc/self/mountstats."""

    name = "nfs"

    def __init__(self, node: str, proc: str = "/proc") -> None:
        self._node = node
        self._path = f"{proc}/self/mountstats"

    def collect(self) -> list[Family]:
        """All families of now; none without NFS mounts."""
        out = families(NFS_METRICS)
        # Where something is mounted over a mount, the later one is the one that is seen.
        for (mount, operation), fields in dict(nfs_operations(read_bytes(self._path) or b"")).items():
            labels = {"mount": mount, "op": operation, "host": self._node}
            for name, column, per in _COLUMNS:
                if column < len(fields):
                    out[name].add(fields[column] / per, None, **labels)
            out["hw_nfs_retrans_total"].add(max(fields[1] - fields[0], 0), None, **labels)
        return list(out.values())


def nfs_operations(raw: bytes) -> Iterator[tuple[tuple[str, str], list[int]]]:
    """Mount point and operation, and the numbers of its line."""
    mount = None
    for line in raw.splitlines():
        head = _MOUNT.match(line)
        if head:
            mount = unescaped(head[2]) if head[3] in (b"nfs", b"nfs4") else None
            continue
        name, colon, rest = line.strip().partition(b":")
        if mount is None or not colon or not _OPERATIONS.fullmatch(name):
            continue
        fields = rest.split()
        if len(fields) >= 8 and all(field.isdigit() for field in fields):
            yield (mount, name.decode()), [int(field) for field in fields]


def unescaped(path: bytes) -> str:
    """A path in which the kernel wrote spaces and the like as octal numbers."""
    return re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), path).decode("utf-8", "replace")
