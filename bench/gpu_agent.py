"""The real agent on a machine with a GPU: one real training process, all collectors, one scrape a second.

Prints what the collectors saw and what a scrape costs; writes the scrapes to OUT/scrapes.prom.
Usage: PYTHONPATH=src python3 bench/gpu_agent.py OUT
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from trackwalker.launch.code.bundle import build_agent
from trackwalker.node.agent.spec import AgentSpec, RankSpec

SETTINGS = [
    "steps=400", "base_emb_dim=2048", "base_num_decoder_layers=8", "base_num_query_heads=16", "base_mlp_dim=8192",
    "max_target_length=1024", "per_device_batch_size=8", "vocab_size=32768", "dtype=bfloat16",
    "enable_checkpointing=false", "hardware_peak_tflops=989", "log_period=50",
]  # fmt: skip
WATCHED = (
    "hw_gpu_power_watts", "hw_gpu_utilization_percent", "hw_gpu_clock_mhz", "hw_gpu_temperature_celsius",
    "hw_gpu_vram_used_bytes", "hw_gpu_user_processes", "hw_collector_up", "hw_collector_duration_seconds",
    "hw_rank_up", "tb_step", "tb_perf_step_time_seconds",
)  # fmt: skip


def main() -> int:
    """Run, scrape, tell."""
    out = Path(sys.argv[1])
    work = Path(tempfile.mkdtemp(prefix="gpu-agent-"))
    job = work / "local_20260101_000000_abcd-JAX-tiny"
    (job / "agent").mkdir(parents=True)
    model = Path("src/trackwalker/models/tiny.yml").absolute()
    argv = [
        sys.executable,
        "-u",
        "-m",
        "trackwalker.trainers.tiny",
        str(model),
        f"base_output_directory={job}",
        *SETTINGS,
    ]
    rank = RankSpec(0, "gpu-r0", argv, {"NNODES": "1", "TRACKWALKER_HOST": "gpu-r0"})
    spec = AgentSpec("local_20260101_000000_abcd", "JAX-tiny", "tiny", "gpu", job, job.with_suffix(".log"), [rank], 1)
    (job / "agent" / "spec.json").write_text(json.dumps(dataclasses.asdict(spec), default=str))
    bundle = build_agent(job / "agent" / "agent.pyz")
    agent = subprocess.Popen([sys.executable, str(bundle), str(job / "agent" / "spec.json")])
    rows, took = [], []
    deadline = time.monotonic() + 300
    while agent.poll() is None and time.monotonic() < deadline:
        time.sleep(1.0)
        try:
            port = json.loads((job / "agent" / "targets" / "gpu.json").read_text())[0]["targets"][0]
            begin = time.perf_counter()
            text = urllib.request.urlopen(f"http://{port}/metrics", timeout=5).read().decode()
            took.append(time.perf_counter() - begin)
        except (OSError, ValueError, IndexError, KeyError):
            continue
        rows.append((time.time(), text))
    agent.kill()
    (out / "scrapes.prom").write_text("".join(f"# AT {t:.3f}\n{text}" for t, text in rows))
    tail = job.with_suffix(".log").read_text().splitlines()[-12:]
    print("\n".join(tail))
    median_ms = sorted(took)[len(took) // 2] * 1000
    print(f"{len(rows)} scrapes, median {median_ms:.1f} ms, {len(rows[-1][1].splitlines())} lines")
    for name in WATCHED:
        for line in sorted({m[0] for m in re.finditer(rf"^{name}\{{[^}}]*\}}", rows[len(rows) // 2][1], re.M)}):
            values = [float(m[1]) for _, text in rows if (m := re.search(re.escape(line) + r" (\S+)", text))]
            print(f"{line:70} first {values[0]:g}  median {sorted(values)[len(values) // 2]:g}  max {max(values):g}")
    usage = os.times()
    print(f"agent and training together used {usage.children_user + usage.children_system:.1f} s of CPU")
    return 0 if agent.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
