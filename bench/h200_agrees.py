"""Does our NVIDIA collector agree with nvidia-smi? Idle, under a training-like load, and beside a busy-wait kernel.

On a machine with an NVIDIA GPU, from the repository root:

    PYTHONPATH=src python3 bench/h200_agrees.py [--seconds 10] [--xid] [--json FILE]

Both are sampled side by side, several times a second. A sample of ours agrees strictly when it is within the tolerance
of the nearest nvidia-smi sample, and loosely when it lies between the nvidia-smi samples of the second before and after
it (a value that moves between two looks). A quantity passes when the means are within the tolerance, nine of ten
samples agree strictly and 49 of 50 at least loosely (a jump shorter than the time between two looks is seen by one of
them only); throttle reasons, bit for bit in nine of ten samples.

A second nvidia-smi runs as a control: where the two of them do not always agree strictly with each other (the SM clock
of a GPU at its power limit jumps by up to 100 MHz from one look to the next), no sampler can, and ours passes when it
agrees with the first as well as the second does: strictly in at most 10 points less of the samples, not at all in at
most 5 points more. Exit status 1 on any disagreement.
--xid also makes a real GPU page fault (in a process of its own) and expects the collector to count it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gpu_load import build, busy_wait, running, training

from trackwalker.node.collectors.gpu_nvidia import NvidiaCollector
from trackwalker.node.exporter.exposition import Family, render
from trackwalker.node.sensors.nvml_gpu import METRICS, REASONS

FIELDS = ("power.draw", "clocks.sm", "clocks.mem", "temperature.gpu", "memory.used", "utilization.gpu")
REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # of today, and before driver 535
MIB = 1024 * 1024


@dataclass
class Quantity:
    """One number that both give, and how far apart the two may be."""

    name: str
    unit: str
    allowed: str
    tolerance: Callable[[float], float]


QUANTITIES = {
    "power.draw": Quantity("power", "W", "5 W or 3 %", lambda v: max(5.0, 0.03 * v)),
    "clocks.sm": Quantity("SM clock", "MHz", "30 MHz", lambda v: 30.0),
    "clocks.mem": Quantity("memory clock", "MHz", "30 MHz", lambda v: 30.0),
    "temperature.gpu": Quantity("temperature", "C", "2 C", lambda v: 2.0),
    "memory.used": Quantity("memory used", "MiB", "16 MiB", lambda v: 16.0),
    "utilization.gpu": Quantity("utilisation", "%", "5 points", lambda v: 5.0),
}
Sample = tuple[float, dict[str, float]]  # time, values by nvidia-smi's field name ("reasons" for the bits)


# --- the two sources -------------------------------------------------------------------------------------------------


def values_of(families: list[Family]) -> dict[str, dict[str, float]]:
    """Our samples by GPU, in nvidia-smi's units and names."""
    out: dict[str, dict[str, float]] = {}
    plain = {
        "hw_gpu_power_watts": "power.draw",
        "hw_gpu_temperature_celsius": "temperature.gpu",
        "hw_gpu_utilization_percent": "utilization.gpu",
        "hw_gpu_energy_joules_total": "energy",
    }
    for family in families:
        for labels, value, _ in family.samples:
            gpu = out.setdefault(labels.get("gpu", ""), {})
            if family.name in plain:
                gpu[plain[family.name]] = value
            elif family.name == "hw_gpu_clock_mhz":
                gpu["clocks.sm" if labels["type"] == "sclk" else "clocks.mem"] = value
            elif family.name == "hw_gpu_vram_used_bytes":
                gpu["memory.used"] = value / MIB
            elif family.name == "hw_gpu_throttle_active":
                bit = int(value) << REASONS.index(labels["reason"])
                gpu["reasons"] = int(gpu.get("reasons", 0)) | bit
            elif family.name == "hw_gpu_throttle_seconds_total":
                gpu[f"throttled.{labels['reason']}"] = value
    return out


def sample_ours(collector: NvidiaCollector, seconds: float, every: float = 0.1) -> dict[str, list[Sample]]:
    """Our samples by GPU, each with the time in the middle of its reading."""
    out: dict[str, list[Sample]] = {}
    end = time.time() + seconds
    while time.time() < end:
        begin = time.time()
        families = collector.collect()
        middle = (begin + time.time()) / 2
        for gpu, values in values_of(families).items():
            out.setdefault(gpu, []).append((middle, values))
        time.sleep(max(0.0, begin + every - time.time()))
    return out


class Smi:
    """nvidia-smi in its loop mode: one process, a line for each GPU several times a second."""

    def __init__(self) -> None:
        reasons = next((f for f in REASON_FIELDS if self._knows(f)), None)
        if reasons is None:
            raise SystemExit("nvidia-smi answers neither of " + ", ".join(REASON_FIELDS))
        query = ",".join(("timestamp", "index", *FIELDS, reasons))
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-lms", "150"]
        self.samples: dict[str, list[Sample]] = {}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    @staticmethod
    def _knows(field: str) -> bool:
        command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        for line in self._process.stdout:
            parts = [p.strip() for p in line.split(",")]
            with contextlib.suppress(ValueError, IndexError):
                stamp = datetime.datetime.strptime(
                    parts[0], "%Y/%m/%d %H:%M:%S.%f"
                ).timestamp()  # local time, as it says
                values = {}
                for field, text in zip(FIELDS, parts[2:], strict=False):
                    with contextlib.suppress(ValueError):  # [N/A]
                        values[field] = float(text)
                values["reasons"] = int(parts[2 + len(FIELDS)], 16)
                self.samples.setdefault(parts[1], []).append((stamp, values))

    def stop(self) -> None:
        """End the loop."""
        self._process.terminate()
        self._process.wait(10)


# --- comparing -------------------------------------------------------------------------------------------------------


def around(theirs: list[Sample], when: float) -> tuple[dict[str, float], list[dict[str, float]]]:
    """The nvidia-smi sample nearest in time, and all of those at most a second away."""
    nearest = min(theirs, key=lambda sample: abs(sample[0] - when))[1]
    return nearest, [v for t, v in theirs if abs(t - when) <= 1.0]


@dataclass
class Agreement:
    """How well one sampler agrees with another on one quantity."""

    number: int = 0
    strict: int = 0
    loose: int = 0
    worst: float = 0.0
    total: float = 0.0

    @property
    def strict_share(self) -> float:
        """Within the tolerance of the nearest sample."""
        return self.strict / self.number if self.number else 0.0

    @property
    def outside_share(self) -> float:
        """Neither that nor between the samples around."""
        return 1 - (self.strict + self.loose) / self.number if self.number else 1.0

    def __str__(self) -> str:
        return f"{self.strict} + {self.loose} of {self.number}"


def agreement(field: str, ones: list[Sample], others: list[Sample]) -> Agreement:
    """Each sample of the one against those of the other that surround it."""
    out = Agreement()
    for when, values in ones:
        if field not in values or not others[0][0] <= when <= others[-1][0]:
            continue
        nearest, near = around(others, when)
        span = [n[field] for n in near]
        difference = abs(values[field] - nearest[field])
        out.number += 1
        out.total += values[field]
        out.worst = max(out.worst, difference)
        if difference <= QUANTITIES[field].tolerance(nearest[field]):
            out.strict += 1
        elif min(span) <= values[field] <= max(span):
            out.loose += 1
    return out


def compare(ours: list[Sample], smi: list[Sample], control: list[Sample]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """For each quantity: name, our mean, theirs, largest difference, how many of ours agree (strictly + loosely), how
    many of the control's, the tolerance; and whether it passes."""
    inside = [v for t, v in ours if smi[0][0] <= t <= smi[-1][0]]
    for field, quantity in QUANTITIES.items():
        theirs = [v[field] for _, v in smi if field in v]
        if len(theirs) < len(smi):
            yield (quantity.name, "-", "-", "-", "nvidia-smi has none", "", ""), all(field not in v for v in inside)
            continue
        mine, itself = agreement(field, ours, smi), agreement(field, control, smi)
        mean, their_mean = (mine.total / mine.number if mine.number else float("nan")), sum(theirs) / len(theirs)
        good = mine.strict_share >= 0.9 and mine.outside_share <= 0.02
        if itself.number > 10 and itself.strict_share < 1:
            as_well = mine.strict_share >= itself.strict_share - 0.10
            good = good or (as_well and mine.outside_share <= itself.outside_share + 0.05)
        good = good and mine.number == len(inside) > 10 and abs(mean - their_mean) <= quantity.tolerance(their_mean)
        numbers = (f"{mean:.1f}", f"{their_mean:.1f}", f"{mine.worst:.1f} {quantity.unit}", str(mine), str(itself))
        yield (quantity.name, *numbers, quantity.allowed), good
    pairs = [(v.get("reasons"), around(smi, t)[0]["reasons"]) for t, v in ours if smi[0][0] <= t <= smi[-1][0]]
    equal = sum(a == b for a, b in pairs)
    seen = [" ".join(sorted({f"0x{int(r):x}" for r in side if r is not None})) for side in zip(*pairs, strict=True)]
    row = ("throttle reasons", *(seen or ("", "")), "", f"{equal} of {len(pairs)}", "", "equal bits")
    yield row, len(pairs) > 10 and equal >= 0.9 * len(pairs)


# --- the run ---------------------------------------------------------------------------------------------------------


def phase(name: str, collector: NvidiaCollector, seconds: float) -> list[dict[str, object]]:
    """Sample both for a while and print the comparison."""
    smi, control = Smi(), Smi()
    ours = sample_ours(collector, seconds)
    smi.stop()
    control.stop()
    rows: list[dict[str, object]] = []
    for gpu, theirs in sorted(smi.samples.items()):
        line = "{:10}{:4}{:17}{:>12}{:>12}{:>13}  {:17}{:15}{:11}{}"
        head = ("quantity", "ours (mean)", "nvidia-smi", "largest diff", "ours agree", "control", "tolerance")
        print(line.format("phase", "gpu", *head, ""))
        for row, good in compare(ours.get(gpu, []), theirs, control.samples.get(gpu, [])):
            print(line.format(name, gpu, *row, "PASS" if good else "FAIL"))
            rows.append({"phase": name, "gpu": gpu, "row": row, "pass": good})
        known = [(t, v) for t, v in ours.get(gpu, []) if "energy" in v]
        fresh = [b for a, b in pairwise(known) if a[1]["energy"] != b[1]["energy"]]  # the counter is read now and then
        if len(fresh) > 1:
            (t0, first), (t1, last) = fresh[0], fresh[-1]
            watts = (last["energy"] - first["energy"]) / (t1 - t0)
            held = {k[10:]: round(last[k] - first[k], 2) for k in last if k.startswith("throttled.") and k in first}
            print(f"  energy counter: {watts:.1f} W over {t1 - t0:.1f} s; seconds held by {held}\n")
    if not smi.samples:
        print("nvidia-smi gave no samples: FAIL")
        rows.append({"phase": name, "pass": False})
    return rows


def cost(collector: NvidiaCollector, rounds: int = 10) -> None:
    """What one reading takes when they are a second apart."""
    walls, cpus = [], []
    for _ in range(rounds):
        time.sleep(1)
        wall, cpu = time.perf_counter(), time.process_time()
        collector.collect()
        walls.append((time.perf_counter() - wall) * 1e3)
        cpus.append((time.process_time() - cpu) * 1e3)
    walls.sort()
    text = f"median {walls[rounds // 2]:.2f} ms, at most {walls[-1]:.2f} ms; CPU {sum(cpus) / rounds:.2f} ms on average"
    print(f"one reading, a second after the last: {text}\n")


def xid(collector: NvidiaCollector, program: list[str]) -> bool:
    """A page fault of the GPU has to be counted."""
    if not program:
        print("xid: no nvcc, not tried")
        return True
    done = subprocess.run([*program, "wild", "0"], capture_output=True, text=True, timeout=60, check=False)
    print("a wild write:", done.stdout.strip())
    for _ in range(50):
        families = {f.name: f for f in collector.collect()}
        found = families.get("hw_gpu_xid_total")
        if found:
            print(render([found]) + "xid PASS\n")
            return True
        time.sleep(0.1)
    print("xid FAIL: no event within 5 s\n")
    return False


def main() -> int:
    """All phases; 0 when everything agrees."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--xid", action="store_true", help="also make a real GPU page fault")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    collector = NvidiaCollector("here")
    if not collector.available():
        raise SystemExit(f"no NVIDIA GPU to compare: {collector.reason}")
    families = collector.collect()
    print(render(families))
    print("no samples of:", ", ".join(sorted(set(METRICS) - {f.name for f in families})), "\n")
    cost(collector)
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        rows = phase("idle", collector, options.seconds)
        with running(training(program, options.seconds + 60)) as by:
            print("training-like load:", by)
            time.sleep(3)
            rows += phase("training", collector, options.seconds)
            cost(collector)
        time.sleep(3)
        with running(busy_wait(program, options.seconds + 8)) as by:
            print("busy-wait kernel:", by)
            time.sleep(2)
            rows += phase("busy-wait", collector, options.seconds)
        good = all(bool(r["pass"]) for r in rows)
        if options.xid:
            good = xid(collector, program) and good
    collector.close()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    print("AGREES" if good else "DISAGREES")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
