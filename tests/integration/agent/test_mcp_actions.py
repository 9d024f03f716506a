"""Actions of the MCP server and its HTTP door: a person approves, a token opens, a real Slurm is told."""
# ruff: noqa: F401, F811 - fixtures are imported, and then asked for by name

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp_talk import LOCAL, Talk, audit, local_job, over_stdio, run
from slurm_cluster import SlurmCluster

from trackwalker.agent.actions import Office, cancel_job, submit_job
from trackwalker.agent.answers import ActionAnswer
from trackwalker.agent.policy import Approvals, Policy, this_person
from trackwalker.agent.workspace import Workspace
from trackwalker.errors import RefusedError
from trackwalker.launch.slurm.client import Slurm

TOKEN = "a-token-of-a-test-0123456789"  # noqa: S105


def policy_file(folder: Path) -> Path:
    path = folder / "policy.yml"
    text = {"schema": "trackwalker.policy/1", "actions": {"cancel": ["mcp"]}, "approvers": [this_person()]}
    path.write_text(json.dumps(text))
    path.chmod(0o600)
    return path


def approve_at_a_terminal(state: Path, approval: str, word: str) -> str:
    """What a person does: reads what is asked for, types a word."""
    master, slave = pty.openpty()
    argv = [sys.executable, "-m", "trackwalker", "mcp", "approve", approval]
    env = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "dumb"}
    with subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=env, close_fds=True) as person:
        os.close(slave)
        os.write(master, f"{word}\n".encode())
        said = b""
        while True:
            try:
                piece = os.read(master, 4096)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            said += piece
        assert person.wait(60) == 0, said
    os.close(master)
    return said.decode()


def test_an_action_needs_the_policy_and_a_person_at_a_terminal(
    local_job: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    state, workspace = tmp_path / "state", tmp_path / "outputs"

    async def act() -> None:
        async with over_stdio(workspace, state, "--actions", "--policy", str(policy_file(tmp_path))) as talk:
            by_name = {tool.name: tool for tool in (await talk.client.list_tools()).tools}
            assert by_name["cancel_job"].annotations.destructive_hint
            assert not by_name["cancel_job"].annotations.read_only_hint
            assert "does not let mcp" in await talk.refused("stack_dump", job=LOCAL)  # not named by the policy
            asked = await talk.call("cancel_job", job=LOCAL)
            assert asked["state"] == "needs-approval"
            nonce = asked["approval"]
            assert "not confirmed" in await talk.refused("cancel_job", job=LOCAL, approval=nonce)

            said = await anyio.to_thread.run_sync(approve_at_a_terminal, state, nonce, "yes")
            assert "approved:" in said
            assert LOCAL in said  # the person sees which job
            done = await talk.call("cancel_job", job=LOCAL, approval=nonce)
            assert done["result"]["told"]
            assert "used" in await talk.refused("cancel_job", job=LOCAL, approval=nonce)

    run(act)
    assert local_job.wait(30) == -signal.SIGTERM
    lines = [(line["who"], line["tool"], line["outcome"]) for line in audit(state)]
    assert (this_person(), "approve", "begin") in lines
    assert lines.count(("mcp", "cancel_job", "ok")) == 2
    with pytest.raises(RefusedError):
        Approvals(state / "trackwalker" / "agent" / "approvals").look("AAAA-AAAA")


@pytest.fixture
def http_server(local_job: subprocess.Popen[bytes], tmp_path: Path) -> Iterator[str]:
    """A server on a free port; its address."""
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    argv = [sys.executable, "-m", "trackwalker", "mcp", "--workspace", str(tmp_path / "outputs"), "--http", "0"]
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    server = subprocess.Popen([*argv, "--token-file", str(token)], stderr=subprocess.PIPE, text=True, env=env)
    assert server.stderr is not None
    ended = threading.Timer(120, server.kill)  # a server that says nothing must not hold the test
    ended.start()
    found = next((m[0] for line in server.stderr if (m := re.search(r"http://127\.0\.0\.1:\d+/mcp", line))), None)
    assert found is not None
    yield found
    ended.cancel()
    server.terminate()
    server.wait(30)
    server.stderr.close()


def ask(url: str, headers: dict[str, str]) -> httpx.Response:
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }  # fmt: skip
    accept = {"Accept": "application/json, text/event-stream"}
    for _ in range(100):
        try:
            return httpx.post(url, json=hello, headers={**accept, **headers}, timeout=30, trust_env=False)
        except httpx.ConnectError:  # bound, and not yet listening
            threading.Event().wait(0.1)
    raise AssertionError("the server never listened")


def test_http_needs_the_token_and_a_loopback_host(http_server: str) -> None:
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert ask(http_server, right).status_code == 200
    for wrong in ({}, {"Authorization": "Bearer x"}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"}):
        assert ask(http_server, wrong).status_code == 401
    assert ask(http_server, {**right, "Host": "evil.example:80"}).status_code == 421
    assert ask(http_server, {**right, "Origin": "http://evil.example"}).status_code == 403
    assert httpx.get(http_server.replace("/mcp", "/"), timeout=30, trust_env=False).status_code == 401

    async def talk() -> None:
        import httpx2
        import mcp
        from mcp.client.streamable_http import streamable_http_client

        async with (
            httpx2.AsyncClient(headers=right) as http,
            mcp.Client(streamable_http_client(http_server, http_client=http)) as client,
        ):
            [row] = (await Talk(client).call("list_jobs"))["jobs"]
            assert (row["id"], row["state"]) == (LOCAL, "running")

    run(talk)


@pytest.mark.timeout(180)
def test_an_approved_submit_queues_exactly_what_was_shown_and_an_approved_cancel_ends_it(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name not in slurm.env]:
        monkeypatch.delenv(name)
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    trainer = tmp_path / "fake" / "trackwalker" / "trainers" / "tiny"
    trainer.mkdir(parents=True)
    for folder in (trainer, trainer.parent, trainer.parent.parent):
        (folder / "__init__.py").touch()
    (trainer / "__main__.py").write_text("import os, time; print('note', os.environ['NOTE']); time.sleep(600)\n")
    nasty = f"$(touch {tmp_path}/pwned); `touch {tmp_path}/pwned` && x | y > {tmp_path}/pwned"
    (tmp_path / "ws").mkdir()
    policy = Policy(
        schema="trackwalker.policy/1", actions={"submit": ["mcp"], "cancel": ["mcp"]}, approvers=["user:alice"]
    )
    office = Office(Workspace(tmp_path / "ws"), policy, Approvals(tmp_path / "approvals"))

    def approved(act: Callable[..., ActionAnswer], **args: Any) -> dict[str, Any]:
        asked = act(office, **args)
        assert asked.approval is not None
        office.approvals.confirm(asked.approval, "user:alice")
        done = act(office, **args, approval=asked.approval)
        assert done.result is not None
        return done.result

    settings = [f"_env_PYTHONPATH={tmp_path / 'fake'}", f"_env_NOTE={nasty}"]
    queued = approved(submit_job, model="tiny", nodes=1, settings=settings, exclude=["n1"], observe=False)
    log, client = Path(queued["log"]), Slurm(slurm.env)
    slurm.wait_for(lambda: log.exists() and "note $(touch" in log.read_text(), "the trainer's line", 60)
    assert client.state(queued["id"]).nodes != "n1"
    assert not (tmp_path / "pwned").exists()
    approved(cancel_job, job=queued["id"])
    slurm.wait_for(lambda: client.state(queued["id"]).ended, "its end", 60)
    assert client.state(queued["id"]).state == "cancelled"
