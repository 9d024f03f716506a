"""A workspace of recorded jobs for the tests of `trackwalker tsdb`, and the command itself as a process."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from command_here import call_here
from worlds import START, World

from conftest import tree_hash
from trackwalker.observe.tsdb import list_parts

HOSTS = ["alder7", "birch7", "cedar7"]
GAP = (START + 405, START + 905)
MAIN = "from trackwalker.cli import app; app.main()"


def world(job_id: str, silent: Callable[[str, float], bool] = lambda name, time: False) -> World:
    rng = random.Random(job_id)

    def metrics(host: str, time: float) -> dict[str, float]:
        values = {"up": 1.0, "hw_procs_running": float(rng.randrange(9))}
        values |= {f'hw_gpu_power_watts{{gpu="{g}",shelf="top"}}': rng.uniform(300, 700) for g in range(2)}
        return {k: v for k, v in values.items() if not silent(k, time)}

    return World(HOSTS, [10.0] * 5, 5, metrics, job_id=job_id, warm_up_s=60.0, silent_s=1500.0)


@contextmanager
def recorded_jobs(root: Path, prometheus: Path) -> Iterator[Path]:
    """Five recorded jobs: whole, with a gap, one metric silent, damaged, empty; and one that was not recorded.

    At the end they must be as they were, and nothing may be left of what read them.
    """
    made = [
        world("5150").build(root, prometheus),
        world("5151", lambda _, t: GAP[0] < t < GAP[1]).build(root, prometheus),
        world("5152", lambda name, t: name == "up" and GAP[0] < t < GAP[1]).build(root, prometheus),
    ]
    bad = World(HOSTS, [10.0], 1, job_id="5153").build(root, None)
    shutil.copytree(made[0] / "prometheus", bad / "prometheus")
    victim = bad / "prometheus" / list_parts(bad / "prometheus").blocks[0]
    (victim / "index").write_bytes((victim / "index").read_bytes()[:100])
    (World(HOSTS, [10.0], 1, job_id="5154").build(root, None) / "prometheus").mkdir()
    World(HOSTS, [10.0], 1, job_id="5155").build(root, None)
    for age, log in enumerate(sorted(root.glob("*.log"), reverse=True)):
        os.utime(log, (START - age, START - age))
    before = tree_hash(root)
    yield root
    assert tree_hash(root) == before, "reading changed a job"
    assert not leftovers()


def leftovers() -> list[Path]:
    """Private copies of processes that are gone; others may be at work on this machine."""
    views = Path(tempfile.gettempdir()).glob(f"trackwalker-view-{os.getuid()}-*")
    return [v for v in views if int(v.name.split("-")[3]) in _STARTED]


_STARTED: set[int] = set()


def start(workspace: Path, *words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "JOB_WORKSPACE": str(workspace), "COLUMNS": "250"}
    command = [sys.executable, "-c", MAIN, "tsdb", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    _STARTED.add(process.pid)
    return process


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def call(workspace: Path, *words: str) -> tuple[int, str, str]:
    """A command to its end, in this process."""
    _STARTED.add(os.getpid())
    done = call_here({**os.environ, "JOB_WORKSPACE": str(workspace), "COLUMNS": "250"}, "tsdb", *words)
    return done.returncode, done.stdout, done.stderr
