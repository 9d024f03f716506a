"""A process that is going already is joined: its log from the beginning, steps from now on, and it never notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_job import wait_for

pytestmark = [pytest.mark.usefixtures("prometheus")]
# It waits before its eleventh step until somebody has joined: on a busy machine `attach` takes as long
# to begin as fifty steps do.
TRAIN = """
import glob, os, sys, time
joined = os.path.join(sys.argv[2], "*", "events.jsonl")
for step in range(1, int(sys.argv[1]) + 1):
    while step == 11 and not any(os.path.getsize(path) for path in glob.glob(joined)):
        time.sleep(0.05)
    began = time.time()
    time.sleep(0.15)
    print(f" [{time.strftime('%Y-%m-%d %H:%M:%S')}] iteration {step:8d}/{int(sys.argv[1]):8d} | consumed samples: 8 | "
          f"elapsed time per iteration (ms): {1000 * (time.time() - began):.1f} | learning rate: 1.0E-04 | "
          "global batch size:     8 | lm loss: 3.0E+00 | loss scale: 1.0 | grad norm: 1.000 | "
          "number of skipped iterations:   0 | number of nan iterations:   0 |", flush=True)
"""
KUBECTL = """#!/bin/sh
echo "$*" >> "{calls}"
case "$1" in
  get) printf Running ;;
  logs) exec tail -n +1 -f "{log}" ;;
  exec) while [ "$1" != 1 ]; do shift; done; shift  # the trainer's real process stands for the pod's process 1
        exec "{python}" -m trackwalker attach --pid {pid} "$@" ;;
esac
"""


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """It prints into a file, and has done some steps."""
    (tmp_path / "train.py").write_text(TRAIN)
    log = tmp_path / "train.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "train.py"), "60", str(tmp_path / "w")], stdout=out, stderr=out
        )
    wait_for(lambda: log.read_text().count("elapsed") >= 10, 30)
    yield process, log
    process.kill()
    process.wait()


def joined(workspace: Path) -> tuple[Path, list[dict[str, Any]], list[dict[str, Any]]]:
    (job,) = [path for path in workspace.iterdir() if path.is_dir() and path.name.startswith("local_")]
    steps, events = (
        [json.loads(line) for line in (job / name).read_text().splitlines()]
        for name in ("progress.jsonl", "events.jsonl")
    )
    return job, steps, events


def test_a_process_is_joined_and_its_end_not_invented(
    trainer: tuple[subprocess.Popen[bytes], Path], tmp_path: Path
) -> None:
    process, log = trainer
    argv = [
        sys.executable,
        "-m",
        "trackwalker",
        "attach",
        "--pid",
        str(process.pid),
        "--workspace",
        str(tmp_path / "w"),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert process.wait(30) == 0
    job, steps, events = joined(tmp_path / "w")
    numbers = [s["step"] for s in steps]
    assert numbers == list(range(numbers[0], 61))
    assert numbers[0] > 5, "what was printed before has no time that anybody knows"
    assert (job / "log").read_text().count("elapsed time") == 60, "the log from its beginning"
    assert events[-1]["data"]["exit"] is None
    assert [e["data"] for e in events if e["kind"] == "rank-exit"] == [{}]
    assert "trackwalker: healthy" in done.stderr
    assert log.read_text().count("elapsed time") == 60, "its own file is as it was"


def test_a_pod_is_joined_through_kubectl(trainer: tuple[subprocess.Popen[bytes], Path], tmp_path: Path) -> None:
    process, log = trainer
    folder, calls = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    stand_in = folder / "kubectl"
    stand_in.write_text(KUBECTL.format(calls=calls, log=log, python=sys.executable, pid=process.pid))
    stand_in.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    argv = [sys.executable, "-m", "trackwalker", "attach", "--pod", "worker-0", "-n", "ml", "--no-metrics"]
    done = subprocess.run(
        [*argv, "--workspace", str(tmp_path / "w")], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    said = calls.read_text().splitlines()
    assert said[0].startswith("get pod worker-0 --namespace ml")
    assert said[1] == "logs worker-0 --namespace ml --follow"
    assert said[2].startswith("exec worker-0 --namespace ml -- trackwalker attach --pid 1 ")
    job, steps, _ = joined(tmp_path / "w")
    assert job.name.endswith("-worker-0")
    assert steps[-1]["step"] == 60


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say what to join"),
        (["--pid", "1", "--slurm", "7"], "say what to join"),
        (["--slurm", "x"], "not a Slurm job id"),
        (["--pid", "99999999"], "no such process"),
        (["--pid", "1", "--log", "nowhere"], "no such file"),
    ],
)
def test_what_cannot_be_joined_is_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "trackwalker", "attach", *words, "--workspace", str(tmp_path / "w")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
