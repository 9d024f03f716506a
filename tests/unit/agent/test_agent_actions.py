"""Actions: none without policy and approval, none on foreign jobs; with both, exactly the approved one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import write_lines

from trackwalker.agent.actions import Office, cancel_job, exclude_nodes, stack_dump, submit_job
from trackwalker.agent.answers import ActionAnswer
from trackwalker.agent.audit import Audit, Caller
from trackwalker.agent.policy import Approvals, Policy
from trackwalker.agent.toolbox import ACTION_TOOLS, Toolbox
from trackwalker.agent.workspace import Workspace
from trackwalker.errors import RefusedError, TrackwalkerError, UsageError
from trackwalker.job.journal import read
from trackwalker.job.processes import read_stat
from trackwalker.job.run import RunRecord
from trackwalker.launch.ledger import to_exclude
from trackwalker.node.evidence.capsule import NAME

JOB = "local_20261115_093000_ab12"
ALL = {name: ["mcp"] for name in ("submit", "cancel", "exclude-nodes", "stack-dump")}


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    folder = tmp_path / "outputs" / f"{JOB}-JAX-x"
    (folder / "agent").mkdir(parents=True)
    (tmp_path / "outputs" / f"{folder.name}.log").write_text("0: hello\n")
    (folder / "log").symlink_to(f"../{folder.name}.log")
    RunRecord(
        id=JOB, name="JAX-x", model="x", scheduler="local", trainer="tiny", created=0, argv=["run", "x"], command=["x"],
        workspace=str(tmp_path / "outputs"),
    ).save(folder / "run.json")  # fmt: skip
    return Workspace(tmp_path / "outputs")


@pytest.fixture
def running(ws: Workspace) -> Iterator[subprocess.Popen[bytes]]:
    """A real process that the job's record calls its agent."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    stat = read_stat(process.pid)
    assert stat is not None
    state = {"agent": {"pid": process.pid, "start": stat.start}, "ranks": []}
    (ws.root / f"{JOB}-JAX-x" / "agent" / "state.json").write_text(json.dumps(state))
    yield process
    process.kill()
    process.wait()


def office(ws: Workspace, actions: dict[str, list[str]] | None = None) -> Office:
    policy = Policy(
        schema="trackwalker.policy/1", actions=ALL if actions is None else actions, approvers=["user:alice"]
    )
    return Office(ws, policy, Approvals(ws.root.parent / "approvals"))


def approved(desk: Office, act: Callable[..., ActionAnswer], **args: Any) -> ActionAnswer:
    asked = act(desk, **args)
    assert asked.state == "needs-approval"
    assert asked.approval is not None
    desk.approvals.confirm(asked.approval, "user:alice")
    return act(desk, **args, approval=asked.approval)


CALLS: list[tuple[Callable[..., ActionAnswer], dict[str, Any]]] = [
    (submit_job, {"model": "tiny", "nodes": 1}),
    (cancel_job, {"job": JOB}),
    (exclude_nodes, {"hosts": ["n1"], "why": "x"}),
    (stack_dump, {"job": JOB}),
]


@pytest.mark.starts_processes
@pytest.mark.parametrize(("act", "args"), CALLS)
def test_no_action_without_a_policy_that_names_it(
    act: Callable[..., ActionAnswer], args: dict[str, Any], ws: Workspace, running: subprocess.Popen[bytes]
) -> None:
    for policy in ({}, {name: ["telegram:1"] for name in ALL}):
        with pytest.raises(RefusedError, match="the policy does not let mcp"):
            act(office(ws, policy), **args)
    assert running.poll() is None
    assert not (ws.root.parent / "approvals").exists()


@pytest.mark.starts_processes
@pytest.mark.parametrize(("act", "args"), CALLS)
def test_no_action_without_an_approval(
    act: Callable[..., ActionAnswer],
    args: dict[str, Any],
    ws: Workspace,
    running: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # an sbatch would not be found
    desk = office(ws)
    asked = act(desk, **args)
    assert (asked.state, asked.result) == ("needs-approval", None)
    assert "nothing was done yet" in asked.says
    for nonce in (asked.approval, "K7QF-2M9X", "yes", "../x"):  # not confirmed, made up
        with pytest.raises(RefusedError):
            act(desk, **args, approval=nonce)
    assert running.poll() is None
    assert to_exclude(ws.root) == []
    assert not (ws.root / f"{JOB}-JAX-x" / "agent" / "requests").exists()


@pytest.mark.starts_processes
def test_an_approved_cancel_ends_the_job_once(ws: Workspace, running: subprocess.Popen[bytes]) -> None:
    desk = office(ws)
    done = approved(desk, cancel_job, job=JOB)
    assert done.result == {"job": JOB, "told": True, "before": "running"}
    assert running.wait(30) == -signal.SIGTERM
    with pytest.raises(RefusedError, match="never asked for, or has been used"):
        cancel_job(desk, job=JOB, approval="AAAA-AAAA")


@pytest.mark.starts_processes
def test_an_approval_of_one_action_is_not_good_for_another(ws: Workspace, running: subprocess.Popen[bytes]) -> None:
    desk = office(ws)
    asked = exclude_nodes(desk, hosts=["n1"], why="x")
    assert asked.approval is not None
    desk.approvals.confirm(asked.approval, "user:alice")
    with pytest.raises(RefusedError, match="something else"):
        cancel_job(desk, job=JOB, approval=asked.approval)
    with pytest.raises(RefusedError, match="something else"):
        exclude_nodes(desk, hosts=["n1", "n2"], why="x", approval=asked.approval)
    assert running.poll() is None


@pytest.mark.starts_processes
def test_an_approval_by_somebody_else_is_none(ws: Workspace, running: subprocess.Popen[bytes]) -> None:
    desk = office(ws)
    args = {"workspace": str(ws.root), "job": JOB}
    nonce = desk.approvals.ask("cancel", args)  # asked for without naming approvers
    desk.approvals.confirm(nonce, "user:mallory")
    with pytest.raises(RefusedError, match="user:mallory is not an approver"):
        cancel_job(desk, job=JOB, approval=nonce)
    assert running.poll() is None


@pytest.mark.starts_processes
def test_a_foreign_job_is_not_acted_on(
    ws: Workspace, running: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    for act in (cancel_job, stack_dump):
        with pytest.raises(RefusedError, match="not yours"):
            act(office(ws), job=JOB)
    assert running.poll() is None


@pytest.mark.starts_processes
@pytest.mark.parametrize("job", ["local_2026", "../x", "/etc", "8308; rm -rf /", "$(id)"])
def test_only_a_whole_id_is_acted_on(ws: Workspace, running: subprocess.Popen[bytes], job: str) -> None:
    for act in (cancel_job, stack_dump):
        with pytest.raises(TrackwalkerError):
            act(office(ws), job=job)
    assert running.poll() is None


def test_nodes_that_a_person_left_out_are_left_out_of_submits(ws: Workspace) -> None:
    desk = office(ws)
    done = approved(desk, exclude_nodes, hosts=["n7", "n2"], why="retransmits, evidence e3")
    assert done.result == {"hosts": ["n2", "n7"], "days": 7}
    assert {s.host: s.why for s in to_exclude(ws.root)} == dict.fromkeys(
        ("n2", "n7"), "a person left it out: retransmits, evidence e3"
    )
    asked = submit_job(desk, model="tiny", nodes=2, settings=["steps=5"])
    [waiting] = desk.approvals.pending()
    assert waiting.nonce == asked.approval
    assert "--exclude=n2,n7" in waiting.args["argv"]
    with pytest.raises(UsageError, match="not a host name"):
        exclude_nodes(desk, hosts=["n1; reboot"], why="x")


@pytest.mark.starts_processes
def test_a_stack_dump_is_a_request_to_the_nodes(ws: Workspace, running: subprocess.Popen[bytes]) -> None:
    done = approved(office(ws), stack_dump, job=JOB)
    assert done.result is not None
    [request] = (ws.root / f"{JOB}-JAX-x" / "agent" / "requests").glob("*.json")
    assert request.stem == done.result["incident"]
    assert NAME.fullmatch(request.stem)  # or no agent would answer it
    asked = json.loads(request.read_text())
    assert (asked["pause"], asked["by"], isinstance(asked["t"], float)) == (False, "user:alice", True)
    assert running.poll() is None


def test_a_job_that_ended_has_no_stacks_to_take(ws: Workspace) -> None:
    write_lines(ws.root / f"{JOB}-JAX-x" / "events.jsonl", [{"kind": "run-end", "data": {"exit": 0}}])
    with pytest.raises(RefusedError, match="only a running job"):
        stack_dump(office(ws), job=JOB)


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ({"model": "--help"}, "in model spec"),
        ({"model": "tiny; rm -rf /"}, "in model spec"),
        ({"model": "../../evil.yml"}, "not given as a file"),
        ({"nodes": 9}, "the policy allows 8"),
        ({"settings": ["--wrap", "rm -rf /"]}, "neither key=value"),
        ({"settings": ["_env_HF_TOKEN=hf_abc"]}, "is a secret"),
        ({"settings": ["api_key=1234567"]}, "is a secret"),
        ({"partition": "x --wrap=id"}, "not one plain word"),
        ({"time_limit": "-1"}, "not one plain word"),
        ({"exclude": ["$(id)"]}, "not a host name"),
        ({"image": "-v/:/host"}, "not the name of an image"),
        ({"on": "k8s", "partition": "p"}, "are for Slurm"),
    ],
)
def test_a_submit_that_is_wrong_is_refused_before_a_person_is_asked(
    ws: Workspace, args: dict[str, Any], complaint: str
) -> None:
    desk = office(ws)
    with pytest.raises(TrackwalkerError, match=complaint):
        submit_job(desk, **{"model": "tiny", "nodes": 1, **args})
    assert desk.approvals.pending() == []


def test_metacharacters_in_settings_stay_one_word(ws: Workspace) -> None:
    nasty = "run_name=$(touch pwned); `id` && x | y > z '\" *"
    desk = office(ws)
    submit_job(desk, model="tiny", nodes=1, settings=[nasty], observe=False)
    argv = desk.approvals.pending()[0].args["argv"]
    assert argv[0:2] == ["submit", "tiny"]
    assert argv[argv.index("--") + 1 :] == [nasty]


@pytest.mark.starts_processes
def test_an_action_is_written_down_before_and_after(
    ws: Workspace, running: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    desk = office(ws)
    box = Toolbox(ws, Audit(tmp_path / "audit.jsonl"), Caller(), desk)
    assert set(ACTION_TOOLS) <= set(box.tools())
    asked = json.loads(box.call(cancel_job, job=JOB))
    desk.approvals.confirm(asked["approval"], "user:alice")
    box.call(cancel_job, job=JOB, approval=asked["approval"])
    with pytest.raises(RefusedError):
        box.call(cancel_job, job=JOB, approval=asked["approval"])
    noted = [(r["tool"], r["outcome"], r["says"]) for r in read(tmp_path / "audit.jsonl").items]
    assert [outcome for _, outcome, _ in noted] == ["begin", "ok", "begin", "ok", "begin", "refused"]
    assert [says for _, outcome, says in noted if outcome == "ok"] == ["needs-approval", "done"]
    assert running.wait(30) == -signal.SIGTERM
