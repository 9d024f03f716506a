"""What `submit` leaves behind for a job of a real Slurm: the code as it was, the log of one that failed at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster
from standin_trainer import put_stand_in

from trackwalker.launch.slurm.client import Slurm

pytestmark = [
    pytest.mark.disturbed_by_load(reason="submit looks for an early death for some real seconds"),
    pytest.mark.timeout(180),
]


def submit_stand_in(cluster: SlurmCluster, root: Path, program: str, *options: str) -> dict[str, Any]:
    """What `submit` answers, with this program in the trainer's place."""
    fake = put_stand_in(root / "fake", f"import sys; sys.path.insert(0, ''); {program}")
    words = ["submit", "tiny", "--workspace", str(root / "ws"), "--json", *options]
    argv = [sys.executable, "-m", "trackwalker", *words, "--", f"_env_PYTHONPATH={fake}"]
    done = subprocess.run(argv, env=cluster.env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_r13_a_job_that_fails_at_once_keeps_its_log_and_its_code(slurm_session: SlurmCluster, tmp_path: Path) -> None:
    """That it was queued and wrote a log is all `submit` promises; that it failed is for `wait` to say."""
    slurm_session.wait_idle(60)
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text("x = 1\n")
    program = "raise SystemExit('the data is not there')"
    answer = submit_stand_in(slurm_session, tmp_path, program, "--code", str(code))
    client = Slurm(slurm_session.env)
    slurm_session.wait_for(lambda: client.state(answer["id"]).ended, "its end", 60)
    log, job_dir = Path(answer["log"]), Path(answer["dir"])
    assert "the data is not there" in log.read_text()
    assert "FAILED (exit 1)" in log.read_text()
    assert (job_dir / "artifact" / "mine.py").read_text() == "x = 1\n"
    assert client.state(answer["id"]).exit == 1


def test_r10_a_queued_job_runs_the_code_of_its_submission(slurm_session: SlurmCluster, tmp_path: Path) -> None:
    slurm_session.wait_idle(60)
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text("words = 'as submitted'\n")
    answer = submit_stand_in(slurm_session, tmp_path, "import mine; print(mine.words)", "--hold", "--code", str(code))
    (code / "mine.py").write_text("words = 'edited since'\n")
    slurm_session.client("scontrol", "release", answer["id"])
    client = Slurm(slurm_session.env)
    slurm_session.wait_for(lambda: client.state(answer["id"]).ended, "its end", 60)
    assert "as submitted" in Path(answer["log"]).read_text()
    assert "edited since" not in Path(answer["log"]).read_text()
