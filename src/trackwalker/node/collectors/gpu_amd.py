"""AMD GPUs from sysfs: sensors and links in one collector, RAS (whose reads can hang in the driver) in another."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

from trackwalker.job.processes import read_bytes
from trackwalker.node.exporter.exposition import Family
from trackwalker.node.sensors import gpu_metrics
from trackwalker.node.sensors.gpu_metrics import Values
from trackwalker.node.sensors.sysfs import DECLARED, PciCard, SysFile, declared, families, line, names

# Tables from 1.6 on count, in cycles of about a millisecond, how long each limit was in force.
_RESIDENCIES = {
    "power": "ppt_residency_acc",
    "thermal": "socket_thm_residency_acc",
    "hbm_thermal": "hbm_thm_residency_acc",
    "vr_thermal": "vr_thm_residency_acc",
    "prochot": "prochot_residency_acc",
}
# Table 1.3 has one bit for each limit, the same on every ASIC (SMU_THROTTLER_*_BIT of the driver).
_BITS = {
    "power": range(0, 8),
    "current": range(16, 24),
    "thermal": (32, 33, 35, 36, 37, 42, 43),
    "hbm_thermal": (34,),
    "vr_thermal": (38, 39, 40, 41, 44, 45),
    "prochot": (46, 47),
}
_MASKS = {reason: sum(1 << bit for bit in bits) for reason, bits in _BITS.items()}
_WRAP = 1 << 32


def active_limits(table: Values) -> dict[str, bool]:
    """The limits in force by the bits of a 1.3 table; nothing for other tables, whose bits differ between ASICs."""
    (bits,) = table.get("indep_throttle_status", (None,))
    return {} if bits is None else {reason: bool(bits & mask) for reason, mask in _MASKS.items()}


class Residency:
    """Turns the growth of the residency counters between two reads into seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last: dict[str, int] = {}

    def update(self, table: Values) -> dict[str, bool]:
        """Take a table in; which limits held since the one before."""
        now = {
            name: table[name][0]
            for name in ("accumulation_counter", "system_clock_counter", *_RESIDENCIES.values())
            if name in table
        }
        known = {name: value for name, value in now.items() if value is not None}
        last, self._last = self._last, known or self._last
        cycles = known.get("accumulation_counter")
        if cycles is None or "system_clock_counter" not in known:
            return {}
        held = {}
        for reason, field in _RESIDENCIES.items():
            # Some firmware copies the cycle counter into a residency it does not measure.
            if field not in known or known[field] == cycles:
                continue
            self.seconds.setdefault(reason, 0.0)
            if field not in last or "accumulation_counter" not in last:
                continue
            passed = (cycles - last["accumulation_counter"]) % _WRAP
            grown = (known[field] - last[field]) % _WRAP
            elapsed = (known["system_clock_counter"] - last["system_clock_counter"]) / 1e9
            if passed > 0 and grown <= passed and elapsed > 0:  # else the GPU was reset in between
                self.seconds[reason] += elapsed * grown / passed
                held[reason] = grown > 0
        return held


METRICS, RAS_METRICS = declared("gpu_amd"), declared("gpu_amd_ras")
BLOCKS = ("umc", "xgmi", "gfx", "mmhub", "sdma")  # HBM, XGMI links, compute units, memory hub, copy engines

_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_TEMPERATURE = re.compile(r"temp(\d+)_input")
RAS_LINE = re.compile(rb"^\s*(ue|ce|de)\s*:\s*(\d+)\s*$", re.MULTILINE)
_PAGE_LINE = re.compile(rb"^\s*0x[0-9a-fA-F]+\s*:\s*0x[0-9a-fA-F]+\s*:\s*([RPF])\s*$")
_PAGE_STATES = {b"R": "retired", b"P": "pending", b"F": "failed"}
_SENSORS = {1: "edge", 2: "junction", 3: "mem"}  # where the driver gives no label
_TABLE = {metric: (row["field"], row.get("per", 1)) for metric, row in DECLARED["gpu_amd"].items() if "field" in row}
_FILES, _INSTEAD = (
    {m: row[key] for m, row in DECLARED["gpu_amd"].items() if key in row} for key in ("file", "instead")
)

Families = dict[str, Family]


def discover(sysfs: str) -> dict[str, str]:
    """PCI address and hwmon folder of every amdgpu device, ordered by address."""
    found = {}
    for name in names(f"{sysfs}/class/hwmon"):
        hwmon = f"{sysfs}/class/hwmon/{name}"
        if line(f"{hwmon}/name") == "amdgpu":
            pci = os.path.basename(os.path.realpath(f"{hwmon}/device"))
            if _PCI.fullmatch(pci):
                found[pci] = hwmon
    return dict(sorted(found.items()))


class Inventory:
    """Which GPU has which number. A GPU keeps its number for the agent's life, so that a lost one renames no other."""

    def __init__(self, sysfs: str) -> None:
        self._sysfs = sysfs
        self._listing: list[str] | None = None
        self._numbers: dict[str, int] = {}
        self.present: dict[str, str] = {}

    def changed(self) -> bool:
        """Look again; whether the devices are others than before."""
        listing = names(f"{self._sysfs}/class/hwmon")
        if listing == self._listing:
            return False
        self._listing = listing
        before, self.present = self.present, discover(self._sysfs)
        for pci in self.present:
            self._numbers.setdefault(pci, len(self._numbers))
        return before != self.present

    def numbers(self) -> dict[str, int]:
        """Every GPU ever seen."""
        return self._numbers


class AmdGpuCollector:
    """Sensors, clocks, memory, links and identity of every AMD GPU."""

    name = "gpu_amd"

    def __init__(self, node: str, sysfs: str = "/sys") -> None:
        self._node = node
        self._sysfs = sysfs
        self._inventory = Inventory(sysfs)
        self._gpus: dict[str, _Gpu] = {}
        self._uuids: dict[str, str] = {}

    def collect(self) -> list[Family]:
        """All families of now."""
        if self._inventory.changed():
            numbers = self._inventory.numbers()
            self._gpus = {
                pci: _Gpu({"gpu": str(numbers[pci]), "host": self._node}, pci, hwmon)
                for pci, hwmon in self._inventory.present.items()
            }
            self._uuids.update({pci: gpu.identity["uuid"] for pci, gpu in self._gpus.items()})
        out = families(METRICS)
        for pci, number in self._inventory.numbers().items():
            gpu = self._gpus.get(pci)
            up = gpu.read(out) if gpu else False
            out["hw_gpu_up"].add(up, gpu=str(number), host=self._node, uuid=self._uuids[pci])
        processes = names(f"{self._sysfs}/class/kfd/kfd/proc")
        if processes or os.path.isdir(f"{self._sysfs}/class/kfd/kfd/proc"):
            out["hw_gpu_user_processes"].add(sum(p.isdigit() for p in processes), host=self._node)
        return list(out.values())


class _Gpu:
    """The files of one GPU."""

    def __init__(self, labels: dict[str, str], pci: str, hwmon: str) -> None:
        device = os.path.realpath(f"{hwmon}/device")
        here = set(names(hwmon))
        present = set(names(device))
        self._labels = labels
        self.identity = {
            "pci": pci,
            "uuid": line(f"{device}/unique_id"),
            "serial": line(f"{device}/serial_number"),
            "name": line(f"{device}/product_name") or f"{line(f'{device}/vendor')}:{line(f'{device}/device')}",
            "vbios": line(f"{device}/vbios_version"),
        }
        self._sensors = {}
        for match in filter(None, map(_TEMPERATURE.fullmatch, sorted(here))):
            number = int(match[1])
            label = line(f"{hwmon}/temp{number}_label") or _SENSORS.get(number, f"temp{number}")
            self._sensors[number] = (label, SysFile(f"{hwmon}/{match[0]}"))
        self._power = [SysFile(f"{hwmon}/{n}") for n in ("power1_input", "power1_average") if n in here]
        self._cap = SysFile(f"{hwmon}/power1_cap")
        self._clocks = {"sclk": SysFile(f"{hwmon}/freq1_input"), "mclk": SysFile(f"{hwmon}/freq2_input")}
        self._files = [(SysFile(f"{device}/{file}"), metric) for metric, file in _FILES.items()]
        self._instead = {m: SysFile(f"{device}/{file}") for m, file in _INSTEAD.items() if file in present}
        self._table = SysFile(f"{device}/gpu_metrics")
        self._card = PciCard(device)
        self._residency = Residency()

    def read(self, out: Families) -> bool:
        """Add this GPU's samples; whether any of its sensors answered."""
        labels = self._labels
        out["hw_gpu_info"].add(1, None, **labels, **self.identity)
        table = gpu_metrics.parse(self._table.read() or b"")
        answered = self._hwmon(out, table) or bool(table)
        for file, metric in self._files:
            out[metric].add(file.number(), None, **labels)
        for name, value in self._card.samples():
            out[f"hw_gpu_{name}"].add(value, None, **labels)
        self._tables(out, table)
        return answered

    def _hwmon(self, out: Families, table: gpu_metrics.Values) -> bool:
        labels = self._labels
        values = {number: (file, file.number()) for number, (_, file) in self._sensors.items()}
        sensors = {self._sensors[number][0]: value for number, (_, value) in values.items() if value is not None}
        for sensor, milli in sensors.items():
            out["hw_gpu_sensor_celsius"].add(milli / 1000, None, sensor=sensor, **labels)
        if "vrsoc" not in sensors:
            out["hw_gpu_sensor_celsius"].add(one(table, "temperature_vrsoc"), None, sensor="vrsoc", **labels)
        main = first((values[n] for n in (2, 3, 1) if n in values), lambda milli: milli > 0)
        out["hw_gpu_temperature_celsius"].add(ratio(main, 1000), None, **labels)
        out["hw_gpu_memory_temperature_celsius"].add(ratio(sensors.get("mem"), 1000), None, **labels)
        power = first(((file, file.number()) for file in self._power), lambda micro: True)
        out["hw_gpu_power_watts"].add(ratio(power, 10**6), None, **labels)
        out["hw_gpu_power_limit_watts"].add(ratio(self._cap.number(), 10**6), None, **labels)
        for kind, file in self._clocks.items():
            out["hw_gpu_clock_mhz"].add(ratio(file.number(), 10**6), None, type=kind, **labels)
        return bool(sensors) or power is not None

    def _tables(self, out: Families, table: gpu_metrics.Values) -> None:
        labels = self._labels
        for metric, (field, per) in _TABLE.items():
            value = one(table, field)
            if value is None and metric in self._instead:
                value = self._instead[metric].number()
            out[metric].add(ratio(value, per), None, **labels)
        for way in ("read", "write"):
            for link, kilobytes in enumerate(table.get(f"xgmi_{way}_data_acc", ())):
                out[f"hw_gpu_xgmi_{way}_bytes_total"].add(
                    kilobytes and kilobytes * 1024, None, link=str(link), **labels
                )
        for link, status in enumerate(table.get("xgmi_link_status", ())):
            out["hw_gpu_xgmi_link_up"].add(None if status is None else status == 1, None, link=str(link), **labels)
        held = self._residency.update(table)
        for reason, seconds in self._residency.seconds.items():
            out["hw_gpu_throttle_seconds_total"].add(seconds, None, reason=reason, **labels)
        for reason, active in {**active_limits(table), **held}.items():
            out["hw_gpu_throttle_active"].add(active, None, reason=reason, **labels)


class AmdRasCollector:
    """Error counters of the GPUs' own blocks, and the HBM pages they have cost."""

    name = "gpu_amd_ras"

    def __init__(self, node: str, sysfs: str = "/sys") -> None:
        self._node = node
        self._inventory = Inventory(sysfs)
        self._blocks: list[tuple[dict[str, str], str, SysFile]] = []
        self._pages: list[tuple[dict[str, str], str]] = []

    def collect(self) -> list[Family]:
        """All families of now."""
        if self._inventory.changed():
            self._find()
        out = families(RAS_METRICS)
        for labels, block, file in self._blocks:
            # During a reset the driver answers with a sentence: no line of it is a counter.
            for kind, count in RAS_LINE.findall(file.read() or b""):
                out[f"hw_gpu_ras_{block}_{kind.decode()}_total"].add(int(count), None, **labels)
        for labels, path in self._pages:
            for state, count in bad_pages(read_bytes(path)).items():
                out["hw_gpu_bad_pages"].add(count, None, state=state, **labels)
        return list(out.values())

    def _find(self) -> None:
        self._blocks, self._pages = [], []
        for pci, hwmon in self._inventory.present.items():
            labels = {"gpu": str(self._inventory.numbers()[pci]), "host": self._node}
            folder = f"{os.path.realpath(f'{hwmon}/device')}/ras"
            present = set(names(folder))
            for block in BLOCKS:
                stem = "xgmi_wafl" if block == "xgmi" else block
                file = next((f for f in (f"aca_{stem}", f"{stem}_err_count") if f in present), None)
                if file:
                    self._blocks.append((labels, block, SysFile(f"{folder}/{file}")))
            if "gpu_vram_bad_pages" in present:
                self._pages.append((labels, f"{folder}/gpu_vram_bad_pages"))


def bad_pages(raw: bytes | None) -> dict[str, int]:
    """How many pages are in which state; an empty list is a true zero, a line in another form is no answer."""
    if raw is None:
        return {}
    counts = dict.fromkeys(_PAGE_STATES.values(), 0)
    for text in raw.splitlines():
        match = _PAGE_LINE.match(text)
        if match is None:
            return {}
        counts[_PAGE_STATES[match[1]]] += 1
    return counts


def first(read: Iterable[tuple[SysFile, int | None]], good: Callable[[int], bool]) -> int | None:
    """The first good value. A file that exists and failed is not replaced by the next: that would be another sensor."""
    for file, value in read:
        if value is None and not file.unsupported:
            return None
        if value is not None and good(value):
            return value
    return None


def one(table: gpu_metrics.Values, field: str) -> int | None:
    """A field that has one instance."""
    return (table.get(field) or (None,))[0]


def ratio(value: int | None, per: int) -> float | None:
    """The value in our unit."""
    return None if value is None else value / per
