"""The habits of the command line as bash, zsh and fish hand them over: names of jobs, settings, help, doctor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_jobs import T0, make_job

OLD, NEW = "local_20260101_000000_aaaa", "local_20260102_000000_bbbb"
FLAGS = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}


class Shell:
    """One shell, in a project folder with a config file, a user's config file and three workspaces."""

    def __init__(self, name: str, place: Path) -> None:
        self.name, self.place = name, place
        for workspace, jobs in (("user", 1), ("project", 2), ("flag", 1)):
            for at, job in enumerate((OLD, NEW)[:jobs]):
                record = make_job(place / workspace, job) / "run.json"
                record.write_text(json.dumps({**json.loads(record.read_text()), "created": T0 + 86400 * at}))
        (place / "trackwalker.toml").write_text('workspace = "project"\n')
        (place / "config" / "trackwalker").mkdir(parents=True)
        (place / "config" / "trackwalker" / "config.toml").write_text(f'workspace = "{place / "user"}"\ngpu = "H200"\n')

    def says(self, line: str, code: int = 0) -> str:
        """What a line typed into the shell prints; the line means the same in all three."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("JOB_", "TRACKWALKER_"))}
        env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "XDG_CONFIG_HOME": str(self.place / "config")}
        argv = [self.name, *FLAGS[self.name], "-c", line]
        env |= {"COLUMNS": "100"}
        done = subprocess.run(argv, cwd=self.place, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done
        return done.stdout + done.stderr


@pytest.fixture(params=FLAGS)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    if shutil.which(request.param) is None:
        pytest.skip(f"apt-get install {request.param}")
    return Shell(request.param, tmp_path)


MORE = pytest.mark.long(reason="what a command answers does not depend on the shell; a landing asks in one of them")
in_one_shell = pytest.mark.parametrize(
    "shell", ["bash", *(pytest.param(name, marks=MORE) for name in FLAGS if name != "bash")], indirect=True
)


def test_names_of_jobs(shell: Shell) -> None:
    """A lone dash, a negative number, Slurm's brackets: each is special to some shell or some parser."""
    assert f"job {NEW} " in shell.says("trackwalker status")
    assert f"job {OLD} " in shell.says("trackwalker status -")
    assert "there are only 2 jobs" in shell.says("trackwalker status -2", code=2)
    (shell.place / "flag" / "8308-JAX-x.log").write_text("0: hello\n")
    assert shell.says("trackwalker logs '8308_[1-4%2]' -w flag") == "0: hello\n"


@in_one_shell
def test_flags_beat_environment_beats_project_beats_user(shell: Shell) -> None:
    def workspace(line: str) -> str:
        return Path(json.loads(shell.says(line))["workspace"]).name

    assert workspace("trackwalker jobs --json") == "project"
    assert workspace("env JOB_WORKSPACE=user trackwalker jobs --json") == "user"
    assert workspace("env JOB_WORKSPACE=user trackwalker jobs --json -w flag") == "flag"
    assert shell.says("trackwalker config get gpu") == "H200\n"  # the project's file does not say


@in_one_shell
def test_help_in_groups_and_a_doctor(shell: Shell) -> None:
    said = shell.says("trackwalker -h | cat")
    places = [said.index(f"─ {group} ─") for group in ("Run", "Inspect", "Diagnose", "Fleet", "Agents", "Lab")]
    assert places == sorted(places)
    found = json.loads(shell.says("trackwalker doctor --json; or true" if shell.name == "fish"
                                  else "trackwalker doctor --json || true"))  # fmt: skip
    assert {"Python", "Prometheus", "Slurm", "disk", "clock"} <= {each["about"] for each in found["findings"]}
