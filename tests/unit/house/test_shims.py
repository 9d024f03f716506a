"""The scripts of old habit: the same words and knobs reach trackwalker, byte for byte."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.starts_processes

SHIMS = Path(__file__).parents[3] / "shims"
SAYS = """#!/bin/sh
printf '%s\\0' "$@" >"$SEEN"
printf '%s' "$RAY/$JOB_WORKSPACE/$STAGE_TIMEOUTS" >"$SEEN.knobs"
exit 7
"""
WORDS = [
    "70b:tag",
    "-N",
    "8",
    "--comment=a b",
    "--",
    "steps=10",
    '_env_A=it\'s "$HOME" %j\nnext',
    "empty=",
    "",
    "ключ=ü",
]


@pytest.mark.parametrize(
    ("shim", "verb"),
    [
        ("submit.sh", ["submit"]),
        ("k8s_submit.sh", ["submit", "--on", "k8s"]),
        ("run_local.sh", ["run"]),
        ("in_container_run.sh", ["run", "--in-container"]),
    ],
)
def test_the_words_reach_trackwalker_as_they_are(tmp_path: Path, shim: str, verb: list[str]) -> None:
    assert run(tmp_path, shim, WORDS) == [*verb, *WORDS]
    assert (tmp_path / "seen.knobs").read_text() == "1/a b/train:60", "knobs are trackwalker's own"


def test_run_local_without_words_is_a_shell(tmp_path: Path) -> None:
    assert run(tmp_path, "run_local.sh", []) == ["shell"]


def run(tmp_path: Path, shim: str, words: list[str]) -> list[str]:
    fake = tmp_path / "bin" / "trackwalker"
    fake.parent.mkdir()
    fake.write_text(SAYS)
    fake.chmod(0o755)
    seen = tmp_path / "seen"
    knobs = {"SEEN": str(seen), "RAY": "1", "JOB_WORKSPACE": "a b", "STAGE_TIMEOUTS": "train:60"}
    env = {"PATH": f"{fake.parent}:{os.environ['PATH']}", **knobs}
    done = subprocess.run([str(SHIMS / shim), *words], env=env, timeout=30, check=False)
    assert done.returncode == 7, "its exit code is the shim's"
    return seen.read_bytes().decode().split("\0")[:-1]
