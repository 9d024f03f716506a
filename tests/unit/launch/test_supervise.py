"""The owner's policy on runs that ended: what it allows, what it stops, and that a dry run does nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trackwalker.cli.launching.wait import wait
from trackwalker.errors import UsageError
from trackwalker.job.journal import Journal, read
from trackwalker.job.layout import Job
from trackwalker.job.run import RunRecord
from trackwalker.launch.attempts import Next
from trackwalker.launch.job_state import Standing
from trackwalker.launch.resume import Ending
from trackwalker.launch.slurm.client import NodeState, Slurm
from trackwalker.watch.supervise import attempts as supervise
from trackwalker.watch.supervise.attempts import carry_out, consider
from trackwalker.watch.supervise.resume_policy import ResumePolicy, load_policy

ENDED = Standing("failed", True, 1, "failed", nodes="n[1-2]")


class Nodes(Slurm):
    """A cluster that is only asked for its nodes."""

    def __init__(self, **states: str) -> None:
        super().__init__({})
        self._states = states

    def nodes(self) -> list[NodeState]:
        return [NodeState(name, state) for name, state in self._states.items()]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    folder = tmp_path / "7-JAX-tiny"
    folder.mkdir()
    save(folder)
    return Job("7", tmp_path / "7-JAX-tiny.log", folder)


def save(folder: Path, auto_resume: int = 3, attempts: list[dict[str, Any]] | None = None, **more: Any) -> None:
    RunRecord(
        id="7", name="JAX-tiny", model="tiny", scheduler="slurm", trainer="tiny", created=1.0, argv=[], command=[],
        workspace=str(folder.parent), auto_resume=auto_resume, attempts=attempts or [], **more,
    ).save(folder / "run.json")  # fmt: skip


def checkpoints(job: Job, *steps: int) -> None:
    assert job.progress is not None
    journal = Journal(job.progress)
    for step in steps:
        journal.append({"t": 1.0, "rank": 0, "phase": "checkpoint", "state": "end", "step": step})
    journal.close()


@pytest.fixture
def ends_as(monkeypatch: pytest.MonkeyPatch) -> Any:
    def ends_as(cause: str, state: str = "failed", hosts: tuple[str, ...] = ()) -> None:
        ending = Ending(state, "failed", cause, hosts, "the line")
        monkeypatch.setattr(supervise, "ending_of", lambda job, seen: ending)

    return ends_as


def test_a_job_that_did_not_ask_is_left_alone_unless_the_policy_is_for_all(job: Job, ends_as: Any) -> None:
    ends_as("segfault")
    assert job.dir is not None
    save(job.dir, auto_resume=0)
    checkpoints(job, 10)
    assert "not submitted with --auto-resume" in consider(job, ENDED, ResumePolicy(), Nodes()).why
    assert consider(job, ENDED, ResumePolicy(jobs="all"), Nodes()).resume


def test_a_run_that_is_not_over_or_goes_on_elsewhere_is_refused_with_a_reason(job: Job, ends_as: Any) -> None:
    ends_as("segfault")
    assert job.dir is not None
    running = Standing("running", False, meaning="runs")
    assert consider(job, running, ResumePolicy(), Nodes()).why == "it has not ended: it runs"
    save(job.dir, continued_by="9")
    assert consider(job, ENDED, ResumePolicy(), Nodes()).why == "it goes on as job 9"
    assert not consider(Job("8", None, None), ENDED, ResumePolicy(), Nodes()).resume


def test_the_smaller_budget_counts_and_restarts_by_slurm_use_it_up(job: Job, ends_as: Any) -> None:
    ends_as("walltime", state="timeout")
    assert job.dir is not None
    checkpoints(job, 10)
    late = Standing("timeout", True, 124, nodes="n[1-2]")
    assert consider(job, late, ResumePolicy(budget=1), Nodes()).resume
    restarted = Standing("timeout", True, 124, nodes="n[1-2]", restarts=1)
    assert not consider(job, restarted, ResumePolicy(budget=1), Nodes()).resume
    save(job.dir, auto_resume=1, attempts=[{"class": "time-limit", "checkpoint": 5}])
    assert "used up" in consider(job, late, ResumePolicy(budget=9), Nodes()).why


def test_a_class_is_tried_as_often_as_the_policy_says(job: Job, ends_as: Any) -> None:
    ends_as("oom-gpu")
    checkpoints(job, 10)
    assert not consider(job, ENDED, ResumePolicy(), Nodes()).resume
    allowed = ResumePolicy.model_validate({"classes": {"oom": {"times": 1}}})
    assert consider(job, ENDED, allowed, Nodes()).resume
    ends_as("segfault")
    never = ResumePolicy.model_validate({"classes": {"crash": {"times": 0}}})
    assert not consider(job, ENDED, never, Nodes()).resume


def test_attempts_without_a_new_checkpoint_end_it(job: Job, ends_as: Any) -> None:
    ends_as("gpu-hardware-fault", hosts=("n2",))
    assert job.dir is not None
    policy = ResumePolicy(without_progress=2, budget=9)
    first = consider(job, ENDED, policy, Nodes())
    assert first.resume, "one attempt without a checkpoint may be chance"
    save(job.dir, 9, [{"class": "node", "checkpoint": None}])
    second = consider(job, ENDED, policy, Nodes())
    assert not second.resume
    assert "2 attempts in a row made no new checkpoint (there is none)" in second.why
    checkpoints(job, 40)
    assert consider(job, ENDED, policy, Nodes()).checkpoint == 40
    save(job.dir, 9, [{"class": "node", "checkpoint": 40}, {"class": "node", "checkpoint": 40}])
    stuck = consider(job, ENDED, policy, Nodes())
    assert not stuck.resume
    assert "the newest is of step 40" in stuck.why


def test_no_more_nodes_are_left_out_than_the_policy_allows(job: Job, ends_as: Any) -> None:
    ends_as("gpu-hardware-fault", hosts=("n2",))
    assert job.dir is not None
    checkpoints(job, 10)
    assert consider(job, ENDED, ResumePolicy(most_excluded=1), Nodes()).exclude == ["n2"]
    save(job.dir, 3, [{"class": "node", "excluded": ["n4"], "checkpoint": 5}])
    refused = consider(job, ENDED, ResumePolicy(most_excluded=1), Nodes())
    assert (refused.resume, refused.exclude) == (False, [])
    assert "n4,n2 would be left out" in refused.why


def test_a_free_spare_takes_the_place_of_the_node_left_out(job: Job, ends_as: Any) -> None:
    ends_as("gpu-hardware-fault", hosts=("n2",))
    checkpoints(job, 10)
    policy = ResumePolicy(spare=("n3", "n4"))
    assert consider(job, ENDED, policy, Nodes(n1="idle", n3="down", n4="idle")).only == "n1,n4"
    assert consider(job, ENDED, policy, Nodes(n1="idle", n3="down", n4="allocated")).only == ""
    assert consider(job, ENDED, ResumePolicy(), Nodes(n4="idle")).only == ""


def test_the_nodes_that_slurm_lost_are_found_and_left_out(job: Job, ends_as: Any) -> None:
    ends_as("", state="node-fail")
    checkpoints(job, 10)
    lost = Standing("node-fail", True, 1, nodes="n[1-2]")
    found = consider(job, lost, ResumePolicy(), Nodes(n1="idle", n2="down", n3="down"))
    assert (found.failure, found.exclude) == ("node-fail", ["n2"])


def test_a_hang_goes_to_the_same_nodes_once(job: Job, ends_as: Any) -> None:
    ends_as("collective-hang")
    assert job.dir is not None
    checkpoints(job, 10)
    again = consider(job, ENDED, ResumePolicy(), Nodes())
    assert (again.resume, again.only) == (True, "n[1-2]")
    save(job.dir, 3, [{"class": "hang", "checkpoint": 5}])
    assert not consider(job, ENDED, ResumePolicy(), Nodes()).resume


def test_a_dry_run_says_what_it_would_do_once_and_starts_nothing(
    job: Job, ends_as: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_as("segfault")
    checkpoints(job, 10)
    monkeypatch.setattr(supervise, "resume", lambda *_: pytest.fail("a dry run started something"))
    assert job.events is not None
    for _ in range(2):  # a watcher that is started again decides the same again
        decision = consider(job, ENDED, ResumePolicy(dry_run=True), Nodes())
        assert decision.resume
        assert carry_out(decision, ENDED, Nodes()) is None
    (event,) = read(job.events).items
    assert event["kind"] == "supervise"
    assert "dry run, nothing is started: another attempt from the checkpoint of step 10" in event["data"]["says"]
    assert event["data"]["started"] is None


def test_what_is_started_and_what_is_not_are_both_explained(
    job: Job, ends_as: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_as("segfault")
    checkpoints(job, 10)
    assert job.events is not None
    assert job.dir is not None
    begun = Next("7", job.dir, job.dir, True)
    monkeypatch.setattr(supervise, "resume", lambda *_: begun)
    assert carry_out(consider(job, ENDED, ResumePolicy(), Nodes()), ENDED) == begun
    ends_as("oom-gpu")
    assert carry_out(consider(job, ENDED, ResumePolicy(), Nodes()), ENDED) is None
    first, second = (event["data"] for event in read(job.events).items)
    assert (first["resume"], first["started"], first["checkpoint"]) == (True, "7", 10)
    assert (second["resume"], second["class"]) == (False, "oom")
    assert "memory would run out again" in second["why"]


def test_a_scheduler_that_refuses_is_an_event_and_an_error(
    job: Job, ends_as: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_as("segfault")
    checkpoints(job, 10)

    def refuse(*_: object) -> None:
        raise UsageError("no such partition")

    monkeypatch.setattr(supervise, "resume", refuse)
    with pytest.raises(UsageError, match="could not be started: no such partition"):
        carry_out(consider(job, ENDED, ResumePolicy(), Nodes()), ENDED)
    assert job.events is not None
    assert read(job.events).items[-1]["data"]["failed"] == "no such partition"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("channels: {}", "no section 'resume:'"),
        ("resume: {budgets: 3}", "resume.budgets"),
        ("resume: {classes: {flood: {times: 1}}}", "no failure class 'flood'"),
        ("resume: {classes: {cancelled: {times: 1}}}", "never started again"),
        ("resume: {budget: -1}", "resume.budget"),
        ("resume: [", "is not YAML"),
    ],
)
def test_a_mistake_in_the_policy_is_one_line(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "watch.yml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words) as error:
        load_policy(path)
    assert "\n" not in str(error.value)


def test_a_policy_without_auto_resume_is_refused_before_any_waiting(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give both"):
        wait("7", policy=tmp_path / "watch.yml", workspace=tmp_path)
    with pytest.raises(UsageError, match="cannot be read"):
        wait("7", auto_resume=True, policy=tmp_path / "watch.yml", workspace=tmp_path)


def test_a_policy_is_read_beside_the_other_sections(tmp_path: Path) -> None:
    path = tmp_path / "watch.yml"
    path.write_text("channels: {}\nresume:\n  budget: 5\n  spare: n[7-9]\n  classes:\n    hang: {nodes: exclude}\n")
    policy = load_policy(path)
    assert (policy.budget, policy.spare) == (5, ("n7", "n8", "n9"))
    assert policy.rules()["hang"].nodes == "exclude"
    assert policy.rules()["node-fail"].nodes == "exclude"
