"""A real H200's telemetry and training log, cut into its labelled phases and put together again as job directories."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np

from trackwalker.node.sensors.nvml_gpu import REASONS
from trackwalker.telemetry.blocks import BlockWriter, labels

HOST = "h200-lane"
_STEP = re.compile(r"^(?P<time>[\d.]+) (?P<line>completed step: (?P<step>\d+), .*, loss: (?P<loss>[\d.]+))$")
_MIB = 1 << 20
# Column of nvidia-smi: our metric, labels, factor to its unit.
_COLUMNS: dict[str, tuple[str, dict[str, str], float]] = {
    "utilization.gpu": ("hw_gpu_utilization_percent", {}, 1.0),
    "power.draw": ("hw_gpu_power_watts", {}, 1.0),
    "temperature.gpu": ("hw_gpu_temperature_celsius", {}, 1.0),
    "clocks.sm": ("hw_gpu_clock_mhz", {"type": "sclk"}, 1.0),
    "memory.used": ("hw_gpu_vram_used_bytes", {}, _MIB),
    "memory.total": ("hw_gpu_vram_total_bytes", {}, _MIB),
    "enforced.power.limit": ("hw_gpu_power_limit_watts", {}, 1.0),
    "ecc.errors.uncorrected.volatile.total": ("hw_gpu_ras_umc_ue_total", {}, 1.0),
}


@dataclass(frozen=True)
class Step:
    """One step line of the real log."""

    time: float
    number: int
    loss: float
    line: str


class Recording:
    """The recording as it lies in the data folder."""

    def __init__(self, folder: Path) -> None:
        phases = json.loads((folder / "phases.json").read_text())["phases"]
        names, starts = [p["name"] for p in phases], [float(p["start"]) for p in phases]
        self.bounds = dict(zip(names[:-1], pairwise(starts), strict=True))
        rows = list(csv.reader((folder / "nvidia_smi.csv").open(), skipinitialspace=True))
        self.columns, self.rows = rows[0], rows[1:]
        self.times = np.array([_seconds(row[0]) for row in self.rows])
        found = [_STEP.match(line) for line in (folder / "train.log").read_text().splitlines()]
        self.steps = [Step(float(m["time"]), int(m["step"]), float(m["loss"]), m["line"]) for m in found if m]

    def column(self, name: str) -> list[str]:
        """All values of one column."""
        at = self.columns.index(name)
        return [row[at] for row in self.rows]

    def job(self, workspace: Path, *phases: str, without: tuple[str, ...] = (), ended: str = "") -> Path:
        """A job that went through these phases, one right after the other, and recorded all but some metrics.

        Samples and steps keep their distance in time; only the gaps where other phases were are closed.
        """
        start = self.bounds[phases[0]][0]
        moved: list[tuple[float, float, float]] = []  # of the recording: from, to, and how much earlier in the job
        now = start
        for name in phases:
            begin, end = self.bounds[name]
            moved.append((begin, end, begin - now))
            now += end - begin
        job = workspace / "7100-JAX-small"
        job.mkdir(parents=True)
        steps = [
            Step(s.time - shift, s.number, s.loss, s.line)
            for a, b, shift in moved
            for s in self.steps
            if a < s.time <= b
        ]
        status = ended or "SUCCESS (exit 0)"
        text = [
            "JOB_ID=7100",
            "NNODES=1",
            f"JOB_NODELIST={HOST}",
            "== Training BEGIN (no timeout) ==",
            f"0: Config param steps: {9999 if ended else steps[-1].number + 1}",
            *(f"0: {s.line}" for s in steps),
            " JOB SUMMARY ".center(65, "="),
            f"  Wall:   0h 0m {round(now - start)}s",
            f"  Status: {status}",
        ]
        (workspace / f"{job.name}.log").write_text("\n".join(text) + "\n")
        (job / "log").symlink_to(f"../{job.name}.log")
        (job / "artifact").symlink_to(f"../.artifacts/artifact_{start:.0f}_7100")
        self._database(job / "prometheus", moved, steps, without)
        return job

    def _database(
        self, folder: Path, moved: list[tuple[float, float, float]], steps: list[Step], without: tuple[str, ...]
    ) -> None:
        writer = BlockWriter(folder)
        parts = [((self.times >= a) & (self.times < b), shift) for a, b, shift in moved]
        index = np.concatenate([np.flatnonzero(inside) for inside, _ in parts])
        shifts = np.concatenate([np.full(int(inside.sum()), shift) for inside, shift in parts])
        times = np.round((self.times[index] - shifts) * 1000).astype(np.int64)
        who = {"host": HOST, "gpu": "0", "instance": f"{HOST}:9400"}
        for column, (metric, more, factor) in _COLUMNS.items():
            if metric not in without:
                values = np.array([float(v) * factor for v in self.column(column)])[index]
                writer.add([labels(metric, **who, **more)], times, values[None, :])
        if "hw_gpu_throttle_active" not in without:
            bits = np.array([int(v, 16) for v in self.column("clocks_event_reasons.active")])[index]
            for bit, reason in enumerate(REASONS):
                active = (bits >> bit & 1).astype(float)
                writer.add([labels("hw_gpu_throttle_active", **who, reason=reason)], times, active[None, :])
        if steps:
            stamps = np.array([round(s.time * 1000) for s in steps], dtype=np.int64)
            head = {"host": HOST, "instance": f"{HOST}:9400"}
            names = [labels("tb_step", **head), labels("tb_learning_loss", **head)]
            writer.add(names, stamps, np.array([[float(s.number) for s in steps], [s.loss for s in steps]]))
        writer.close()


def _seconds(text: str) -> float:
    return datetime.strptime(text, "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()
