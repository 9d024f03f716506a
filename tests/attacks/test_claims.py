"""Forged notes, forged words, two writers at once, escapes in a log, a key that stands twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from triage_logs import ending, header, steps

from trackwalker.agent.policy import Policy
from trackwalker.cli.common.say import say
from trackwalker.diagnose.triage import triage
from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.job.processes import read_stat
from trackwalker.job.run import RunRecord, load_run
from trackwalker.job.whole import write_whole
from trackwalker.node.evidence.rank_stacks import Stack, Subject, _ask
from trackwalker.watch.notify.channels import Secret
from trackwalker.watch.supervise.resume_policy import load_policy

if TYPE_CHECKING:
    from strangers import Stranger

pytest_plugins = ("strangers",)
CATCHES = """
import signal, sys, time
for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP):
    signal.signal(number, lambda n, f: (print(n, flush=True)))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[str]]:
    """A process that catches the signals it gets and says which."""
    with subprocess.Popen([sys.executable, "-c", CATCHES], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def note(path: Path, process: subprocess.Popen[str], number: int) -> Subject:
    stat = read_stat(process.pid)
    assert stat is not None
    path.with_name("0.stack.txt").touch()
    said = {"v": 1, "pid": process.pid, "start": stat.start, "signal": number, "file": "0.stack.txt"}
    path.write_text(json.dumps(said))
    return Subject(0, process.pid, path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_forged_note_cannot_choose_the_signal(tmp_path: Path, rank: Any, number: int) -> None:
    out = Stack()
    assert _ask(note(tmp_path / "0.stack.json", rank, number), out) == b""
    time.sleep(0.2)
    assert rank.poll() is None
    assert "not for asking" in out.notes[0]


def test_a_note_of_another_user_is_not_followed(tmp_path: Path, rank: Any, stranger: Stranger) -> None:
    subject = note(tmp_path / "0.stack.json", rank, signal.SIGUSR2)
    os.chown(subject.note, stranger.uid, stranger.gid)
    out = Stack()
    assert _ask(subject, out) == b""
    assert "not the rank's own" in out.notes[0]


def test_the_ranks_own_note_is_followed(tmp_path: Path, rank: Any) -> None:
    _ask(note(tmp_path / "0.stack.json", rank, signal.SIGUSR2), Stack())
    assert rank.stdout.readline() == f"{int(signal.SIGUSR2)}\n"


def test_a_rank_that_prints_the_launchers_words_frames_no_node(tmp_path: Path) -> None:
    def blamed(line: str) -> set[str]:
        log = tmp_path / "77-JAX-toy.log"
        log.write_text(header(2, steps=100) + steps(17, 2) + line + ending(1))
        found = triage(Job("77", log, None))
        return {finding.cause for finding in found.roles.findings}

    assert "node-death" in blamed("NODE_LOST host=node0: its agent never said how its ranks ended\n")
    assert "node-death" not in blamed("1: NODE_LOST host=node0: its agent never said how its ranks ended\n")


def record(number: int) -> RunRecord:
    return RunRecord(
        id="7", name="JAX-tiny", model="tiny", scheduler="slurm", trainer="tiny", created=1.0, argv=["x"] * number,
        command=[], workspace="/w",
    )  # fmt: skip


def test_two_savers_of_a_record_never_tear_it(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    record(1).save(path)
    stop, torn = threading.Event(), list[str]()

    def save(size: int) -> None:
        while not stop.is_set():
            try:
                record(size).save(path)
            except OSError as e:
                torn.append(repr(e))

    savers = [threading.Thread(target=save, args=(size,)) for size in (3, 3000)]
    for saver in savers:
        saver.start()
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        held = load_run(path)
        assert held is not None
        if len(held.argv) not in (1, 3, 3000):
            torn.append(str(len(held.argv)))
    stop.set()
    for saver in savers:
        saver.join()
    assert torn == []
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_link_that_waits_under_a_temporary_name_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("run.json.tmp", f"run.json.{os.getpid()}.tmp", ".run.json.tmp"):
        (tmp_path / name).symlink_to(victim)
    (tmp_path / "run.json").symlink_to(victim)
    write_whole(tmp_path / "run.json", "{}")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "run.json").is_symlink()


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: Any) -> None:
    write_whole(tmp_path / "a", "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with contextlib.suppress(OSError):
        write_whole(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


TITLE = "\x1b]0;owned\x07"
EVIL = f"9001-JAX-{TITLE}\x1b[2J\x1b[8mtoy\x9b31m"


@pytest.mark.parametrize("command", [["jobs"], ["logs", "9001"], ["status", "9001"], ["triage", "9001"], ["nodes"]])
def test_escapes_are_shown_and_not_executed(tmp_path: Path, command: list[str]) -> None:
    """On a real terminal: a pseudo-terminal of our own reads what arrives."""
    (tmp_path / EVIL).mkdir()
    (tmp_path / f"{EVIL}.log").write_text(
        header(2, steps=30) + steps(29, 2) + f"1: RuntimeError: {TITLE}\x1b[2Jgone\n" + ending(1)
    )
    (tmp_path / ".ledger").mkdir()
    incident = {"v": 1, "t": time.time(), "host": f"n{TITLE}1", "job": "1", "attempt": 0, "kind": "check-failed",
                "what": "ecc", "line": f"{TITLE}x"}  # fmt: skip
    (tmp_path / ".ledger" / "nodes.jsonl").write_text(json.dumps(incident) + "\n")
    ours, theirs = os.openpty()
    argv = [sys.executable, "-m", "trackwalker", *command, "--workspace", str(tmp_path)]
    done = subprocess.Popen(argv, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):
        while piece := os.read(ours, 1 << 16):
            said += piece
    done.wait(60)
    assert said
    for bad in (b"\x1b]", b"\x07", b"\x1b[2J", b"\x1b[8m", "\x9b".encode()):
        assert bad not in said, said[:2000]


def test_an_error_line_cannot_move_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"no job {TITLE}\x1b[1A")
    assert "\x1b" not in capsys.readouterr().out


def test_a_policy_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.yml"
    path.write_text(
        "schema: trackwalker.policy/1\nactions:\n  cancel: [mcp]\napprovers: []\nactions:\n  submit: [mcp]\n"
    )
    path.chmod(0o600)
    with pytest.raises(UsageError, match="twice"):
        Policy.load(path)
    path.write_text("resume:\n  jobs: asked\n  jobs: all\n")
    with pytest.raises(UsageError, match="twice"):
        load_policy(path)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o604])
def test_a_secret_file_that_is_not_private_is_not_read(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text("hush\n")
    path.chmod(mode)
    with pytest.raises(UsageError, match="chmod"):
        Secret(file=path).read()
    path.chmod(0o600)
    assert Secret(file=path).read() == "hush"
