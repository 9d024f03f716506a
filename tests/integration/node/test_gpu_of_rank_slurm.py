"""Slurm, two ranks a node with two GPUs each (a stand-in driver): a hot GPU names host, GPU and rank."""
# ruff: noqa: F401, F811 - fixtures are imported, and then asked for by name

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

import pytest
from nvml_driver import DriverFile, built
from paced_ranks import Pace
from slurm_cluster import SlurmCluster
from slurm_run import Run

from trackwalker.diagnose.engine import diagnose
from trackwalker.job.resolve import resolve
from trackwalker.launch.request.validate import Asked
from trackwalker.launch.schedulers.slurm import plan_batch, submit
from trackwalker.launch.slurm.client import Slurm
from trackwalker.launch.slurm.options import SubmitOptions
from trackwalker.launch.submission import How, plan_submission

pytestmark = [
    pytest.mark.usefixtures("prometheus"),
    pytest.mark.timeout(150),
]
NODES, GPUS = 2, 2


def test_a_hot_gpu_names_host_gpu_and_rank(slurm: SlurmCluster, built: Path, tmp_path: Path) -> None:
    pace = Pace(tmp_path, 0.05)
    drivers = {node: DriverFile(built, tmp_path, GPUS, node) for node in ("n1", "n2")}
    for driver in drivers.values():
        driver.set(power=690_000, utilization=100, reasons=0x4, temperature__0=60, processes=0)
    env = {**slurm.env, **drivers["n1"].env}
    policy = {"ecc": "warn", "gpus_present": "warn"}
    asked = Asked("tiny", nodes=NODES, workspace=tmp_path)
    planned = plan_submission(asked, How("slurm", ["submit", "tiny"], procs=2, observe=True, policy=policy))
    order = dataclasses.replace(planned.order, argv=pace.argv, output=None)
    client = Slurm(env)
    options = SubmitOptions(nodes=NODES, nodelist="n1,n2")
    queued = submit(plan_batch(dataclasses.replace(planned, order=order), options, client, sys.executable), client)
    run = Run(slurm, queued)
    run.says("completed step: 200,", 60)
    drivers["n2"].set(gpu=1, temperature__0=93, clock__1=1200, power=400_000, reasons=0x40)
    pace.set(0.15)
    time.sleep(12)  # the wait is the subject: so long the GPU is hot
    pace.end()
    assert run.ends() == "completed", run.text[-3000:]
    verdict = diagnose(resolve(str(run.dir), tmp_path)).verdict
    # Both nodes are this machine, and other tests take CPU time from them: that may be told as well, and is true.
    roots = [(c.cause, c.hosts, c.gpus) for c in verdict.roots if c.cause != "cpu-contention"]
    assert roots == [("gpu-thermal-throttle", ["n2"], ["n2/1"])]
    assert "n2 (GPU n2/1, rank 3)" in verdict.summary
