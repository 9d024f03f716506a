"""Other trainers' steps: timed by their own stamps, counted from one, with their losses and saves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from triage_logs import ending, header, triage_text

from trackwalker.diagnose.case import Case, open_case
from trackwalker.diagnose.causes.detect import _ever_told
from trackwalker.diagnose.causes.playbook import Test as PlaybookTest
from trackwalker.diagnose.engine import diagnose_case
from trackwalker.job.layout import Job
from trackwalker.lab.scenario import Scenario
from trackwalker.lab.simulate import simulate
from trackwalker.logs.scanning.stamps import durations, written_at
from trackwalker.record.projection import final_step

WORLD: dict[str, Any] = {"nodes": 3, "hosts": ["n1", "n2", "n3"], "steps": 60, "total": 60, "step_s": 8.0, "ray": False}


def simulated(place: Path, *faults: dict[str, Any], **world: object) -> Job:
    scenario = Scenario(
        family="f", split="tune", about="a", world={**WORLD, **world}, faults=list(faults), truth={"outcome": "healthy"}
    )
    job = simulate(scenario, place).job
    return Job("77", job / "log", job)


def test_lines_with_a_time_tell_how_long_their_steps_took() -> None:
    times = np.array([100.0, 120.0, 120.0, 125.0])
    assert durations(np.array([1, 11, 11, 12]), times) == pytest.approx([2.0, 2.0, np.nan, 5.0], nan_ok=True)
    assert written_at("[titan] 2026-02-24 19:21:00,250 - root - INFO - step: 1") == 1_771_960_860.25
    assert np.isnan(written_at("no time here"))


@pytest.mark.parametrize("trainer", ["torchtitan", "megatron", "nemo"])
def test_a_run_of_any_trainer_at_constant_speed_is_healthy(tmp_path: Path, trainer: str) -> None:
    with open_case(simulated(tmp_path, {"kind": "dialect", "trainer": trainer})) as case:
        verdict = diagnose_case(case).verdict
    assert (verdict.status, verdict.outcome) == ("completed", "healthy")
    assert verdict.progress.step_time_s == pytest.approx(8.0, rel=0.02)


def test_a_loss_that_is_no_number_is_seen_in_any_trainers_lines(tmp_path: Path) -> None:
    faults = ({"kind": "nan-loss", "begin": 0.5}, {"kind": "dialect", "trainer": "torchtitan"})
    with open_case(simulated(tmp_path, *faults)) as case:
        verdict = diagnose_case(case).verdict
    assert [c.cause for c in verdict.causes if c.role == "root"] == ["loss-divergence"]


def test_saves_that_name_no_step_belong_to_the_step_before(tmp_path: Path) -> None:
    job = simulated(tmp_path, {"kind": "dialect", "trainer": "torchtitan"}, checkpoint_period=20, save_s=30)
    with open_case(job) as case:
        assert sorted(case.log.saves) == [21, 41]  # MaxText's steps 20 and 40, counted from one


def test_a_crash_after_the_last_step_of_a_trainer_that_counts_from_one_is_teardown(tmp_path: Path) -> None:
    crash = {"kind": "breaks", "host": "n2", "code": 139, "text": "Fatal Python error: Segmentation fault"}
    job = simulated(tmp_path, crash, {"kind": "dialect", "trainer": "megatron"}, ending="crash")
    with open_case(job) as case:
        assert final_step(case.triage.index) == 60
        verdict = diagnose_case(case).verdict
    assert (verdict.status, verdict.outcome) == ("soft-success", "expected")


def test_every_tenth_step_told_is_enough_to_be_done(tmp_path: Path) -> None:
    lines = "".join(
        f"[titan] 2026-02-24 19:{n // 60:02d}:{n % 60:02d},000 - root - INFO - step: {n}  loss: 5.0  memory: 9GiB(9%)  tps: 90\n"  # noqa: E501
        for n in range(10, 151, 10)
    )
    text = header().replace("0: Config param steps: 100\n", "") + lines + ending(0)
    log = tmp_path / "77-JAX-toy.log"
    log.write_text(text.replace("NNODES=4", 'NNODES=4\nPASSTHROUGH_ARGS="steps=155 x=1"'))
    with open_case(Job("77", log, None)) as case:
        assert (case.total_steps, case.triage.progress.step_time_s) == (155, 1.0)
        assert diagnose_case(case).verdict.status == "completed"


def test_a_log_that_breaks_off_with_nothing_beside_it_is_not_called_healthy(tmp_path: Path) -> None:
    job = simulated(tmp_path, {"kind": "merged-log-ends", "at": 50}, ending="silent")
    with open_case(job) as case:
        verdict = diagnose_case(case).verdict
    assert verdict.outcome == "insufficient-evidence"
    assert "breaks off in the middle of a line" in verdict.summary


def test_only_who_ever_answered_can_fall_silent() -> None:
    asked: list[str] = []

    def by_host(query: str, at: float) -> dict[str, float]:
        asked.append(query)
        return {"a": 4.0, "b": 4.0}

    telemetry = SimpleNamespace(range=lambda: (100.0, 400.0), by_host=by_host)
    test = PlaybookTest(
        id="t", role="require", query="q", metrics=["hw_gpu_power_watts"], detector="gone", window="during", says="s"
    )
    assert _ever_told(test, cast(Case, SimpleNamespace(telemetry=telemetry))) == {"a", "b"}
    assert "hw_gpu_power_watts[300s] @ 400.000" in asked[0]
    assert _ever_told(test, cast(Case, SimpleNamespace(telemetry=None))) == set()


ENGINE = (
    "0: [2026-09-02 06:{minute:02d}:10,169] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, "
    "lr=[2.8e-06], mom=[(0.9, 0.95)]\n"
    "0: [2026-09-02 06:{minute:02d}:10,171] [INFO] [timer.py:264:stop] epoch=0/micro_step={step}/global_step={step}, "
    "RunningAvgSamplesPerSec=12.1, CurrSamplesPerSec=12.0, MemAllocated=41.27GB, MaxMemAllocated=68.91GB\n"
)


def test_the_engine_of_deepspeed_tells_its_steps_and_when(tmp_path: Path) -> None:
    text = "".join(ENGINE.format(minute=10 + 2 * i, step=5 * (i + 1)) for i in range(12))
    steps = triage_text(tmp_path, header(nodes=2) + text).index.steps
    assert (steps.dialect, steps.step.tolist()) == ("deepspeed-engine", list(range(5, 61, 5)))
    assert steps.seconds[1:] == pytest.approx(24.0)


@pytest.mark.parametrize(
    "line",
    [
        "0: [rank0]:[titan] 2026-02-24 19:30:00,250 - root - INFO - Training completed",
        "0: `Trainer.fit` stopped: `max_steps=60` reached.",
        "0: [after training is done] datetime: 2026-02-24 19:30:00",
    ],
)
def test_a_trainer_that_says_it_is_done_is(tmp_path: Path, line: str) -> None:
    titan = "0: [rank0]:[titan] 2026-02-24 19:{minute:02d}:00,250 - root - INFO - step: {step}  loss:  2.1  memory: 139GiB(78.89%)  tps: 2,833  mfu: 10%\n"  # noqa: E501
    text = "".join(titan.format(minute=i, step=i + 1) for i in range(25))
    log = tmp_path / "77-JAX-toy.log"

    def status() -> str:
        with open_case(Job("77", log, None)) as case:
            return diagnose_case(case).verdict.status

    log.write_text(text)
    assert status() == "indeterminate"
    log.write_text(text + line + "\n")
    assert status() == "completed"
    log.write_text(text + line + "\n" + titan.format(minute=40, step=26))  # a text that only looks like it
    assert status() == "indeterminate"
