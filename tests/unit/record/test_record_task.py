"""Which task of which job a process is, and what a recorded job is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trackwalker import progress
from trackwalker.errors import UsageError
from trackwalker.launch.command import name_of
from trackwalker.launch.task import Task, find_task
from trackwalker.node.agent.guest import error_file
from trackwalker.node.agent.workers import place_of

SLURM = {
    "SLURM_JOB_ID": "8308",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_NODEID": "2",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x4)",
}


def test_an_ordinary_process_is_alone() -> None:
    assert find_task({}) == Task("")
    assert find_task({"RANK": "0", "WORLD_SIZE": "1"}).is_alone


def test_a_task_of_a_slurm_step() -> None:
    assert find_task(SLURM) == Task("8308", 5, 8, 1, 2, "slurm")
    assert find_task({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "1,2(x2),3"}).local_size == 2


def test_a_batch_script_is_alone_in_its_job() -> None:
    batch = {k: v for k, v in SLURM.items() if k != "SLURM_STEP_ID"} | {"SLURM_PROCID": "0"}
    assert find_task(batch) == Task("8308", scheduler="slurm")


def test_a_second_step_and_a_second_attempt_are_told_apart() -> None:
    found = find_task({**SLURM, "SLURM_STEP_ID": "3", "SLURM_RESTART_COUNT": "2"})
    assert (found.step, found.attempt) == ("3", 2)


@pytest.mark.parametrize(
    "names",
    [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"),
        ("PMI_RANK", "PMI_SIZE", "PMI_KVS"),
        ("RANK", "WORLD_SIZE", "MASTER_ADDR"),
        ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS"),
        ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", "JOB_NAME"),
    ],
)
def test_tasks_of_one_launch_come_to_the_same_job(names: tuple[str, str, str]) -> None:
    rank, world, shared = names
    tasks = [find_task({rank: str(n), world: "4", shared: "here"}) for n in range(4)]
    assert [task.rank for task in tasks] == [0, 1, 2, 3]
    assert len({task.job_id for task in tasks}) == 1
    assert tasks[0].job_id.isdigit()
    assert find_task({rank: "0", world: "4", shared: "there"}).job_id != tasks[0].job_id


def test_tasks_that_nothing_holds_together_are_recorded_by_themselves() -> None:
    assert find_task({"JOB_COMPLETION_INDEX": "1", "JOB_COMPLETIONS": "4"}).is_alone


def test_an_id_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="no job id"):
        find_task({"TRACKWALKER_JOB_ID": "../../etc"})


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("torchrun --nproc-per-node 8 train.py --lr 1", "train"),
        ("python -m torch.distributed.run --nproc-per-node 2 pretrain_gpt.py", "pretrain_gpt"),
        ("python -m my.trainer --steps 3", "my.trainer"),
        ("bash /home/me/job.sh", "job"),
        ("./a.out", "a.out"),
        ("bash -c nothing", "bash"),
    ],
)
def test_a_job_is_called_as_its_script(words: str, name: str) -> None:
    assert name_of(words.split()) == name


def test_a_name_is_fit_for_a_file() -> None:
    assert name_of(["/x/we ird$(rm).py"]) == "we-ird-rm"


def test_a_rank_is_known_by_both_its_numbers() -> None:
    assert place_of({"RANK": "3", "WORLD_SIZE": "8"}) == (3, 8)
    assert place_of({"RANK": "3"}) is None
    assert place_of({"RANK": "9", "WORLD_SIZE": "8"}) is None


def test_the_error_file_of_torch(tmp_path: Path) -> None:
    told = {"message": {"message": "RuntimeError: x", "extraInfo": {"py_callstack": "Traceback\nRuntimeError: x\n"}}}
    (tmp_path / "0.error.json").write_text(json.dumps(told))
    assert error_file(tmp_path / "0") == "Traceback\nRuntimeError: x"
    (tmp_path / "0.error.json").write_text('{"message": "plain"}')
    assert error_file(tmp_path / "0") == "plain"
    (tmp_path / "0.error.json").write_text("[]")
    assert error_file(tmp_path / "0") is None


def test_a_report_is_one_line_and_nothing_where_nobody_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(progress._state, "pid", 0)
    monkeypatch.delenv("TRACKWALKER_PROGRESS", raising=False)
    progress.report(step=1, loss=1.0)
    monkeypatch.setitem(progress._state, "pid", 0)
    monkeypatch.setenv("TRACKWALKER_PROGRESS", str(tmp_path / "0.progress.jsonl"))
    progress.report(step=1, loss=float("nan"))
    progress.report(step=2, loss=2.5, data_wait=0.1)
    first, second = (json.loads(line) for line in (tmp_path / "0.progress.jsonl").read_text().splitlines())
    assert (first["step"], first["loss"], first["phase"]) == (1, "nan", "train")
    assert (second["loss"], second["data_wait_s"]) == (2.5, 0.1)
    assert second["seconds"] == pytest.approx(second["t"] - first["t"])


def test_a_launchers_rank_reports_into_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(progress._state, "pid", 0)
    monkeypatch.setenv("TRACKWALKER_PROGRESS", str(tmp_path / "0.progress.jsonl"))
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    progress.report(step=7)
    assert json.loads((tmp_path / "3.progress.jsonl").read_text())["step"] == 7
