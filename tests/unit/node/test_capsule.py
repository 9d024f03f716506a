"""The evidence capsule on a node: what may be done to a rank and what not, what one stuck collector costs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_run import wait_for

from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.job.processes import read_stat
from trackwalker.job.run import RankPlace, RunRecord
from trackwalker.logs.formats.stacks import main_thread, parse
from trackwalker.node.agent.ranks import Rank
from trackwalker.node.agent.spec import AgentSpec, RankSpec
from trackwalker.node.evidence import capsule as node_capsule
from trackwalker.node.evidence import collection, nccl_ras
from trackwalker.node.evidence.capsule import Capsules
from trackwalker.node.evidence.collection import Collection, describe, process_table
from trackwalker.node.evidence.rank_stacks import Subject, read_native, read_stack
from trackwalker.record import capsules
from trackwalker.record.capsules import read_capsule
from trackwalker.watch.detect import capsule

LISTENS = """
import os, sys, time
from trackwalker.trainers.stacks import listen
assert listen(sys.argv[1])
def collective():
    print("up", flush=True)
    time.sleep(60)
collective()
"""


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Subject]]:
    """A process that announced faulthandler, as the small trainer does."""
    argv = [sys.executable, "-c", LISTENS, str(tmp_path / "3.progress.jsonl")]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    yield child, Subject(3, child.pid, tmp_path / "3.stack.json")
    child.kill()
    child.communicate()


def state_of(pid: int) -> str:
    stat = read_stat(pid)
    assert stat is not None
    return stat.state


@pytest.mark.starts_processes
def test_without_pyspy_a_rank_that_announced_it_is_asked_and_goes_on(
    listener: tuple[subprocess.Popen[str], Subject],
) -> None:
    child, subject = listener
    for _ in range(2):  # the second answer is not the first one again
        stack = read_stack(subject, "")
        main = main_thread(parse(stack.files["faulthandler.txt"].decode()))
        assert main is not None
        assert [frame.function for frame in main.frames] == ["collective", "<module>"]
    assert child.poll() is None


@pytest.mark.starts_processes
def test_a_stopped_rank_is_never_signalled(listener: tuple[subprocess.Popen[str], Subject]) -> None:
    child, subject = listener
    os.kill(child.pid, signal.SIGSTOP)
    wait_for(lambda: state_of(child.pid) == "T")
    stack = read_stack(subject, "")
    assert stack.files == {}
    assert "not signalled: state T" in " ".join(stack.notes)
    pending = [line for line in Path(f"/proc/{child.pid}/status").read_text().splitlines() if "Pnd" in line]
    assert all(int(line.split()[1], 16) == 0 for line in pending), "nothing waits for it when it is continued"
    assert read_native(subject, "/bin/false").files == {}
    assert state_of(child.pid) == "T"


@pytest.mark.starts_processes
def test_a_rank_whose_handler_is_gone_or_whose_note_is_anothers_is_never_signalled(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"], stdout=-1)
    assert child.stdout is not None
    child.stdout.readline()
    try:
        stat = read_stat(child.pid)
        assert stat is not None
        note = tmp_path / "0.stack.json"
        said = {"v": 1, "pid": child.pid, "start": stat.start, "signal": 12, "file": "0.stack.txt"}
        for wrong in (said, {**said, "start": 1}, {**said, "pid": 1}, {"pid": "x"}, []):
            note.write_text(json.dumps(wrong))
            assert read_stack(Subject(0, child.pid, note), "").files == {}
        note.unlink()
        assert "does not announce" in read_stack(Subject(0, child.pid, note), "").notes[-1]
        assert child.poll() is None, "the signal would have ended it"
    finally:
        child.kill()
        child.communicate()


@pytest.mark.starts_processes
def test_a_reader_that_dies_over_a_rank_does_not_leave_it_stopped(
    listener: tuple[subprocess.Popen[str], Subject], tmp_path: Path
) -> None:
    child, subject = listener
    reader = tmp_path / "py-spy"
    reader.write_text('#!/bin/sh\nkill -STOP "$3"\nexit 1\n')
    reader.chmod(0o755)
    stack = read_native(subject, str(reader))
    wait_for(lambda: state_of(child.pid) == "S")
    assert "it was continued" in stack.notes[-1]


@pytest.mark.starts_processes
def test_what_proc_tells_needs_no_help_of_the_process_and_holds_no_command_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        argv = [sys.executable, "-c", "import time; time.sleep(60)", "token=hunter2"]
        child = subprocess.Popen(argv)
        try:
            own, table = describe(os.getpid()).decode(), process_table().decode()
            theirs = describe(child.pid).decode()
        finally:
            child.kill()
            child.wait()
        assert f"listen 127.0.0.1:{server.getsockname()[1]}" in own
    assert "State:" in theirs
    assert f"\n{child.pid} {os.getpid()} " in table
    assert "hunter2" not in theirs + table


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[tuple[AgentSpec, Rank]]:
    """A rank as the agent starts it, of an agent's spec."""
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    spec = AgentSpec("7", "JAX-x", "x", "n1", tmp_path / "7-JAX-x", None, [RankSpec(0, "n1", argv)], 1)
    spec.ranks_dir.mkdir(parents=True)
    one = Rank(spec.ranks[0], spec.ranks_dir)
    one.launch(dict(os.environ))
    yield spec, one
    one.signal(signal.SIGKILL)
    wait_for(lambda: one.poll() is not None)


@pytest.mark.starts_processes
def test_one_stuck_collector_delays_no_other(
    rank: tuple[AgentSpec, Rank], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, one = rank
    stuck = threading.Event()
    monkeypatch.setattr(collection, "describe", lambda pid: stuck.wait(30) and b"too late")
    monkeypatch.setattr(collection, "find_pyspy", lambda argv, env: "")
    monkeypatch.setattr(collection, "BEFORE_KILL_S", 0.8)
    folder = tmp_path / "capsule" / "n1"
    began = time.monotonic()
    done = Collection(spec, [one], folder).collect(pause=False, brief=True, why="test")
    assert time.monotonic() - began < 10
    assert done["collectors"]["proc of rank 0"] == "did not end in its time"
    stuck.set()
    time.sleep(0.1)
    assert sorted(p.name for p in folder.iterdir()) == ["done.json"], "what comes late is dropped"
    found = read_capsule(folder.parent)
    assert found is not None
    assert found.stacks[0].state in ("S", "R")


def job_of(spec: AgentSpec, *nodes: str) -> Job:
    RunRecord(
        id="7", name="JAX-x", model="x", scheduler="local", trainer="tiny", created=1.0, argv=[], command=[],
        workspace="", ranks=[RankPlace(rank=i, host=node, node=node) for i, node in enumerate(nodes)],
    ).save(spec.job_dir / "run.json")  # fmt: skip
    return Job("7", None, spec.job_dir)


@pytest.mark.starts_processes
def test_a_request_is_answered_once_and_one_of_an_earlier_attempt_never(
    rank: tuple[AgentSpec, Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, one = rank
    monkeypatch.setattr(node_capsule, "_LOOK_S", 0.05)
    monkeypatch.setattr(collection, "_APART_S", 0.1)
    monkeypatch.setattr(collection, "find_pyspy", lambda argv, env: "")
    said: list[dict[str, Any]] = []
    agent = Capsules(spec, [one], lambda kind, **data: said.append(data))
    job = job_of(spec, "n1")
    capsule.request(job, "old", pause=False)
    old = spec.job_dir / "agent" / "requests" / "old.json"
    old.write_text(json.dumps({"v": 1, "t": time.time() - 3600, "pause": True}))
    (old.parent / "torn.json").write_text('{"v": 1')
    (old.parent / "..bad..json").write_text("{}")
    agent.start(time.time())
    assert capsule.collected(job, "hang-1") is None, "nobody asked"
    capsule.request(job, "hang-1", pause=False)
    capsule.request(job, "hang-1", pause=False)
    wait_for(lambda: capsule.collected(job, "hang-1"))
    found = capsule.collected(job, "hang-1")
    assert found is not None
    assert (found.nodes, found.missing, [s.rank for s in found.stacks]) == (("n1",), (), [0])
    wait_for(lambda: said)
    agent.close()
    assert [data["incident"] for data in said] == ["hang-1"]
    assert {p.name for p in (spec.job_dir / "stacks").iterdir()} == {"hang-1"}


def test_nodes_that_do_not_answer_are_named_when_their_time_is_over(tmp_path: Path) -> None:
    spec = AgentSpec("7", "JAX-x", "x", "n1", tmp_path / "7-JAX-x", None, [], 2)
    spec.job_dir.mkdir()
    job = job_of(spec, "n1", "n2")
    capsule.request(job, "hang-1")
    assert capsule.collected(job, "hang-1") is None
    silent = capsule.collected(job, "hang-1", patience_s=0.0)
    assert silent is not None
    assert (silent.stacks, silent.missing) == ((), ("n1", "n2"))
    assert silent.summary() == "no node answered (n1, n2)"
    folder = spec.job_dir / "stacks" / "hang-1" / "n1"
    folder.mkdir(parents=True)
    (folder / "done.json").write_text(
        json.dumps({"t": 1.0, "node": "n1", "ranks": [{"rank": 0, "pid": 5, "host": "n1"}]})
    )
    half = capsule.collected(job, "hang-1", patience_s=0.0)
    assert half is not None
    assert half.missing == ("n2",)
    assert "no answer from n2" in half.summary()


def test_reader_and_writer_mean_the_same_places() -> None:
    assert (capsules.STACKS, capsules.DONE) == (node_capsule.STACKS, collection.DONE)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 81, "a b"])
def test_an_incident_has_a_name_that_can_be_a_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no name for an incident"):
        capsule.request(Job("7", None, tmp_path), name)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"ranks": 3}', '{"t": 1, "node": "n1", "ranks": [7]}', '{"t": 1}'])
def test_a_damaged_account_is_no_answer(text: str, tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "done.json").write_text(text)
    assert read_capsule(tmp_path) is None


def test_ras_is_asked_on_this_machine_only_and_answers_in_its_own_text() -> None:
    heard: list[bytes] = []

    def speak(server: socket.socket) -> None:
        talk, _ = server.accept()
        with talk:
            heard.append(talk.recv(100))
            talk.sendall(b"OK\nJob summary\n===========\n")
            talk.sendall(b"\nDEAD\n  Process 99 on node 10.0.0.1 managing GPU 0\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=speak, args=(server,))
        thread.start()
        env = {"NCCL_RAS_ADDR": f"127.0.0.1:{server.getsockname()[1]}"}
        answer = nccl_ras.ask(env)
        thread.join()
    assert b"Process 99 on node" in answer
    assert heard == [b"timeout 5\nverbose status\n"], "the reading command, and nothing that changes a run"
    with pytest.raises(OSError, match="refused"):
        nccl_ras.ask(env)
    with pytest.raises(ValueError, match="not an address of this machine"):
        nccl_ras.ask({"NCCL_RAS_ADDR": "10.0.0.7:28028"})
    with pytest.raises(OSError, match="NCCL_RAS_ENABLE=0"):
        nccl_ras.ask({"NCCL_RAS_ENABLE": "0"})


def test_a_ras_that_never_ends_its_answer_is_left_after_its_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        env = {"NCCL_RAS_ADDR": f"localhost:{server.getsockname()[1]}"}
        assert b"no end of the answer" in nccl_ras.ask(env, limit_s=0.2)
