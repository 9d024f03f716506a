"""A real recorded run: its pages answer where the banner and `trackwalker tunnel` say, and are gone with the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_here import call_here
from processes import end_runs, hurry, pids_with, processes_of
from recorded_job import wait_for
from tiny_settings import PACED

from trackwalker.observe import tensorboard
from trackwalker.telemetry.store import open_database

pytestmark = pytest.mark.disturbed_by_load(reason="pages of programs that are given so many seconds to come up")


def trackwalker(*words: str) -> subprocess.CompletedProcess[str]:
    return call_here(os.environ, *words)


@pytest.fixture
def run(tmp_path: Path, prometheus: Path) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "trackwalker", "run", "tiny", "-n", "1", "--observe", "-w", str(tmp_path / "out")]
    env = {**os.environ, "TRACKWALKER_LOCAL": str(tmp_path / "local")}
    with (tmp_path / "said").open("wb") as out:
        run = subprocess.Popen([*argv, "--", *PACED, "steps=100000", "log_period=1"], stdout=out, stderr=out, env=env)
    try:
        yield run
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()
        end_runs(tmp_path / "out")


@pytest.mark.skipif(not tensorboard.installed(), reason="TensorBoard is not installed: pip install '.[tensorboard]'")
def test_pages_of_a_real_run(run: subprocess.Popen[bytes], tmp_path: Path) -> None:
    said, out = tmp_path / "said", tmp_path / "out"
    wait_for(lambda: "from elsewhere: ssh -N" in said.read_text(), 120, said)
    [folder] = [p for p in out.iterdir() if p.is_dir()]
    job_id = folder.name.split("-JAX-")[0]

    def board() -> int | None:
        """The TensorBoard that answers."""
        hurry(pids_with(job_id, "observe.board"))
        return _pid(folder)

    wait_for(lambda: board() is not None, 120, said)
    answer = trackwalker("tunnel", job_id, "-w", str(out), "--json")
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    urls = {service["name"]: service["url"] for service in found["services"]}
    assert set(urls) == {"prometheus", "tensorboard"}
    assert urls["prometheus"] in said.read_text(), "the banner says the same"
    assert found["commands"][0].startswith("ssh -N -L ")

    for url in urls.values():
        assert httpx.get(f"{url}/", trust_env=False, timeout=20).status_code == 401, "whoever else is on this machine"
    key = folder / "agent" / "login.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert found["login"]["password"] == key.read_text()
    assert found["login"]["password"] not in said.read_text()

    ours = (found["login"]["user"], found["login"]["password"])
    with httpx.Client(trust_env=False, timeout=20, auth=ours) as http:
        names = http.get(f"{urls['prometheus']}/api/v1/rules").json()["data"]["groups"]
        assert len(names) == 8, "our rules are evaluated"

        def tags() -> str:
            return http.get(f"{urls['tensorboard']}/data/plugin/scalars/tags").text

        wait_for(lambda: "learning/loss" in tags(), 60, said)

        def recorded() -> list[Any]:
            asked = {"query": "job:train_step:max > 0"}
            result: list[Any] = http.get(f"{urls['prometheus']}/api/v1/query", params=asked).json()["data"]["result"]
            return result

        wait_for(lambda: bool(recorded()), 60, said)

    # A TensorBoard that dies comes back; the run does not notice.
    first = board()
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: board() not in (None, first), 120, said)

    run.send_signal(signal.SIGINT)
    run.wait(60)
    assert processes_of(folder) == []
    deadline = time.monotonic() + 10
    while (folder / "services").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not (folder / "services").exists()
    assert not key.exists()
    after = trackwalker("tunnel", job_id, "-w", str(out))
    assert after.returncode == 1
    assert f"trackwalker tsdb view {job_id}" in after.stdout
    with open_database(folder / "prometheus") as telemetry:
        assert "job:train_step_seconds:p50" in telemetry.metrics()


def _pid(folder: Path) -> int | None:
    try:
        pid: int = json.loads((folder / "services" / "tensorboard.json").read_text())["pid"]
    except (OSError, ValueError):
        return None
    return pid
