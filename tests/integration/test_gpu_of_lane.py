"""Several ranks on one machine, each with a GPU of a stand-in driver: trouble of one GPU is told as its lane's."""
# ruff: noqa: F401, F811 - fixtures are imported, and then asked for by name

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from nvml_driver import DriverFile, built
from paced_ranks import Pace
from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.verdict import Verdict
from trackwalker.job.resolve import resolve
from trackwalker.launch.plan import plan_local, short_hostname
from trackwalker.launch.request import ModelSpec, Passthrough
from trackwalker.launch.schedulers.local import LocalRun
from trackwalker.telemetry.store import open_database

pytestmark = [
    pytest.mark.usefixtures("prometheus"),
    pytest.mark.timeout(120),
]
RANKS, VICTIM = 3, 1
FULL_S, SLOW_S = 0.05, 0.15


@pytest.fixture(scope="module")
def judged(built: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Verdict]:
    """A run in the middle of which somebody locks the clock of one rank's GPU."""
    folder = tmp_path_factory.mktemp("lanes")
    driver, pace = DriverFile(built, folder, RANKS), Pace(folder, FULL_S)
    driver.set(power=690_000, utilization=100, reasons=0x4, temperature__0=60, processes=0)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in driver.env.items():
            patch.setenv(name, value)
        plan = plan_local(ModelSpec("tiny"), RANKS, Passthrough({}), folder, True, ["run"])
        ranks = [dataclasses.replace(rank, argv=pace.argv) for rank in plan.agent.ranks]
        run = LocalRun.start(dataclasses.replace(plan, agent=dataclasses.replace(plan.agent, ranks=ranks)))
        try:
            _wait(run, 14.0)
            driver.set(gpu=VICTIM, power=310_000, clock__1=1100, temperature__0=48, reasons=0x2)
            for gpu in set(range(RANKS)) - {VICTIM}:
                driver.set(gpu=gpu, power=520_000)  # they wait for it
            pace.set(SLOW_S)
            _wait(run, 12.0)
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


def test_the_lane_and_its_gpu_are_named(judged: tuple[Path, Verdict]) -> None:
    _, verdict = judged
    assert [(c.cause, c.hosts, c.gpus) for c in verdict.roots] == [
        ("gpu-clock-degraded", [f"{short_hostname()}-r{VICTIM}"], [str(VICTIM)])
    ], verdict.summary


def test_nothing_that_was_recorded_is_called_missing(judged: tuple[Path, Verdict]) -> None:
    job, verdict = judged
    with open_database(job / "prometheus") as telemetry:
        assert {m for u in verdict.untestable for m in u.missing} & telemetry.metrics() == set()


def test_the_evidence_comes_back_under_the_lanes_names(judged: tuple[Path, Verdict]) -> None:
    job, verdict = judged
    named = [
        e for e in verdict.evidence if e.kind == "metric" and "hw_gpu_clock_mhz" in e.source and "gpu)" in e.source
    ]
    assert named
    with open_database(job / "prometheus") as telemetry:
        for item in named:
            again = telemetry.instant(item.source, telemetry.range()[1])
            assert {f"{s.labels['host']}/{s.labels['gpu']}": s.value for s in again} == pytest.approx(
                item.values, abs=5e-4
            )
