"""A workspace with a history: finished jobs on racks of hosts over weeks, incidents planted with what they cost."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from triage_logs import ending, header, steps
from web_client import MODELS

from trackwalker.diagnose.verdict import Cause, Cost, JobRef, Onset, Verdict, Window

HOSTS = tuple(f"r{rack}-n{node:02d}" for rack in range(1, 5) for node in range(1, 7))
RETURNING = "r2-n03"  # the culprit of four incidents
DAY_S = 86400.0


def make_run(
    root: Path,
    job: str,
    hosts: list[str],
    model: str = MODELS[0],
    age_s: float = 3600.0,
    slow_s: float = 0.0,
    last: int = 39,
    **config: Any,
) -> Path:
    """A finished run of ours; with `slow_s` its second half takes so long a step."""
    name, now = f"{job}-JAX-{model}", time.time()
    folder = root / name
    folder.mkdir(parents=True)
    began = now - age_s
    half = last // 2
    body = steps(half, 2) + steps(last, 2, first=half + 1, seconds=slow_s) if slow_s else steps(last, 2)
    log = root / f"{name}.log"
    text = header(len(hosts), steps=last + 1) + body + ending(0)
    own = text.replace("JOB_ID=77\nJOB_NAME=JAX-toy\n", f"JOB_ID={job}\nJOB_NAME=JAX-{model}\nMODEL_NAME={model}\n")
    log.write_text(own)
    os.utime(log, (began + 3600, began + 3600))
    (folder / "log").symlink_to(f"../{log.name}")
    run = {
        "schema": "trackwalker.run/1", "id": job, "name": f"JAX-{model}", "model": model, "scheduler": "slurm",
        "trainer": "maxtext", "created": began, "argv": ["submit", model], "command": ["python"],
        "workspace": str(root), "ranks": [{"rank": n, "host": h, "node": h} for n, h in enumerate(hosts)],
        "config": {name: {"value": value, "source": "model"} for name, value in {"steps": last + 1, **config}.items()},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run))
    return folder


def accuse(folder: Path, cause: str, hosts: list[str], gpus: int = 64, says: str = "") -> None:
    """Leave a verdict beside a job, as `diagnose --save` does."""
    job = folder.name.partition("-")[0]
    began = json.loads((folder / "run.json").read_text())["created"]
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began + 1200))
    verdict = Verdict(
        job=JobRef(id=job, dir=str(folder), nodes=4, gpus=gpus),
        window=Window(),
        status="completed",
        outcome="incident",
        summary=says or f"Steps became slower: {cause} of {', '.join(hosts)}.",
        causes=[Cause(cause=cause, role="root", confidence=0.9, hosts=hosts, onset=Onset(time=stamp))],
        cost=Cost(seconds=1.0, queries=9, bytes_read=1000),
    )
    (folder / "verdict.json").write_text(verdict.to_json())


def fleet_of(root: Path, count: int = 40) -> Path:
    """Jobs 5000, 5001, … over six weeks; every sixth is an incident, and RETURNING is in four of them."""
    for number in range(count):
        hosts = [HOSTS[(number * 5 + place * 7) % len(HOSTS)] for place in range(4)]
        hosts = [h for h in dict.fromkeys(hosts) if h != RETURNING] or [HOSTS[0]]
        bad = number % 6 == 3
        again = bad and number % 12 == 3
        hosts = [RETURNING, *hosts[1:]] if again or number % 13 == 0 else hosts
        age = 42 * DAY_S * (1 - number / count) + 7200
        folder = make_run(root, str(5000 + number), hosts, MODELS[number % 4], age, slow_s=16.0 if bad else 0.0)
        if again:
            accuse(folder, "rdma-degradation", [RETURNING], gpus=64 * (1 + number // 12))
        elif bad:
            accuse(folder, "gpu-thermal-throttle", hosts[:2], gpus=32)
    return root
