"""A run of several ranks on one machine, each with a GPU of the stand-in driver, and trouble for one of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from nvml_driver import DriverFile
from paced_ranks import Pace

from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.verdict import Verdict
from trackwalker.job.processes import short_hostname
from trackwalker.job.resolve import resolve
from trackwalker.launch.plan import How, plan_local
from trackwalker.launch.request.words import ModelSpec, Passthrough
from trackwalker.launch.schedulers.local import LocalRun

RANKS, VICTIM = 3, 1
_FULL_S, _SLOW_S = 0.05, 0.15
_HEALTHY = {
    "power": 690_000, "utilization": 100, "reasons": 0x4, "temperature__0": 60, "processes": 0, "width": 16,
    "replay": 0,
}  # fmt: skip


def lane() -> str:
    """The lane whose GPU is in trouble."""
    return f"{short_hostname()}-r{VICTIM}"


def judge(library: Path, folder: Path, trouble: Mapping[str, int], healthy_s: float = 22.0) -> tuple[Path, Verdict]:
    """Train at full speed, let one GPU say `trouble` while every step takes three times as long, and diagnose."""
    driver, pace = DriverFile(library, folder, RANKS), Pace(folder, _FULL_S)
    driver.set(**_HEALTHY)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in driver.env.items():
            patch.setenv(name, value)
        plan = plan_local(ModelSpec("tiny"), Passthrough({}), folder, How("local", ["run"], RANKS, observe=True))
        ranks = [dataclasses.replace(rank, argv=pace.argv) for rank in plan.agent.ranks]
        run = LocalRun.start(dataclasses.replace(plan, agent=dataclasses.replace(plan.agent, ranks=ranks)))
        try:
            _wait(run, healthy_s)
            for gpu in set(range(RANKS)) - {VICTIM}:
                driver.set(gpu=gpu, power=520_000)  # they wait for it
            driver.set(gpu=VICTIM, **trouble)
            pace.set(_SLOW_S)
            _wait(run, 14.0)
            pace.end()
            _wait(run, 20.0)
        finally:
            if run.supervise() is None:
                run.cancel()
            run.wait_closed()
    return run.job_dir, diagnose(resolve(str(run.job_dir), folder)).verdict


def _wait(run: LocalRun, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and run.supervise() is None:
        time.sleep(0.1)
