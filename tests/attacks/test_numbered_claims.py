"""Attacks 19 to 24: forged notes and words, two writers, escapes, doubled keys, open secrets. On the public surface."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from surface import Agent, Cluster, argv, environment, job_log, lands, own, put_job, tw, until

CATCHES = """
import os, signal, time
def caught(number, frame):
    open({marker!r}, "w").write(str(number))
signal.signal(signal.SIGTERM, caught)
while True:
    time.sleep(1)
"""


@pytest.mark.long(
    reason="its defence is tested from within at every landing; on the surface it takes an agent and its preflight"
)
def test_a19_a_forged_note_does_not_choose_the_signal(tmp_path: Path) -> None:
    """Ranks of JAX catch SIGTERM and take it for the end of their time; no py-spy is there, so the rank is asked."""
    marker = tmp_path / "caught"
    told = Cluster(tmp_path / "slurm").submits(tmp_path / "ws")
    agent = Agent(told, "4802", CATCHES.format(marker=str(marker)), tmp_path)
    try:
        pid = agent.rank()
        time.sleep(0.2)
        start = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
        note = {"v": 1, "pid": pid, "start": start, "signal": 15, "file": "0.stack.txt"}
        for folder in (folder for folder in agent.dir.rglob("ranks") if folder.is_dir()):
            (folder / "0.stack.txt").touch()
            (folder / "0.stack.json").write_text(json.dumps(note))
        own(agent.dir / "agent" / "requests" / "hang-1.json", json.dumps({"v": 1, "t": time.time(), "why": "x"}))
        answered = until(lambda: next((agent.dir / "stacks" / "hang-1").glob("*/done.json"), None), 60)
        assert answered, agent.errors.read_text()
        if marker.exists():
            lands(f"the dump sent signal {marker.read_text()} to a rank")
        said = json.loads(Path(answered).read_text())["ranks"][0]["notes"]
        assert any("not for asking" in note for note in said), said
    finally:
        marker.touch()
        agent.end()


@pytest.mark.long(
    reason="its defence is tested from within at every landing; on the surface it takes a command for each form"
)
def test_a20_a_rank_that_prints_the_launchers_words_frames_no_node(tmp_path: Path) -> None:
    def blamed(root: Path, label: str) -> str:
        put_job(root, job_log(f"{label}NODE_LOST host=node0: its agent never said how its ranks ended\n"))
        return tw("triage", "77", "--json", "--workspace", root).out

    assert "node-death" in blamed(tmp_path / "launcher", ""), "the launcher's own word counts"
    if "node-death" in blamed(tmp_path / "rank", "1: "):
        lands("a rank's output makes triage call a node dead")


SAVES = """
import sys, time
from trackwalker.job.run import RunRecord
record = RunRecord(id="7", name="n", model="m", scheduler="slurm", trainer="tiny", created=1.0,
                   argv=["x"] * int(sys.argv[2]), command=[], workspace="/w")
from pathlib import Path
end = time.monotonic() + 4.0
while time.monotonic() < end:
    record.save(Path(sys.argv[1]))
"""


@pytest.mark.long(
    reason="its defence is tested from within at every landing; on the surface it takes a hundred writers"
)
def test_a21_two_savers_of_a_record_never_tear_it(tmp_path: Path) -> None:
    """Launcher and agent save it at once; `RunRecord.save` is what both call, on every revision."""
    path = tmp_path / "run.json"
    savers = [
        subprocess.Popen([sys.executable, "-c", SAVES, str(path), size], env=environment(), stderr=subprocess.PIPE)
        for size in ("3", "300000", "3", "200000")
    ]
    torn, looks = "", 0
    until(path.exists)
    while any(saver.poll() is None for saver in savers):
        with contextlib.suppress(FileNotFoundError):
            looks += 1
            try:
                json.loads(path.read_bytes())
            except ValueError as e:
                torn = str(e)
    errors = [(saver.stderr.read().decode() if saver.stderr else "")[-200:] for saver in savers]
    failed = [error for saver, error in zip(savers, errors, strict=True) if saver.returncode]
    assert looks > 10
    if torn or failed:
        lands(f"torn: {torn or failed[0]}")


TITLE = "\x1b]0;owned\x07"
ODD = f"9001-JAX-{TITLE}\x1b[2J\x1b[8mtoy\x9b31m"


@pytest.mark.long(
    reason="its defence is tested from within at every landing; on the surface it takes a terminal for each command"
)
def test_a22_escapes_in_logs_and_names_are_shown_and_not_executed(tmp_path: Path) -> None:
    put_job(tmp_path, job_log(f"1: RuntimeError: {TITLE}\x1b[2Jgone\n"), ODD)
    for command in (["jobs"], ["logs", "9001"], ["triage", "9001"]):
        ours, theirs = os.openpty()
        with subprocess.Popen(
            argv(*command, "--workspace", tmp_path), stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL,
            env=environment(),
        ) as child:  # fmt: skip
            os.close(theirs)
            said = b""
            with contextlib.suppress(OSError):
                while piece := os.read(ours, 1 << 16):
                    said += piece
            child.wait()
        os.close(ours)
        assert said
        if bad := [b for b in (b"\x1b]", b"\x07", b"\x1b[2J", b"\x1b[8m", "\x9b".encode()) if b in said]:
            lands(f"'{' '.join(command)}' writes {bad[0]!r} to the terminal")


@pytest.mark.long(
    reason="its defence is tested from within at every landing; on the surface it takes a command for each policy"
)
def test_a23_a_policy_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    policy, watch = tmp_path / "policy.yml", tmp_path / "watch.yml"
    head = "schema: trackwalker.policy/1\nactions:\n  cancel: [mcp]\napprovers: []\n"
    own(policy, head)
    policy.chmod(0o600)
    right = tw("mcp", "--actions", "--policy", policy, "-w", tmp_path / "ws", XDG_STATE_HOME=str(tmp_path))
    own(policy, f"{head}actions:\n  submit: [mcp]\n")
    twice = tw("mcp", "--actions", "--policy", policy, "-w", tmp_path / "ws", XDG_STATE_HOME=str(tmp_path))
    own(watch, "resume:\n  jobs: asked\n  jobs: all\n")
    config = tw("watch", "--all", "--once", "--config", watch, "-w", tmp_path / "ws")
    if twice.code == 0 or config.code == 0:
        lands(f"the second of two keys counts, silently (mcp {twice.code}, watch {config.code})")
    assert (right.code, twice.code, config.code) == (0, 2, 2), (right.err, twice.err, config.err)
    assert "twice" in twice.err
    assert "twice" in config.err


@pytest.mark.long(
    reason="its defence is tested from within at every landing; on the surface it takes a command for each mode"
)
def test_a24_a_secret_file_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    """A group of everybody is usual on clusters: a file of mode 640 is no secret."""
    (tmp_path / "ws").mkdir()
    secret, config = tmp_path / "secret", tmp_path / "watch.yml"
    own(config, f"channels:\n  ours: {{kind: webhook, url: 'http://127.0.0.1:9/x', secret: {{file: {secret}}}}}\n")

    def tried(mode: int) -> str:
        secret.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
        secret.chmod(mode)
        return tw("watch", "test", "ours", "--config", config, "-w", tmp_path / "ws").err

    assert "chmod" not in tried(0o600), "only the receiver is missing"
    for mode in (0o644, 0o640, 0o620):
        if "chmod" not in tried(mode):
            lands(f"a secret's file of mode {mode:o} is read and used")
