"""Completion in the three shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_here import call_here
from hostile_jobs import ID, make_job

SHELLS = {
    "bash": 'source "$1"; shift; COMP_WORDS=(trackwalker "$@"); COMP_CWORD=$#; _trackwalker; '
    'printf "%s\\n" "${COMPREPLY[@]}"',
    # Completion functions run inside the line editor only: what they would add is printed instead.
    "zsh": 'compdef() { : }; compadd() { shift; print -l -- "$@" }; _files() { : }; source "$1"; shift; '
    'words=(trackwalker "$@"); CURRENT=$(( $# + 1 )); _trackwalker',
    "fish": 'source $argv[1]; complete -C "trackwalker $(string join -- " " $argv[2..])"',
}


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    if shutil.which(request.param) is None:
        pytest.skip(f"apt-get install {request.param}")
    script = tmp_path / "completion"
    script.write_text(call_here(os.environ, "completion", request.param).stdout)
    return request.param, script


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["dia"], "diagnose"),
        (["plan", "llama2"], "llama2-70b"),
        (["jobs", "--st"], "--state"),
        (["status", "local_"], ID),
        (["tsdb", "query", ID, "hw_gpu_stal"], "hw_gpu_stalled"),
    ],
)
def test_a_tab_offers_it(shell: tuple[str, Path], typed: list[str], offered: str, tmp_path: Path) -> None:
    name, script = shell
    make_job(tmp_path / "ws")
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JOB_WORKSPACE": str(tmp_path / "ws"),
        "HOME": str(tmp_path),
    }
    flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[name]
    more = ["_"] if name != "fish" else []
    argv = [name, *flags, "-c", SHELLS[name], *more, str(script), *typed]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    found = [line.split("\t")[0] for line in done.stdout.splitlines() if line]
    assert offered in found, done
