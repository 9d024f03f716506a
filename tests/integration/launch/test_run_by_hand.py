"""Runs without a scheduler: on this machine, or as nodes that were started by hand inside their image."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import hard_values
import pytest
from hypothesis import given
from tiny_settings import SMALL

from trackwalker.errors import UsageError
from trackwalker.job.resolve import resolve
from trackwalker.job.run import load_run
from trackwalker.launch.code.provenance import code_of
from trackwalker.launch.here import Place, RunByHand, place_by_hand
from trackwalker.launch.job_state import standing
from trackwalker.launch.plan import plan_local
from trackwalker.launch.request.validate import Asked
from trackwalker.launch.request.words import ModelSpec, parse_passthrough
from trackwalker.launch.schedulers.local import LocalRun
from trackwalker.launch.submission import How, Submission, plan_submission

pytestmark = [pytest.mark.timeout(120)]
ID = "local_20261115_093000_ab12"
STEPS = """
import os, time
print(os.environ["NODE_RANK"], "meets at", os.environ["JAX_COORDINATOR_IP"], os.environ["JAX_COORDINATOR_PORT"])
for step in range(3):
    print(f"completed step: {step}, seconds: 0.100, TFLOP/s/device: 1.0, Tokens/s/device: 9.0, loss: 1.0", flush=True)
    time.sleep(0.1)
"""


def planned(workspace: Path, place: Place) -> Submission:
    asked = Asked("tiny", [*place.coordinator], place.nodes, workspace=workspace)
    submission = plan_submission(asked, How("local", ["run", "tiny", "--in-container"]))
    order = dataclasses.replace(submission.order, argv=[sys.executable, "-c", STEPS], output=None)
    return dataclasses.replace(submission, order=order)


def ended(*runs: RunByHand | LocalRun) -> list[int]:
    deadline = time.monotonic() + 60
    try:
        while any(run.supervise() is None for run in runs):
            assert time.monotonic() < deadline, "it does not end"
            time.sleep(0.1)
    finally:
        for run in runs:
            run.cancel()
            run.wait_closed()
    return [run.supervise() or 0 for run in runs]


def test_nodes_started_by_hand_meet_in_the_job_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_env = {"JOB_ID": ID, "NNODES": "2", "JAX_COORDINATOR_IP": "127.0.0.1", "JAX_COORDINATOR_PORT": "29555"}
    runs = []
    monkeypatch.setenv("JAX_COORDINATOR_IP", "192.0.2.1")  # of an earlier run; what counts is what was asked for
    for rank in (1, 0):  # whoever comes first waits
        monkeypatch.setenv("TRACKWALKER_NODE", f"box{rank}")
        place = place_by_hand({**given_env, "NODE_RANK": str(rank)})
        runs.append(RunByHand(planned(tmp_path, place), place))
    codes = ended(*runs)
    head = runs[1]
    log = head.log.read_text()
    assert codes == [0, 0], log + runs[0].said.read_text()
    assert "0 meets at 127.0.0.1 29555" in log
    assert "SUCCESS (exit 0)" in log
    assert "1 meets at 127.0.0.1 29555" in runs[0].log.read_text()
    record = load_run(head.job_dir / "run.json")
    assert record is not None
    assert (record.id, [r.host for r in record.ranks]) == (ID, ["box0", "box1"])
    assert standing(resolve(ID, tmp_path)).state == "completed"
    with pytest.raises(UsageError, match="has run already"):
        RunByHand(planned(tmp_path, place), place)


def test_r10_ranks_without_a_container_start_in_the_snapshot(tmp_path: Path) -> None:
    frozen = tmp_path / "frozen"
    frozen.mkdir()
    (frozen / "mine.py").write_text("print('the code of the snapshot')\n")
    place = place_by_hand({})
    submission = planned(tmp_path / "ws", place)
    order = dataclasses.replace(submission.order, argv=[sys.executable, "-m", "mine"], workdir=str(frozen))
    run = RunByHand(dataclasses.replace(submission, order=order), place)
    assert ended(run) == [0]
    assert "0: the code of the snapshot" in run.log.read_text()


def test_in_container_on_one_machine_from_the_command_line(tmp_path: Path) -> None:
    words = ["run", "tiny", "--in-container", "--workspace", str(tmp_path), "--", "steps=2", *SMALL]
    env = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_NODEID": "3"}  # an allocation around it is not its scheduler
    argv = [sys.executable, "-m", "trackwalker", *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = tmp_path.glob("local_*.log")
    text = log.read_text()
    assert "== Preflight END" in text
    assert "SUCCESS (exit 0)" in text
    assert text.splitlines().count("=== GIT SUMMARY BEGIN ===") == 1
    (found,) = tmp_path.glob("local_*/provenance.json")
    assert json.loads(found.read_text())["packages"]["trackwalker"]


@hard_values.few_runs(3)
@given(values=hard_values.VALUES)
def test_r04_local_values_reach_the_trainer_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, values: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("local")
    words = [*hard_values.settings_words(values)]
    words += [f"_env_{name}={value}" for name, value in hard_values.environment(values).items()]
    plan = plan_local(
        ModelSpec("tiny"), parse_passthrough(words), folder, How("local", ["run", "tiny", "--", *words], 2)
    )
    trainer = hard_values.stand_in(folder / "seen")
    cut = plan.agent.ranks[0].argv.index(str(plan.agent.job_dir / "config.yml"))
    ranks = [dataclasses.replace(rank, argv=[*trainer, *rank.argv[cut + 1 :]]) for rank in plan.agent.ranks]
    run = LocalRun.start(dataclasses.replace(plan, agent=dataclasses.replace(plan.agent, ranks=ranks)))
    assert ended(run) == [0], plan.log.read_text(errors="replace")
    for rank in (0, 1):
        hard_values.check(folder / "seen", rank, values)


def test_a_run_says_which_code_it_was(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    git = ["git", "-C", str(code), "-c", "user.name=ann", "-c", "user.email=a@b.c"]
    (code / "train.py").write_text("print(1)\n")
    for words in (["init", "-q", "-b", "trunk"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    (code / "train.py").write_text("print(2)\nHF_TOKEN = 'hush'\n")
    (code / "notes").write_text("")
    began = time.monotonic()
    found = code_of(code, tmp_path, None)
    seconds = time.monotonic() - began
    asked = Asked("tiny", workspace=tmp_path / "ws")
    submission = plan_submission(asked, How("slurm", ["submit", "tiny"], provenance=found))
    facts = submission.record.code
    assert facts["commit"] == subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    assert (facts["branch"], facts["dirty"]) == ("trunk", "true")
    submission.write()
    job_dir = submission.open_job("77")
    kept = json.loads((job_dir / "provenance.json").read_text())
    assert kept["untracked"] == ["notes"]
    assert "+print(2)" in kept["patch"]
    header = "\n".join(submission.order.header)
    assert "[CHANGES --name-status]\nM\ttrain.py" in header
    assert "hush" not in header + json.dumps(kept)
    print(f"provenance took {seconds:.2f} s")
