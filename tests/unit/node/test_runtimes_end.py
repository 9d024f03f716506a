"""How a container or a native process comes to its end: by its runtime, by signals, and never somebody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_runtimes import fake

from trackwalker.job.processes import read_stat
from trackwalker.node.runtimes import lifetime
from trackwalker.node.runtimes.apptainer import Apptainer
from trackwalker.node.runtimes.container import (
    JOB_LABEL,
    MARK,
    own_name,
)
from trackwalker.node.runtimes.docker import Docker
from trackwalker.node.runtimes.lifetime import (
    GRACE_S,
    STOP_BUDGET_S,
    ask,
    remove_stale,
    stop_container,
    stop_containers,
)

pytestmark = pytest.mark.starts_processes


def container(name: str) -> subprocess.Popen[bytes]:
    """A process as it is inside a container: marked, in a session of its own, deaf to TERM."""
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    env = {**os.environ, MARK: name}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, start_new_session=True, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_r18_the_container_is_gone_although_the_runtime_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # list, stop, kill, remove; and what the signals take. With the real figures: tests/integration/node/test_podman.py.
    assert 4 * (lifetime._ANSWER_S + 0.1) + GRACE_S + lifetime._DIE_S < STOP_BUDGET_S
    monkeypatch.setattr(lifetime, "_ANSWER_S", 0.5)
    names = [own_name("8308", rank) for rank in range(3)]
    fake(tmp_path, "docker", f'case "$1" in ps) echo {" ".join(names)};; *) exec sleep 60;; esac')
    inside, foreign = [container(name) for name in names], container("somebody-elses")
    try:
        for ended in stop_containers(Docker(str(tmp_path / "docker")), "8308", names, grace_s=0.0):
            assert (ended.how, ended.left) == ("by signals", ())
        assert [process.wait(1) for process in inside] == [-signal.SIGKILL] * 3
        assert foreign.poll() is None
    finally:
        for process in (*inside, foreign):
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]


def test_r35_only_our_own_containers_are_stopped_or_removed(tmp_path: Path) -> None:
    said = tmp_path / "said"
    fake(tmp_path, "docker", f'echo "$@" >> {said}; [ "$1" = ps ] && echo {own_name("8308", 0)}; exit 0')
    docker = Docker(str(tmp_path / "docker"))
    stop_container(docker, "8308", "database")
    assert not remove_stale(docker, "8308", "database")
    listing = f"ps --all --filter label={JOB_LABEL}=8308 --format {{{{.Names}}}}"
    assert said.read_text().splitlines() == [listing, listing]
    assert remove_stale(docker, "8308", own_name("8308", 0))
    assert stop_container(docker, "8308", own_name("8308", 0)).how == "by docker"
    assert said.read_text().splitlines()[3:] == [
        f"rm --force {own_name('8308', 0)}",
        listing,
        f"stop -t 5 {own_name('8308', 0)}",
    ]


def test_a_runtime_without_a_service_is_stopped_by_signals() -> None:
    inside = container("apptainer-like")
    try:
        assert stop_container(Apptainer("/c"), "1", "apptainer-like", grace_s=0.2).left == ()
        assert inside.wait(1) == -signal.SIGKILL
    finally:
        inside.kill()
        inside.wait()
        inside.stdout.close()  # type: ignore[union-attr]


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    fake(tmp_path, "hangs", f"sleep 60 & echo $! > {tmp_path}/child; wait")
    answer = ask([str(tmp_path / "hangs"), "x"], 0.5)
    assert answer.code is None
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5  # killed is not yet gone on a busy machine
    while (stat := read_stat(child)) is not None and stat.state != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert stat is None or stat.state == "Z"
