"""torchrun around real PyTorch processes, recorded: its ranks are found, its first failure is read."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import sys, time
import torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from trackwalker.progress import report

@record
def main():
    dist.init_process_group("gloo")
    x = torch.ones(1000)
    for step in range(1, 61):
        began = time.time()
        time.sleep(0.1)
        if step == int(sys.argv[1]) and dist.get_rank() == 1:
            raise RuntimeError("the batch has a hole")
        dist.all_reduce(x)
        report(step=step, loss=5.0 / step, seconds=time.time() - began)
    dist.destroy_process_group()

main()
"""
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: pip install torch"),
    pytest.mark.long(reason="PyTorch is 200 MB and not among the packages of the tests"),
]


def record(where: Path, fails_at: int) -> tuple[int, Path, str]:
    (where / "train.py").write_text(TRAIN)
    argv = [sys.executable, "-m", "trackwalker", "record", "--workspace", str(where / "jobs"), "--", sys.executable]
    argv += ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-r", "3", "train.py", str(fails_at)]
    done = subprocess.run(argv, cwd=where, capture_output=True, text=True, timeout=300, check=False)
    (job,) = [path for path in (where / "jobs").iterdir() if path.is_dir() and path.name.startswith("local_")]
    return done.returncode, job, done.stderr


def test_its_ranks_are_found_and_their_steps_read(tmp_path: Path) -> None:
    code, job, said = record(tmp_path, fails_at=0)
    assert code == 0
    assert "trackwalker: healthy" in said
    steps = [json.loads(line) for line in (job / "progress.jsonl").read_text().splitlines()]
    assert {(s["rank"], s["step"]) for s in steps} == {(rank, step) for rank in (0, 1) for step in range(1, 61)}
    assert len(json.loads((job / "run.json").read_text())["ranks"]) == 2


def test_the_first_failure_is_the_one_in_its_error_file(tmp_path: Path) -> None:
    code, job, _ = record(tmp_path, fails_at=30)
    assert code == 1
    events = [json.loads(line) for line in (job / "events.jsonl").read_text().splitlines()]
    first = events[-1]["data"]["first"]
    assert (first["rank"], first["exit"]) == (1, 1)
    log = (job / "log").read_text()
    assert "1: RuntimeError: the batch has a hole\n" in log
