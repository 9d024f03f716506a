"""One NVIDIA GPU: which numbers the driver has of it, and one reading of all of them."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional

from trackwalker.node.sensors import nvml
from trackwalker.node.sensors.nvml import Handle, Nvml, NvmlError
from trackwalker.node.sensors.sysfs import DECLARED, PciCard, declared

Values = Iterator[tuple[str, Optional[float], dict[str, str]]]  # metric, value (None: no sample), labels

# Every series of this collector: what the tests and the metrics page go by.
METRICS = declared("gpu_nvidia")


# Most calls take microseconds. Some wait for the card's own processor (on an H200: energy 3.5 ms, throttle times
# 1.2 ms, PCIe replays 0.4 ms, all of it CPU time): these counters are asked for less often than they are scraped.
SLOW = 5.0
ALWAYS = math.inf


class Read(NamedTuple):
    """A metric that is one number of one call."""

    metric: str
    call: str
    args: tuple[int, ...] = ()
    labels: dict[str, str] = {}  # noqa: RUF012 - never changed
    wide: bool = False  # 64 bits
    per: int = 1  # how many of the driver's unit make one of ours
    keep: float = 0.0  # seconds for which the last answer is good enough


_KEEP = {"slow": SLOW, "always": ALWAYS}
READS = [
    Read(metric, **{**read, "args": tuple(read.get("args", ())), "keep": _KEEP.get(read.get("keep"), 0.0)})
    for metric, row in DECLARED["gpu_nvidia"].items()
    for read in row.get("reads", ())
]
REASONS = ("gpu_idle", "applications_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal",
           "hw_power_brake", "display")  # by bit of nvmlClocksEventReason*  # fmt: skip
POLICIES = ("power", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability")  # nvmlPerfPolicyType_t
LINK_ERRORS = ("replay", "recovery", "crc_flit", "crc_data", "ecc_data")  # by nvmlNvLinkErrorCounter_t
ROWS = ("correctable_total", "uncorrectable_total", "pending", "failed")


class Reading(NamedTuple):
    """What one round over a GPU gave."""

    up: int | None  # None: not ours to say
    samples: list[tuple[str, float, dict[str, str]]]
    processes: dict[int, int | None] | None  # by pid, with the memory each has taken
    shares: dict[int, float]  # percent of the multiprocessors' time by pid, where the driver counts it
    slices: list[dict[int, int | None]]  # the processes of each MIG slice; empty where the GPU is whole
    errors: dict[str, int]  # since the start, by name


class Gpu:
    """One GPU: its handle, what it cannot answer, and one reading of everything it can."""

    def __init__(self, driver: Nvml, index: int, sysfs: str) -> None:
        self.index = index
        self.identity: dict[str, str] = {}  # uuid, serial, name, vbios, pci; empty until the driver first gave a handle
        self._driver = driver
        self._sysfs = sysfs
        self._handle: Handle | None = None
        self._slices: list[Handle] = []
        self._card: PciCard | None = None
        self._never: set[tuple[Any, ...]] = set()  # calls that this GPU does not support are tried once
        self._kept: dict[tuple[Any, ...], tuple[float, Any]] = {}  # until when the last answer is good, and the answer
        self._errors: Counter[str] = Counter()
        self._counted = 0  # the time of the newest sample of per-process utilisation

    def read(self) -> Reading:
        """All samples of now; a GPU that is lost says so and nothing else."""
        samples: list[tuple[str, float, dict[str, str]]] = []
        up: int | None = 1
        processes, shares, slices = None, {}, []
        try:
            if not self.identity.get("uuid"):
                self._open()
            for part in (self._numbers, self._pairs, self._limits, self._rows, self._links, self._aer):
                samples += [(name, value, labels) for name, value, labels in part() if value is not None]
            processes = self._ask(self._driver.compute_processes)
            shares = self._shares() if processes else {}
            with contextlib.suppress(NvmlError):  # then those of the whole GPU are told
                slices = [self._driver.compute_processes(part) for part in self._slices]
        except NvmlError as error:
            self._errors[error.name] += 1
            up, samples = (None if error.code == nvml.NO_PERMISSION else 0), []
        except Exception as error:  # an answer nobody foresaw must not end the thread that reads this GPU
            self._errors[type(error).__name__] += 1
            up, samples = None, []
        return Reading(up, samples, processes, shares, slices, dict(self._errors))

    def _shares(self) -> dict[int, float]:
        """What each process had of the GPU since the last look."""
        if ("utilization of processes",) in self._never:
            return {}
        try:
            shares, self._counted = self._driver.process_utilization(self._handle or Handle(), self._counted)
        except NvmlError as error:
            if error.code != nvml.NOT_FOUND and self._failed(error):  # nothing ran since the last look
                self._never.add(("utilization of processes",))
            return {}
        return shares

    def _open(self) -> None:
        self._handle = self._driver.handle(self.index)
        calls = {"uuid": "nvmlDeviceGetUUID", "serial": "nvmlDeviceGetSerial", "name": "nvmlDeviceGetName"}
        calls["vbios"] = "nvmlDeviceGetVbiosVersion"
        identity = {label: self._ask(self._driver.text, call) or "" for label, call in calls.items()}
        slices = self._ask(self._driver.slices) or []
        self._slices = [part for _, part in slices]
        mig = {"mig": ",".join(uuid for uuid, _ in slices)} if slices else {}
        self.identity = {**identity, "pci": self._ask(self._driver.address) or "", **mig}
        self._card = PciCard(f"{self._sysfs}/bus/pci/devices/{self.identity['pci']}")

    def _ask(self, function: Callable[..., Any], *args: Any, keep: float = 0.0, **more: Any) -> Any:
        """The driver's answer, or None when it gave none; only the loss of the GPU is raised."""
        key = (function.__name__, *args)
        if key in self._never:
            return None
        now = time.monotonic()
        until, answer = self._kept.get(key, (0.0, None))
        if now < until:
            return answer
        try:
            answer = function(self._handle, *args, **more)
        except NvmlError as error:
            if self._failed(error):
                self._never.add(key)
            return None
        if keep:
            self._kept[key] = now + keep, answer
        return answer

    def _failed(self, error: NvmlError) -> bool:
        """Whether the call will fail for ever; any other failure is counted."""
        if error.code in nvml.LOST:
            raise error
        if error.code not in nvml.NEVER:
            self._errors[error.name] += 1
        return error.code in nvml.NEVER

    def _field(self, handle: Handle, *ids: int) -> dict[int, float]:
        """The fields that the GPU has."""
        wanted = [i for i in ids if ("field", i) not in self._never]
        good: dict[int, float] = {}
        if not wanted:
            return good
        try:
            answers = self._driver.fields(handle, *wanted)
        except NvmlError as error:
            answers = dict.fromkeys(wanted, error)
        for field, value in answers.items():
            if not isinstance(value, NvmlError):
                good[field] = value
            elif self._failed(value):
                self._never.add(("field", field))
        return good

    def _numbers(self) -> Values:
        for read in READS:
            value = self._ask(self._driver.number, read.call, *read.args, wide=read.wide, keep=read.keep)
            yield read.metric, value and value / read.per, read.labels

    def _pairs(self) -> Values:
        used, total = self._ask(self._driver.memory) or self._ask(self._driver.memory_v1) or (None, None)
        yield "hw_gpu_vram_used_bytes", used, {}
        yield "hw_gpu_vram_total_bytes", total, {}
        gpu, memory = self._ask(self._driver.utilization) or (None, None)
        yield "hw_gpu_utilization_percent", gpu, {}
        yield "hw_gpu_memory_utilization_percent", memory, {}
        hbm = (self._ask(self._field, nvml.FIELD_MEMORY_TEMPERATURE) or {}).get(nvml.FIELD_MEMORY_TEMPERATURE)
        yield "hw_gpu_memory_temperature_celsius", hbm or None, {}  # cards without the sensor answer 0

    def _limits(self) -> Values:
        active, supported = self._reasons("Current"), self._reasons("Supported", ALWAYS)
        for bit, reason in enumerate(REASONS):
            if active is not None and (supported is None or supported >> bit & 1):
                yield "hw_gpu_throttle_active", active >> bit & 1, {"reason": reason}
        first = nvml.FIELD_VIOLATIONS
        times = self._ask(self._field, *range(first, first + len(POLICIES)), keep=SLOW) or {}
        for policy, reason in enumerate(POLICIES):
            seconds = times[first + policy] / 1e9 if first + policy in times else None
            if ("field", first + policy) in self._never:  # the same number by a call of its own
                seconds = self._ask(self._driver.violation, policy, keep=SLOW)
            yield "hw_gpu_throttle_seconds_total", seconds, {"reason": reason}

    def _reasons(self, which: str, keep: float = 0.0) -> int | None:
        """The bits that explain the clocks, by the call's name of today or by the one before driver 535."""
        for word in ("Event", "Throttle"):
            bits = self._ask(self._driver.number, f"nvmlDeviceGet{which}Clocks{word}Reasons", wide=True, keep=keep)
            if bits is not None:
                return int(bits)
        return None

    def _rows(self) -> Values:
        for name, value in zip(ROWS, self._ask(self._driver.remapped_rows) or ()):  # noqa: B905 - Python 3.9
            yield f"hw_gpu_row_remap_{name}", value, {}

    def _links(self) -> Values:
        for link in range(nvml.MAX_LINKS):
            label = {"link": str(link)}
            state = self._ask(self._driver.number, "nvmlDeviceGetNvLinkState", link, keep=SLOW)
            yield "hw_gpu_nvlink_up", state, label
            for number, kind in enumerate(LINK_ERRORS if state is not None else ()):
                call = (self._driver.number, "nvmlDeviceGetNvLinkErrorCounter", link, number)
                yield "hw_gpu_nvlink_errors_total", self._ask(*call, wide=True, keep=SLOW), {**label, "kind": kind}

    def _aer(self) -> Values:
        for name, count in self._card.errors() if self._card else ():
            yield f"hw_gpu_{name}", count, {}
