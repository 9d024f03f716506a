"""Small clusters written in upstream's format: a merged log and a real Prometheus database.

Numbers, hosts and shapes are chosen here and differ from the public samples, so that nothing can be fitted to those.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trackwalker.observe.prometheus import find_promtool

START = 1_780_300_800.0  # 2026-06-01T08:00:00Z
EVERY_S = 15.0

Metrics = Callable[[str, float], dict[str, float]]  # (host, time) -> 'name{labels}' without the host -> value


@dataclass
class World:
    """One job: step durations, extra log lines, and what each host reports over time."""

    hosts: list[str]
    steps: list[float]
    total: int
    metrics: Metrics | None = None
    tail: list[str] = field(default_factory=list)  # log lines after the last step
    summary: str | None = "SUCCESS (exit 0)"
    config: dict[str, str] = field(default_factory=dict)
    silent_s: float = 0.0  # time between the last step and the end
    warm_up_s: float = 240.0
    job_id: str = "5150"
    tokens: float = 60_000.0
    seed: int = 1

    @property
    def ends(self) -> list[float]:
        """When each step ended."""
        times, now = [], START + self.warm_up_s
        for seconds in self.steps:
            now += seconds
            times.append(now)
        return times

    @property
    def last_end(self) -> float:
        return self.ends[-1] if self.steps else START + self.warm_up_s

    @property
    def end(self) -> float:
        return self.last_end + self.silent_s + 10.0

    def build(self, workspace: Path, promtool_of: Path | None) -> Path:
        """Write the job; returns its directory."""
        name = f"{self.job_id}-JAX-granite-9b"
        job = workspace / name
        job.mkdir(parents=True)
        (workspace / f"{name}.log").write_text("\n".join(self._log()) + "\n")
        (job / "log").symlink_to(f"../{name}.log")
        (job / "artifact").symlink_to(f"../.artifacts/artifact_{START:.0f}_{self.job_id}")
        if self.metrics is not None and promtool_of is not None:
            self._database(job / "prometheus", promtool_of)
        return job

    def _log(self) -> list[str]:
        lines = [
            f"JOB_ID={self.job_id}",
            "JOB_NAME=JAX-granite-9b",
            f"NNODES={len(self.hosts)}",
            f"JOB_NODELIST={','.join(self.hosts)}",
            "MODEL_NAME=granite-9b",
            "== Training BEGIN (no timeout) ==",
        ]
        for key, value in {"steps": str(self.total), **self.config}.items():
            lines.append(f"0: Config param {key}: {value}")
        for number, seconds in enumerate(self.steps):
            for rank in range(len(self.hosts)):
                lines.append(
                    f"{rank}: completed step: {number}, seconds: {seconds:.3f}, TFLOP/s/device: 300.0, "
                    f"Tokens/s/device: {self.tokens / seconds:.3f}, total_weights: 9, loss: 4.2"
                )
        lines += self.tail
        if self.summary is not None:
            lines.append(" JOB SUMMARY ".center(65, "="))
            wall = int(self.end - START)
            lines += [f"  Wall:   {wall // 3600}h {wall // 60 % 60}m {wall % 60}s", f"  Status: {self.summary}"]
        return lines

    def _database(self, target: Path, prometheus: Path) -> None:
        rng = random.Random(self.seed)
        series: dict[str, list[str]] = {}
        assert self.metrics is not None
        for host in self.hosts:
            offset = rng.uniform(0, EVERY_S)
            for i in range(int((self.end - START) / EVERY_S)):
                time = START + offset + i * EVERY_S
                for name, value in self.metrics(host, time).items():
                    metric, _, labels = name.partition("{")
                    joined = f'host="{host}"' + (f",{labels.rstrip('}')}" if labels else "")
                    series.setdefault(metric, []).append(f"{metric}{{{joined}}} {value} {time:.3f}")
        head = f'host="{self.hosts[0]}"'
        for number, time in enumerate(self.ends):
            series.setdefault("tb_step", []).append(f"tb_step{{{head}}} {number} {time:.3f}")
        text = "".join(f"# TYPE {m} gauge\n" + "\n".join(rows) + "\n" for m, rows in series.items()) + "# EOF\n"
        source = target.with_suffix(".om")
        source.write_text(text)
        promtool = find_promtool(prometheus)
        assert promtool is not None
        subprocess.run(
            [promtool, "tsdb", "create-blocks-from", "openmetrics", source, target], check=True, capture_output=True
        )
        source.unlink()
