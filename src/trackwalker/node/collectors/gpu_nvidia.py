"""NVIDIA GPUs by NVML: one thread for each GPU, so that one that hangs or is lost costs only its own samples."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable

from trackwalker.node.collectors.identity import slice_name
from trackwalker.node.exporter.exposition import Family
from trackwalker.node.sensors import nvml
from trackwalker.node.sensors.nvml import Nvml, NvmlError
from trackwalker.node.sensors.nvml_gpu import METRICS, Gpu, Reading
from trackwalker.node.sensors.sysfs import families

_OPEN_SECONDS = 10.0  # the first call may have to wake the driver
_EVENT_MS = 500


class NvidiaCollector:
    """All NVIDIA GPUs of the machine; on a machine without them it has nothing to say and says so."""

    name = "gpu_nvidia"

    def __init__(
        self,
        node: str,
        library: str | None = None,
        timeout: float = 0.5,
        sysfs: str = "/sys",
        members: Callable[[], set[int]] = set,
    ) -> None:
        self.reason = ""  # why there is nothing to collect
        self._node = node
        self._library = library
        self._timeout = timeout  # seconds that one scrape waits for the driver
        self._sysfs = sysfs
        self._driver: Nvml | None = None
        self._version = ""
        self._lanes: list[_Lane] = []
        self._owners = _Owners(members)
        self._xids: _XidWatch | None = None
        self._opener: threading.Thread | None = None
        self._lock = threading.Lock()

    def available(self) -> bool:
        """Whether there is a driver with GPUs. One that does not answer now may still do so later."""
        with self._lock:
            first = self._opener is None
            if self._opener is None:  # in a thread of its own: a wedged driver hangs in nvmlInit
                self.reason = "the driver does not answer"
                self._opener = threading.Thread(target=self._open, name="nvml-open", daemon=True)
                self._opener.start()
        if first:
            self._opener.join(_OPEN_SECONDS)
        return bool(self._lanes)

    def collect(self) -> list[Family]:
        """One reading of every GPU that answers in time."""
        if not self.available():
            return []
        out = families(METRICS)
        with self._lock:
            deadline = time.monotonic() + self._timeout
            rounds = [lane.ask() for lane in self._lanes]
            readings = [each.wait(deadline) if each else None for each in rounds]
        everybody = [p for r in readings if r for p in (r.processes or {}, *r.slices)]
        self._owners.look(set().union(*everybody))
        for lane, reading in zip(self._lanes, readings):  # noqa: B905 - Python 3.9 has no strict=
            self._add(out, lane.gpu, reading)
        processes = [reading.processes if reading else None for reading in readings]
        if None not in processes:  # a GPU that did not answer may have some: a part is not the total
            total = len(set().union(*(p for p in processes if p)))
            out["hw_gpu_user_processes"].add(total, host=self._node)
        if self._xids is not None:
            for index in self._xids.heard:
                out["hw_gpu_xid_watched"].add(1, host=self._node, gpu=str(index))
            for (gpu, xid), count in self._xids.counts().items():
                out["hw_gpu_xid_total"].add(count, host=self._node, gpu=gpu, xid=str(xid))
        return [family for family in out.values() if family.samples]

    def close(self) -> None:
        """End the threads and let go of the driver, unless one of them hangs in it."""
        if self._xids is not None:
            self._xids.stop()
        with self._lock:
            ended = [lane.stop() for lane in self._lanes]
            self._lanes = []
        if self._driver is not None and all(ended) and (self._xids is None or not self._xids.is_alive()):
            with contextlib.suppress(NvmlError):
                self._driver.shutdown()

    def _open(self) -> None:
        driver = nvml.load(self._library)
        if driver is None:
            self.reason = "no NVML library"
            return
        try:
            driver.init()
            count = driver.count()
        except NvmlError as error:
            self.reason = str(error)
            return
        with contextlib.suppress(NvmlError):
            self._version = driver.driver_version()
        self.reason = "" if count else "no GPU"
        self._driver = driver
        if count:
            self._xids = _XidWatch(driver, count)
            self._xids.start()
            self._lanes = [_Lane(Gpu(driver, index, self._sysfs)) for index in range(count)]

    def _add(self, out: dict[str, Family], gpu: Gpu, reading: Reading | None) -> None:
        label = {"host": self._node, "gpu": str(gpu.index)}
        uuid = gpu.identity.get("uuid", "")
        out["hw_gpu_stalled"].add(0 if reading else 1, None, **label, uuid=uuid)
        if gpu.identity:
            out["hw_gpu_info"].add(1, None, **label, **gpu.identity, driver=self._version)
        if reading is None:
            return
        out["hw_gpu_up"].add(reading.up, None, **label, uuid=uuid)
        for error, count in reading.errors.items():
            out["hw_gpu_read_errors_total"].add(count, None, **label, error=error)
        for name, value, more in reading.samples:
            out[name].add(value, None, **label, **more)
        # Who shares a slice shares nothing with its neighbours: processes are then told of each slice instead.
        for number, processes in enumerate(reading.slices):
            part = {**label, "gpu": slice_name(label["gpu"], number)}
            self._add_processes(out, part, processes, reading.shares)
        if reading.processes is not None and not reading.slices:
            self._add_processes(out, label, reading.processes, reading.shares)

    def _add_processes(
        self,
        out: dict[str, Family],
        label: dict[str, str],
        processes: dict[int, int | None],
        shares: dict[int, float],
    ) -> None:
        """Who is on the GPU: this job, or somebody else."""
        for owner in self._owners.kinds():
            mine = [pid for pid in processes if self._owners.of(pid) == owner]
            out["hw_gpu_processes"].add(len(mine), None, **label, owner=owner)
            taken = [processes[pid] for pid in mine]
            if None not in taken:
                out["hw_gpu_process_memory_bytes"].add(sum(t for t in taken if t), None, **label, owner=owner)
            if shares or not processes:
                share = sum(shares.get(pid, 0.0) for pid in mine)
                out["hw_gpu_process_utilization_percent"].add(share, None, **label, owner=owner)


class _Owners:
    """Whose a process on a GPU is. In a container the driver may name it by a number that means another one here, so
    these numbers are believed from the moment at which one of them is a process of the job."""

    def __init__(self, members: Callable[[], set[int]]) -> None:
        self._members = members
        self._known: dict[int, bool] = {}  # whether the process is the job's
        self._believed = False

    def look(self, pids: set[int]) -> None:
        """Find out about processes that were not there before; finding the job's walks all of /proc."""
        if pids - self._known.keys():
            members = self._members()
            self._known = {pid: pid in members for pid in pids}
            self._believed = self._believed or any(self._known.values())

    def kinds(self) -> tuple[str, ...]:
        """The owners that can be told apart."""
        return ("job", "other") if self._believed else ("unknown",)

    def of(self, pid: int) -> str:
        """The owner of a process."""
        return ("job" if self._known.get(pid) else "other") if self._believed else "unknown"


class _Round:
    """One asked reading. A late answer lands in a round that nobody looks at any more, so it is never served."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.reading: Reading | None = None

    def wait(self, deadline: float) -> Reading | None:
        self.done.wait(max(0.0, deadline - time.monotonic()))
        return self.reading


class _Lane:
    """The thread that reads one GPU. While a call of it hangs, no further one is sent after it."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._inbox: queue.SimpleQueue[_Round | None] = queue.SimpleQueue()
        self._last = _Round()
        self._last.done.set()
        self._thread = threading.Thread(target=self._run, name=f"nvml-{gpu.index}", daemon=True)
        self._thread.start()

    def ask(self) -> _Round | None:
        """A new round, or None while the one before still hangs."""
        if not self._last.done.is_set():
            return None
        self._last = _Round()
        self._inbox.put(self._last)
        return self._last

    def stop(self) -> bool:
        """Whether the thread has ended."""
        self._inbox.put(None)
        self._thread.join(1.0)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            asked = self._inbox.get()
            if asked is None:
                return
            try:
                asked.reading = self.gpu.read()
            finally:
                asked.done.set()


class _XidWatch(threading.Thread):
    """Counts XID errors as the driver announces them: they cannot be polled."""

    def __init__(self, driver: Nvml, count: int) -> None:
        super().__init__(name="nvml-xid", daemon=True)
        self.heard: list[int] = []
        self._driver = driver
        self._gpus = range(count)
        self._counts: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def counts(self) -> dict[tuple[str, int], int]:
        """How often each (gpu, xid) was announced."""
        with self._lock:
            return dict(self._counts)

    def stop(self) -> None:
        """Let go of the event set."""
        self._stopping.set()
        self.join(2.0)

    def run(self) -> None:
        """Listen until stopped."""
        names: dict[int | None, str] = {}
        handles = []
        for index in self._gpus:
            with contextlib.suppress(NvmlError):  # a GPU that is lost already has nothing more to say
                handle = self._driver.handle(index)
                handles.append((index, handle))
                names[handle.value] = str(index)
        try:
            events, heard = self._driver.watch(handle for _, handle in handles)
        except NvmlError:
            return
        self.heard = [index for (index, _), yes in zip(handles, heard) if yes]  # noqa: B905 - Python 3.9
        while self.heard and not self._stopping.is_set():
            try:
                event = self._driver.wait(events, _EVENT_MS)
            except NvmlError:  # a lost GPU makes every wait return at once
                self._stopping.wait(_EVENT_MS / 1000)
                continue
            if event is not None and event.type & nvml.EVENT_XID:
                with self._lock:
                    self._counts[names.get(event.device, "unknown"), event.data] += 1
        with contextlib.suppress(NvmlError):
            self._driver.call("nvmlEventSetFree", events)
