"""A config error, an unknown registry and a killed srun are told as what they were, by triage, resume and sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackwalker.diagnose.triage import triage
from trackwalker.job.layout import Job
from trackwalker.launch.job_state import Standing
from trackwalker.launch.resume import classify
from trackwalker.sweep.executors.jobs import measure
from trackwalker.sweep.model import Trial
from trackwalker.watch.supervise.resume import ending_of

LABELS = {1: "", 2: "1: "}  # one rank's lines have no label


def log(folder: Path, ranks: int) -> Job:
    said = "".join(f"{r}: " * (ranks > 1) + "config-error: steps must be 1 or more, not -4\n" for r in range(ranks))
    path = folder / "77-JAX-tiny.log"
    path.write_text(
        f"JOB_ID=77\nJOB_NAME=JAX-tiny\nNNODES={ranks}\n== Training BEGIN (no timeout) ==\n{said}"
        f"{LABELS[ranks]}NODE_EXIT host=n1 exit=2\nFIRST_FAILURE rank=0 host=n1 exit=2 cause=exited with code 2\n"
        "== Training FAILED (exit=2, 3s) ==\n"
    )
    return Job("77", path, None)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trainers_config_error_is_one_for_triage_resume_and_sweep(ranks: int, tmp_path: Path) -> None:
    job = log(tmp_path, ranks)
    found = triage(job)
    assert found.primary is not None
    assert (found.primary.cause, found.status) == ("config-error", "failed")
    ended = Standing("failed", True, 2, "failed with exit code 2")
    assert classify(ending_of(job, ended)) == "config"
    trial = Trial("t", "tiny", ("n1", "n2")[:ranks])
    result = measure(job, trial, "failed", "failed with exit code 2")
    assert (result.status, result.cause) == ("config-error", "config-error")


def test_a_registry_whose_name_nobody_knows_is_no_question_of_name_tag_or_login(tmp_path: Path) -> None:
    path = tmp_path / "78-JAX-tiny.log"
    path.write_text(
        "JOB_ID=78\n== Docker pull BEGIN (timeout=900s) ==\nn1: [ERROR] Pull failed for registry.example/train:1: "
        "dial tcp: lookup registry.example on 192.0.2.53:53: no such host\n== Docker pull FAILED (exit=1, 3s) ==\n"
    )
    found = triage(Job("78", path, None))
    assert found.primary is not None
    assert found.primary.cause == "container-pull-fail"
    told = " ".join(found.next)
    assert "DNS" in told
    assert "login" not in told
    assert "tag" not in told.replace("stage", "")


@pytest.mark.parametrize(
    ("due", "cause"), [("NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", "node-death"), ("TIME LIMIT", "walltime")]
)
def test_an_srun_that_slurm_killed_at_the_end_of_its_patience_is_no_cause(due: str, cause: str, tmp_path: Path) -> None:
    path = tmp_path / "79-JAX-tiny.log"
    step = "0: completed step: {}, seconds: 0.3, TFLOP/s/device: 1.0, Tokens/s/device: 9.0, loss: 1.0\n"
    path.write_text(
        f"JOB_ID=79\nNNODES=2\n{''.join(step.format(n) for n in range(9))}"
        f"slurmstepd-n1: error: *** JOB 79 ON n1 CANCELLED AT 2026-11-16T15:24:16 DUE TO {due} ***\n"
        "/var/spool/slurmd/job00079/slurm_script: line 22: 4711 Killed                  srun --nodes=2 python3\n"
    )
    found = triage(Job("79", path, None))
    assert found.primary is not None
    assert found.primary.cause == cause
