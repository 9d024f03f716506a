"""A workspace with a history: finished jobs on racks of hosts over weeks, incidents planted with what they cost."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from triage_logs import NCCL, ending, header, steps
from web_client import MODELS

from trackwalker.diagnose.verdict import Cause, Cost, JobRef, Onset, Verdict, Window
from trackwalker.job.causes import cause_name

HOSTS = tuple(f"r{rack}-n{node:02d}" for rack in range(1, 5) for node in range(1, 7))
RETURNING = "r2-n03"  # the culprit of four incidents
DAY_S = 86400.0
START_S = 240.0  # what a run takes beside its steps
PREFLIGHT_S = 12.0  # of that before the first one, as `header` tells

# What is planted among `a_month`'s jobs: number, cause, culprits, hosts, steps, seconds of a step in the slow half.
PLANTED = (
    (12, "gpu-thermal-throttle", ("r1-n02",), 4, 600, 13.0),
    (23, "rdma-degradation", (RETURNING,), 8, 900, 14.0),
    (41, "input-stall", (), 8, 800, 16.0),
    (58, "rdma-degradation", (RETURNING,), 16, 1400, 21.0),
    (77, "gpu-power-cap", ("r3-n05", "r3-n06"), 16, 1500, 24.0),
    (84, "", (), 8, 1000, 19.0),
    (96, "gpu-thermal-throttle", ("r4-n01",), 4, 500, 12.5),
    (111, "rdma-degradation", (RETURNING, "r2-n04"), 4, 700, 15.0),
    (129, "storage-degradation", (), 16, 1200, 17.5),
    (150, "", ("r1-n05",), 8, 400, 0.0),
    (167, "gpu-thermal-throttle", (RETURNING,), 4, 400, 13.5),
    (188, "cpu-contention", ("r4-n06",), 8, 600, 14.5),
)


def make_run(
    root: Path,
    job: str,
    hosts: list[str],
    model: str = MODELS[0],
    age_s: float = 3600.0,
    slow_s: float = 0.0,
    last: int = 39,
    gpus: int = 0,
    told: str = "",
    **config: Any,
) -> Path:
    """A run of ours that is over; with `slow_s` its second half takes so long a step, with `told` its log ends so.

    With `gpus` its log tells of so many on each host, and the run took as long as its start-up and its steps do.
    """
    name, now = f"{job}-JAX-{model}", time.time()
    folder = root / name
    folder.mkdir(parents=True)
    began = now - age_s
    half = last // 2
    body = steps(half, 2) + steps(last, 2, first=half + 1, seconds=slow_s) if slow_s else steps(last, 2)
    log = root / f"{name}.log"
    banner = "".join(
        f"{place}: \tUsing (GB) 78.5 / 178.5 (43.9%) on rocm:{place * gpus + gpu}\n"
        for place in range(len(hosts) if gpus else 0)
        for gpu in range(gpus)
    )
    took = START_S + 10.0 * (half + 1) + (slow_s or 10.0) * (last - half)
    end = (told + ending(1, wall=_wall(took))) if told else ending(0, wall=_wall(took))
    text = header(len(hosts), steps=2 * last if told else last + 1) + banner + body + end
    if gpus:
        text = text.replace(f"JOB_NODELIST=node[001-{len(hosts):03d}]", f"JOB_NODELIST={','.join(hosts)}")
    own = text.replace("JOB_ID=77\nJOB_NAME=JAX-toy\n", f"JOB_ID={job}\nJOB_NAME=JAX-{model}\nMODEL_NAME={model}\n")
    log.write_text(own)
    os.utime(log, (began + took, began + took))
    (folder / "log").symlink_to(f"../{log.name}")
    run = {
        "schema": "trackwalker.run/1", "id": job, "name": f"JAX-{model}", "model": model, "scheduler": "slurm",
        "trainer": "maxtext", "created": began, "argv": ["submit", model], "command": ["python"],
        "workspace": str(root), "ranks": [{"rank": n, "host": h, "node": h} for n, h in enumerate(hosts)],
        "config": {name: {"value": value, "source": "model"} for name, value in {"steps": last + 1, **config}.items()},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run))
    return folder


def accuse(
    folder: Path, cause: str, hosts: list[str], gpus: int = 64, says: str = "", after_s: float = START_S + 200.0
) -> None:
    """Leave a verdict beside a job, as `diagnose --save` does: since so long after it began."""
    job = folder.name.partition("-")[0]
    run = json.loads((folder / "run.json").read_text())
    began = run["created"]
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began + after_s))
    verdict = Verdict(
        job=JobRef(id=job, dir=str(folder), nodes=len(run["ranks"]), gpus=gpus),
        window=Window(),
        status="completed",
        outcome="incident",
        summary=says or f"Steps became slower: {cause_name(cause)}{' on ' * bool(hosts)}{', '.join(hosts)}.",
        causes=[Cause(cause=cause, role="root", confidence=0.9, hosts=hosts, onset=Onset(time=stamp))],
        cost=Cost(seconds=1.0, queries=9, bytes_read=1000),
    )
    (folder / "verdict.json").write_text(verdict.to_json())
    return verdict


def _wall(seconds: float) -> str:
    return f"{int(seconds // 3600)}h {int(seconds % 3600 // 60)}m {int(seconds % 60)}s"


def a_month(root: Path, count: int = 200) -> Path:
    """Jobs 7000, 7001, … of 28 days on 8 GPUs a host, those of PLANTED in trouble; of two nobody knows the cause."""
    planted = {number: rest for number, *rest in PLANTED}
    for number in range(count):
        age = 28 * DAY_S * (1 - number / count) + 9 * 3600.0
        cause, named, size, last, slow = planted.get(
            number, ("", (), (1, 2, 4, 8)[number % 4], (60, 240, 500)[number % 3], 0.0)
        )
        others = [HOSTS[(number * 5 + place * 7) % len(HOSTS)] for place in range(len(HOSTS))]
        hosts = list(dict.fromkeys([*named, *(host for host in others if host != RETURNING or number % 11 == 0)]))
        failed = number in planted and not slow
        folder = make_run(
            root, str(7000 + number), hosts[:size], MODELS[number % 4], age, slow, last, 8, NCCL.format(rank=1) * failed
        )
        if cause:
            accuse(folder, cause, list(named), 8 * size, after_s=PREFLIGHT_S + 10.0 * (last // 2 + 1))
    return root


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
