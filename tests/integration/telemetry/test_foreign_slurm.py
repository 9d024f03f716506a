"""A job that nobody recorded, on a real Slurm with accounting: `diagnose NUMBER` with the cluster's store is enough."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import slurm_accounting
from filled_store import prometheus_with
from ports import free_ports
from slurm_cluster import SlurmCluster, need_slurm

from trackwalker.telemetry.blocks import BlockWriter, labels

TRAINER = Path(__file__).parents[2] / "support" / "megatron_style.py"
SCRIPT = """#!/bin/bash
#SBATCH -N 4 --ntasks-per-node=1 -J pretrain
export MASTER_PORT={port}
srun {python} {trainer} 80 0.3
"""
EVERY_S = 5.0
GAUGES = {"node_procs_running": 3.0, "node_procs_blocked": 0.0, "node_memory_MemAvailable_bytes": 64e9, "up": 1.0}


@pytest.fixture
def accounted() -> Iterator[SlurmCluster]:
    need_slurm()
    if why := slurm_accounting.missing():
        pytest.skip(why)
    with SlurmCluster(4, accounting=True) as cluster:
        yield cluster


def stored(into: Path, begin: float, end: float) -> None:
    """What a site's Prometheus has: node_exporter on the job's nodes and on one that is not the job's."""
    writer = BlockWriter(into)
    times = np.rint(1000 * np.arange(begin, end, EVERY_S)).astype(np.int64)
    for host in ("n1", "n2", "n3", "n4", "n5"):
        names = [labels(name, instance=f"{host}:9100", job="node") for name in GAUGES]
        writer.add(names, times, np.array([np.full(len(times), value) for value in GAUGES.values()]))
    writer.close()


@pytest.mark.long(reason="a Slurm of its own with slurmdbd and its database")
def test_hosts_and_times_are_slurms(accounted: SlurmCluster, tmp_path: Path) -> None:
    begun = time.time()
    script, out = tmp_path / "job.sbatch", tmp_path / "printed.out"
    script.write_text(SCRIPT.format(port=free_ports(1)[0], python=sys.executable, trainer=TRAINER))
    job = accounted.client("sbatch", "--parsable", "-o", str(out), "-D", str(tmp_path), str(script)).strip()

    def told() -> list[str]:
        line = accounted.client("sacct", "-X", "-n", "-P", "-j", job, "-o", "State,Start,End,NodeList", check=False)
        return line.strip().split("|") if "COMPLETED" in line else []

    _, start, end, nodes = accounted.wait_for(told, "the job's end in the accounting", 180)
    assert nodes == "n[1-4]"
    first, last = (time.mktime(time.strptime(at, "%Y-%m-%dT%H:%M:%S")) for at in (start, end))
    assert out.read_text().count("n1") == 0, "the log does not say where it ran"
    known = time.time()
    stored(tmp_path / "blocks", begun - 1800, known)
    with prometheus_with(tmp_path / "blocks", tmp_path) as access:
        argv = [sys.executable, "-m", "trackwalker", "diagnose", job, "--metrics", access.url, "--json"]
        done = subprocess.run(argv, cwd=tmp_path, env=accounted.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ", every 5 s, 4 hosts; cost to the store: " in done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["outcome"] == "healthy", verdict["summary"]
    samples = int(done.stderr.split(" samples")[0].rpartition(" ")[2].replace(",", ""))
    # Two minutes on both sides of the time that Slurm gives, on four hosts: not the half hour that the store has.
    spans = [(min(last + 120, known) - first + 120) / EVERY_S * len(GAUGES) * 4 * share for share in (0.8, 1.2)]
    assert spans[0] < samples < spans[1], done.stderr
