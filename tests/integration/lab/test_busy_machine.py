"""Beside other people's busy processes a run without a fault is healthy, or the foreign load is told as what it is."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trackwalker.diagnose.engine import diagnose
from trackwalker.job.resolve import resolve
from trackwalker.lab.real.cases import CASES
from trackwalker.lab.real.demo import run_demo
from trackwalker.lab.real.dose import FAULTS, run_dose
from trackwalker.telemetry.store import open_database

pytestmark = [
    pytest.mark.usefixtures("prometheus"),
    pytest.mark.alone,
    pytest.mark.long(reason="a minute of every processor: the load it makes must be the only one"),
]


def test_processes_of_others_are_named_and_no_rank_is_accused(tmp_path: Path) -> None:
    run = run_dose(FAULTS["cpu-taken"], 12, tmp_path, lambda text: None)
    job = resolve(str(tmp_path / run.job), tmp_path)
    verdict = diagnose(job).verdict
    assert verdict.outcome != "insufficient-evidence"
    assert not any(c.hosts for c in verdict.causes)
    assert {c.cause for c in verdict.roots} <= {"cpu-contention", "user-cancel"}
    assert "cpu-contention" not in {r.cause for r in verdict.ruled_out}, "its ranks waited for a CPU"
    assert job.database is not None
    with open_database(job.database) as telemetry:
        used = telemetry.by(
            "sum by (process) (increase(hw_foreign_cpu_seconds_total[5m]))", telemetry.range()[1], "process"
        )
    assert sum(v for name, v in used.items() if name.startswith("python")) > 1.0, "the busy loops are Python's"
    if run.grade == "named":
        assert "processes that are not the job's use" in verdict.summary


@contextmanager
def changing_load(seed: int) -> Iterator[None]:
    """Busy loops of others that come and go: none to four at a time, seconds each."""
    over, chance = threading.Event(), random.Random(seed)

    def make() -> None:
        while not over.is_set():
            loops = [
                subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(chance.choice((0, 1, 2, 4)))
            ]
            over.wait(chance.uniform(2.0, 9.0))
            for loop in loops:
                loop.kill()
                loop.wait()

    maker = threading.Thread(target=make)
    maker.start()
    try:
        yield
    finally:
        over.set()
        maker.join()


@pytest.mark.parametrize("seed", range(10))
def test_beside_load_that_comes_and_goes_a_run_is_healthy_or_the_load_is_named(tmp_path: Path, seed: int) -> None:
    with changing_load(seed):
        result = run_demo(CASES["none"], tmp_path, lambda text: None, lambda watch: None)
    verdict = result.diagnosis.verdict
    assert not any(c.hosts for c in verdict.causes), "nobody of the job is to blame"
    if verdict.outcome != "healthy":
        assert [c.cause for c in verdict.roots] == ["cpu-contention"], verdict.summary
        assert "processes that are not the job's use" in verdict.summary
