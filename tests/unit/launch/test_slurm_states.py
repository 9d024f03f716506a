"""What Slurm's words mean: every state it has, from outputs captured of 22.05 and written in the form of 24.11."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackwalker.job.slurm.parse import fields, job_of_sacct, jobs_of_scontrol, jobs_of_squeue
from trackwalker.job.slurm.states import _BASE, _FLAGS, _MEANING, STATES, make, split_words, term

DATA = Path(__file__).parents[2] / "data" / "slurm"


def test_captured_scontrol_of_22_05() -> None:
    jobs = {j.id: j for j in jobs_of_scontrol((DATA / "scontrol-22.05.txt").read_text())}
    seen = {number: (j.state, j.exit, j.meaning) for number, j in jobs.items()}
    assert seen == {
        "1": ("completed", 0, "completed"),
        "2": ("failed", 3, "failed with exit code 3"),
        "3": ("failed", 139, "failed by signal 11"),
        "4": ("cancelled", 143, "was cancelled"),
        "5": ("timeout", 124, "reached its time limit"),
        "9": ("preempted", 143, "had to make room for another job"),
        "20": ("node-fail", 1, "lost a node"),
        "21": ("running", None, "runs"),
        "22": ("launch-failed", None, _MEANING["launch-failed"]),
        "23": ("failed", 1, "was never started: the node could not open its log or run its script (Slurm's signal 53)"),
    }
    assert (jobs["21"].restarts, jobs["21"].nodes, jobs["21"].uid, jobs["21"].name) == (1, "n4", 1004, "j.sh")
    assert [number for number, j in jobs.items() if j.stuck] == ["22"]


def test_captured_squeue_of_22_05() -> None:
    jobs = jobs_of_squeue((DATA / "squeue-22.05.json").read_text())
    assert sorted((j.id, j.state, j.exit) for j in jobs) == [
        ("2", "failed", 3),
        ("5", "timeout", 124),
        ("9", "preempted", 143),
    ]


def test_squeue_of_24_11_has_lists_and_wrapped_numbers() -> None:
    jobs = {j.id: j for j in jobs_of_squeue((DATA / "squeue-24.11.json").read_text())}
    assert {number: (j.state, j.exit) for number, j in jobs.items()} == {
        "8308": ("failed", 3),
        "8309": ("completing", None),
        "8310": ("pending", None),
        "8311": ("oom", 137),
        "8312": ("running", None),
    }
    assert jobs["8310"].meaning == "waits in the queue again (restart 2): Resources"
    assert (jobs["8308"].uid, jobs["8308"].nodes) == (1004, "gpu[001-008]")


def test_an_exit_status_wrapped_as_in_23_02() -> None:
    text = (
        '{"jobs": [{"job_id": 7, "job_state": "FAILED", "exit_code": {"set": true, "infinite": false, "number": 768}}]}'
    )
    assert jobs_of_squeue(text)[0].exit == 3


SILENT = '{"errors": [{"description": "Failed while looking for jobs", "error_number": -1}], "jobs": []}'  # and exit 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"jobs": 3}', "slurm_load_jobs error", SILENT])
def test_what_is_no_answer_is_an_error_not_an_empty_queue(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        jobs_of_squeue(text)


def test_every_state_of_slurm_has_a_term_and_every_term_a_meaning() -> None:
    assert {term([word]) for word in [*_BASE, *_FLAGS]} <= set(STATES)
    assert set(_MEANING) == set(STATES)
    assert term(["NO_SUCH_STATE"]) == "unknown"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("CANCELLED by 1004", ["CANCELLED"]),
        ("CANCELLED+", ["CANCELLED"]),
        ("CANCELLED,COMPLETING", ["CANCELLED", "COMPLETING"]),
        ("RUNNING", ["RUNNING"]),
        ("", [""]),
    ],
)
def test_the_forms_a_state_comes_in(said: str, words: list[str]) -> None:
    assert split_words(said) == words


@pytest.mark.parametrize(
    ("raw", "state", "ended"),
    [
        ("CONFIGURING", "running", False),
        ("SUSPENDED", "suspended", False),
        ("REQUEUED", "pending", False),
        ("PENDING,REQUEUED", "pending", False),
        ("SPECIAL_EXIT", "pending", False),
        ("BOOT_FAIL", "boot-fail", True),
        ("DEADLINE", "deadline", True),
        ("REVOKED", "revoked", True),
        ("", "unknown", False),
    ],
)
def test_states_that_a_test_cluster_does_not_show(raw: str, state: str, ended: bool) -> None:
    seen = make("7", raw)
    assert (seen.state, seen.ended) == (state, ended)


def test_a_step_out_of_memory_explains_a_failed_job() -> None:
    steps = (
        "77|FAILED|1:0|n1|1004|Unknown|Unknown|JAX-x\n77.batch|FAILED|1:0|n1||||batch\n"
        "77.0|OUT_OF_MEMORY|0:125|n1||||python3\n"
    )
    found = job_of_sacct(steps, "77")
    assert found is not None
    assert (found.state, found.exit, found.name) == ("oom", 137, "JAX-x")


def test_of_several_attempts_the_last_counts() -> None:
    attempts = (
        "8|PENDING|0:0|n1|0|Unknown|Unknown|a|b\n8|CANCELLED by 0|0:0|None assigned|0|Unknown|2026-01-01T00:00:00|a|b\n"
        "80|COMPLETED|0:0|n1|0|||other\n"
    )
    found = job_of_sacct(attempts, "8")
    assert found is not None
    assert (found.state, found.nodes, found.name) == ("cancelled", "", "a|b")
    assert job_of_sacct("", "8") is None


def test_values_with_spaces_and_equals_signs() -> None:
    said = fields("NodeName=n1 OS=Linux 6.1 #1 SMP  Reason=Prolog error [root@2026-11-15T09:31:16] Gres=(null)")
    assert said["Reason"] == "Prolog error [root@2026-11-15T09:31:16]"
    assert said["OS"] == "Linux 6.1 #1 SMP"
    assert said["Gres"] == ""
    assert fields("No reservations in the system") == {}


def test_who_cancelled_a_job_is_told_where_it_was_not_its_owner() -> None:
    line = "7|CANCELLED by {by}|0:0|n1|1004|Unknown|Unknown|j"
    other = job_of_sacct(line.format(by=0), "7")
    assert other is not None
    assert (other.state, other.meaning) == ("cancelled", "was cancelled by root (uid 0), who is not its owner")
    owner = job_of_sacct(line.format(by=1004), "7")
    assert owner is not None
    assert owner.meaning == "was cancelled"
    assert make("7", "CANCELLED by 4000000000", uid=1).meaning.endswith("by uid 4000000000, who is not its owner")
