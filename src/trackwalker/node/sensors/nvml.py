"""NVML through ctypes: the driver calls the NVIDIA collector needs, with nothing to install.

Layouts, codes and names follow NVIDIA's nvml.h. Every call has its own buffers, so a call that hangs in one thread
cannot write over what another thread reads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from ctypes import c_char, c_double, c_int, c_longlong, c_uint, c_ulong, c_ulonglong, c_ushort, c_void_p
from typing import Any

from trackwalker.node.sensors.sysfs import DECLARED

ENV = "TRACKWALKER_NVML"  # another library than the machine's own
LIBRARIES = ("libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1")  # the second is where GKE mounts it

SUCCESS = 0
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
FUNCTION_NOT_FOUND = 13
UNKNOWN = 999
CODES = {int(code): str(name) for code, name in DECLARED["nvml_codes"].items()}
# This GPU or this driver will never answer the call: 2 is a link or policy it does not have, 13 a library too old to
# know the function, 25 and 26 one too new to take it.
NEVER = frozenset((2, 3, 13, 25, 26))
LOST = frozenset((15, 16, 28))  # fallen off the bus, unusable before a reset, or gone

NO_VALUE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE

FIELD_VIOLATIONS = 74  # and the five after it: nanoseconds by nvmlPerfPolicyType_t
FIELD_MEMORY_TEMPERATURE = 82
EVENT_XID = 0x8
MAX_LINKS = 18  # NVML_NVLINK_MAX_LINKS
_TEXT = 96  # no identity string of nvml.h is longer

Handle = c_void_p


class NvmlError(Exception):
    """A call that the driver answered with an error code."""

    def __init__(self, call: str, code: int) -> None:
        self.call = call
        self.code = code
        self.name = CODES.get(code, f"code_{code}")
        super().__init__(f"{call}: {self.name}")


_TYPES = {
    "I": c_uint, "i": c_int, "Q": c_ulonglong, "q": c_longlong, "L": c_ulong, "H": c_ushort, "d": c_double,
    "P": c_void_p, "16s": c_char * 16, "32s": c_char * 32,
}  # fmt: skip


def _layout(text: str) -> list[tuple[str, Any]]:
    """Fields as `name:type`, the types by the letters of Python's struct."""
    return [(name, _TYPES[code]) for name, code in (field.split(":") for field in text.split())]


class Memory(ctypes.Structure):
    """nvmlMemory_t: used includes what the driver reserves."""

    _fields_ = _layout("total:Q free:Q used:Q")


class MemoryV2(ctypes.Structure):
    """nvmlMemory_v2_t: used is what programs have taken, reserved stands apart (as nvidia-smi shows it)."""

    _fields_ = _layout("version:I total:Q reserved:Q free:Q used:Q")


class Utilization(ctypes.Structure):
    """nvmlUtilization_t."""

    _fields_ = _layout("gpu:I memory:I")


class ViolationTime(ctypes.Structure):
    """nvmlViolationTime_t: reference in microseconds, violation in nanoseconds."""

    _fields_ = _layout("reference:Q violation:Q")


class Value(ctypes.Union):
    """nvmlValue_t: its members in the order of nvmlValueType_t."""

    _fields_ = _layout("d:d ui:I ul:L ull:Q sll:q si:i us:H")


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t."""

    _fields_ = (*_layout("field:I scope:I timestamp:q latency:q type:i result:i"), ("value", Value))


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t, as of nvmlDeviceGetPciInfo_v3."""

    _fields_ = _layout("bus_legacy:16s domain:I bus:I device:I device_id:I subsystem_id:I bus_id:32s")


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t, as of the _v3 calls."""

    _fields_ = _layout("pid:I used:Q gpu_instance:I compute_instance:I")


class ProcessUtilization(ctypes.Structure):
    """nvmlProcessUtilizationSample_t: percent of one of the driver's own sampling periods."""

    _fields_ = _layout("pid:I timestamp:Q sm:I memory:I encoder:I decoder:I")


class EventData(ctypes.Structure):
    """nvmlEventData_t, as of nvmlEventSetWait_v2."""

    _fields_ = _layout("device:P type:Q data:Q gpu_instance:I compute_instance:I")


def load(path: str | None = None) -> Nvml | None:
    """The driver's library, or None on a machine that has none."""
    named = path or os.environ.get(ENV)
    for candidate in (named,) if named else LIBRARIES:
        try:
            return Nvml(ctypes.CDLL(candidate))
        except OSError:
            continue
    return None


class Nvml:
    """The library's calls: values come back, error codes are raised."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def call(self, name: str, *args: Any) -> None:
        """One call by its name in nvml.h; anything but success is raised."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NvmlError(name, FUNCTION_NOT_FOUND) from None
        code = function(*args)
        if code != SUCCESS:
            raise NvmlError(name, code)

    def init(self) -> None:
        """Attach to the driver."""
        self.call("nvmlInit_v2")

    def shutdown(self) -> None:
        """Detach from the driver."""
        self.call("nvmlShutdown")

    def driver_version(self) -> str:
        """Such as 580.159.04."""
        text = ctypes.create_string_buffer(_TEXT)
        self.call("nvmlSystemGetDriverVersion", text, c_uint(_TEXT))
        return text.value.decode("utf-8", "replace")

    def count(self) -> int:
        """How many GPUs the driver knows, lost ones included."""
        number = c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(number))
        return number.value

    def handle(self, index: int) -> Handle:
        """The driver's handle of a GPU."""
        handle = Handle()
        self.call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), ctypes.byref(handle))
        return handle

    def text(self, handle: Handle, name: str) -> str:
        """A call that answers with a string: nvmlDeviceGetUUID, ...GetSerial, ...GetName."""
        text = ctypes.create_string_buffer(_TEXT)
        self.call(name, handle, text, c_uint(_TEXT))
        return text.value.decode("utf-8", "replace")

    def slices(self, handle: Handle) -> list[tuple[str, Handle]]:
        """UUID and handle of each of the GPU's MIG slices; empty where it is not sliced."""
        most, found = c_uint(), list[tuple[str, Handle]]()
        self.call("nvmlDeviceGetMaxMigDeviceCount", handle, ctypes.byref(most))
        for index in range(most.value):
            part = Handle()
            try:
                self.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, c_uint(index), ctypes.byref(part))
            except NvmlError as error:
                if error.code in (NOT_FOUND, 2):  # a place that no slice takes
                    continue
                raise
            found.append((self.text(part, "nvmlDeviceGetUUID"), part))
        return found

    def address(self, handle: Handle) -> str:
        """The PCI address as sysfs spells it: 0000:3b:00.0 (NVML writes 00000000:3B:00.0)."""
        info = PciInfo()
        self.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(info))
        _, _, function = info.bus_id.decode("ascii", "replace").rpartition(".")
        return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.{function or 0}"

    def number(self, handle: Handle, name: str, *args: int, wide: bool = False) -> int:
        """A call that answers with one unsigned number, 64 bits of it when wide."""
        number = c_ulonglong() if wide else c_uint()
        self.call(name, handle, *(c_uint(a) for a in args), ctypes.byref(number))
        return number.value

    def memory(self, handle: Handle) -> tuple[int, int]:
        """Bytes that programs use, and bytes in all."""
        memory = MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
        self.call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(memory))
        return memory.used, memory.total

    def memory_v1(self, handle: Handle) -> tuple[int, int]:
        """The same from a driver before 510: what the driver reserves counts as used."""
        memory = Memory()
        self.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        return memory.used, memory.total

    def utilization(self, handle: Handle) -> tuple[int, int]:
        """Percent of the last sampling window in which a kernel ran, and in which memory was read or written."""
        both = Utilization()
        self.call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(both))
        return both.gpu, both.memory

    def violation(self, handle: Handle, policy: int) -> float:
        """Seconds that a limit has held the clocks down since the driver was loaded."""
        time = ViolationTime()
        self.call("nvmlDeviceGetViolationStatus", handle, c_uint(policy), ctypes.byref(time))
        return int(time.violation) / 1e9

    def remapped_rows(self, handle: Handle) -> tuple[int, int, int, int]:
        """Rows remapped for correctable and for uncorrectable errors, whether one is pending, whether one failed."""
        out = (c_uint(), c_uint(), c_uint(), c_uint())
        self.call("nvmlDeviceGetRemappedRows", handle, *(ctypes.byref(o) for o in out))
        return out[0].value, out[1].value, out[2].value, out[3].value

    def fields(self, handle: Handle, *ids: int) -> dict[int, float | NvmlError]:
        """Field values by id; each may fail by itself. One call, so that the driver is asked once for all of them."""
        values = (FieldValue * len(ids))(*(FieldValue(field=i) for i in ids))
        self.call("nvmlDeviceGetFieldValues", handle, c_int(len(ids)), values)
        out: dict[int, float | NvmlError] = {}
        for value in values:
            code = value.result if 0 <= value.type < len(Value._fields_) or value.result else UNKNOWN
            good = code == SUCCESS
            name = f"field {value.field}"
            out[value.field] = (
                float(getattr(value.value, Value._fields_[value.type][0])) if good else NvmlError(name, code)
            )
        return out

    def compute_processes(self, handle: Handle) -> dict[int, int | None]:
        """Process ids that have a compute context on the GPU, with the memory each has taken where the driver knows."""
        infos = self._list("nvmlDeviceGetComputeRunningProcesses_v3", handle, ProcessInfo)
        return {info.pid: None if info.used == NO_VALUE else int(info.used) for info in infos}

    def process_utilization(self, handle: Handle, since: int) -> tuple[dict[int, float], int]:
        """Percent of the multiprocessors' time by process, from samples after `since`, and the newest sample's time."""
        rows = self._list("nvmlDeviceGetProcessUtilization", handle, ProcessUtilization, c_ulonglong(since))
        shares: dict[int, list[int]] = {}
        for row in rows:
            if row.timestamp > since and row.sm <= 100:  # the driver pads with old and impossible rows
                shares.setdefault(row.pid, []).append(row.sm)
        newest = max((row.timestamp for row in rows), default=since)
        return {pid: sum(each) / len(each) for pid, each in shares.items()}, newest

    def _list(self, name: str, handle: Handle, row: type[Any], *more: Any) -> list[Any]:
        """A call that fills an array and says how long it should have been."""
        # The process calls take (device, count, rows), the utilisation call (device, rows, count, since).
        room = 64
        while True:
            number, rows = c_uint(room), (row * room)()
            args = (rows, ctypes.byref(number), *more) if more else (ctypes.byref(number), rows)
            try:
                self.call(name, handle, *args)
            except NvmlError as error:
                if error.code != INSUFFICIENT_SIZE or room > 1 << 16:
                    raise
                room = max(2 * room, 2 * number.value)  # more may start before the next try
                continue
            return list(rows[: number.value])

    def watch(self, handles: Iterable[Handle]) -> tuple[c_void_p, list[bool]]:
        """An event set for XID errors, and which of the GPUs it hears."""
        events = c_void_p()
        self.call("nvmlEventSetCreate", ctypes.byref(events))
        heard = []
        for handle in handles:
            try:
                self.call("nvmlDeviceRegisterEvents", handle, c_ulonglong(EVENT_XID), events)
                heard.append(True)
            except NvmlError:
                heard.append(False)
        return events, heard

    def wait(self, events: c_void_p, milliseconds: int) -> EventData | None:
        """The next event, or None when none came in time."""
        data = EventData()
        try:
            self.call("nvmlEventSetWait_v2", events, ctypes.byref(data), c_uint(milliseconds))
        except NvmlError as error:
            if error.code == TIMEOUT:
                return None
            raise
        return data
