"""A real watcher beside real four-process runs: what is broken is called in time, with its rank, stack and verdict."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paced_faults import paced
from processes import end_runs, processes_of
from tiny_settings import SMALL, as_mapping

from trackwalker.job.journal import read
from trackwalker.lab.real.cases import CASES, RealCase
from trackwalker.lab.real.demo import broken_run
from trackwalker.lab.real.inject import find_victim, inject

pytestmark = [pytest.mark.disturbed_by_load(reason="a hang is called by its real seconds"), pytest.mark.timeout(300)]
PATIENCE_S = 120.0
CALL_S = 60.0  # from the third missed step on


class Watcher:
    """`trackwalker watch --all --json`, as a user starts it."""

    def __init__(self, workspace: Path) -> None:
        self._out = workspace.parent / "watch.out"
        argv = [sys.executable, "-m", "trackwalker", "watch", "--all", "--json", "--workspace", str(workspace)]
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    @property
    def said(self) -> list[dict[str, Any]]:
        lines = self._out.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def says(self, enough: Callable[[list[dict[str, Any]]], object]) -> list[dict[str, Any]]:
        """Wait until what it said is enough."""
        deadline = time.monotonic() + PATIENCE_S
        while not enough(self.said):
            assert self.process.poll() is None, self._out.read_text()
            assert time.monotonic() < deadline, json.dumps(self.said, indent=1)
            time.sleep(0.1)
        return self.said

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@contextlib.contextmanager
def watched(case: RealCase, tmp_path: Path) -> Iterator[tuple[Watcher, Any]]:
    workspace = tmp_path / "outputs"
    workspace.mkdir()
    watcher = Watcher(workspace)
    try:
        quick = replace(case, begins="early", speaks_s=0.0, noticed=False, ends=False)
        with broken_run(quick, workspace, lambda text: None, lambda watch: None) as broken:
            yield watcher, broken
        # The run was ended: that is told once, and what was wrong with it is over, once.
        told = watcher.says(lambda said: [m for m in said if m["key"].endswith("-ended-1:opened")])
        keys = [m["key"] for m in told]
        assert len(keys) == len(set(keys))
        lasting = {m["thread"] for m in told if m["key"].endswith(":opened")} - _events(told)
        assert {m["thread"] for m in told if m["resolves"]} == lasting
        assert watcher.stop() == 0
        assert processes_of(broken.job_dir) == []
    finally:
        watcher.process.kill()
        watcher.process.wait()
        end_runs(workspace)


def _events(told: list[dict[str, Any]]) -> set[str]:
    """Threads of what happened once and has no end of its own."""
    return {m["thread"] for m in told if m["kind"] in ("failure", "ended", "requeued")}


def has_all(text: str, *words: str) -> bool:
    return all(word in text for word in words)


def _verdict(message: dict[str, Any]) -> str:
    return str(message["facts"].get("verdict", ""))


def of_kind(said: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [m for m in said if m["kind"] in kinds]


def opened(said: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The one incident of a kind, as it was told first."""
    (first,) = [m for m in said if m["kind"] == kind and m["key"].endswith(":opened")]
    return first


def step_time(job_dir: Path, step: int) -> float:
    """When a step was completed."""
    return next(float(r["t"]) for r in read(job_dir / "progress.jsonl").items if r.get("step") == step)


def test_a_stopped_and_a_killed_rank_are_called_in_a_minute_with_stack_and_verdict(
    tmp_path: Path, prometheus: Path
) -> None:
    with watched(paced(CASES["stop"]), tmp_path) as (watcher, broken):
        told = watcher.says(
            lambda said: [m for m in of_kind(said, "hang") if has_all(m["text"], "Stacks:", "Verdict:")]
        )
        first = opened(told, "hang")
        # Steps take a fraction of a second: the third one was missed within two seconds.
        assert first["time"] < broken.began + 2.0 + CALL_S
        assert first["facts"]["points at"].startswith("rank 2 (")
        full = of_kind(told, "hang")[-1]
        assert full["facts"]["ranks"] == "2"
        assert "collective-hang" in full["facts"]["verdict"]
        assert {m["thread"] for m in of_kind(told, "hang")} == {first["thread"]}
        assert list((broken.job_dir / "stacks" / first["thread"]).rglob("*.txt"))
        # It goes on, which is told, and the same rank is killed: another run would cost another start.
        victim = find_victim(broken.job_dir, 2)
        os.kill(victim.pid, signal.SIGCONT)
        watcher.says(lambda said: [m for m in of_kind(said, "hang") if m["resolves"]])
        with inject("kill", victim) as began:
            told = watcher.says(lambda said: [m for m in of_kind(said, "failure") if "peer-died" in _verdict(m)])
        assert "rank 2" in opened(told, "failure")["title"]
        assert opened(told, "failure")["time"] < began + 2.0 + CALL_S


# A small model, but not paced: late batches are told by how little waited for data before.
def test_a_nan_and_late_batches_are_called_in_a_minute_with_a_verdict(tmp_path: Path, prometheus: Path) -> None:
    both = replace(CASES["nan"], config={**as_mapping(SMALL), **CASES["nan"].config, **CASES["slow-data"].config})
    with watched(both, tmp_path) as (watcher, broken):
        told = watcher.says(
            lambda said: (
                [m for m in of_kind(said, "loss") if "loss-divergence" in _verdict(m)]
                and [m for m in of_kind(said, "data-slow") if "input-stall" in _verdict(m)]
            )
        )
        loss, slow = opened(told, "loss"), opened(told, "data-slow")
        assert "not a number from step 30" in loss["title"]
        assert loss["time"] < step_time(broken.job_dir, 30) + CALL_S
        assert "rank 2" in slow["title"]
        third = step_time(broken.job_dir, 42)  # batches come late from step 40 on
        assert slow["time"] < third + CALL_S


@pytest.mark.alone
@pytest.mark.long(reason="a minute with nothing beside it: it judges CPU time, as the case cpu of test_real_faults.py")
def test_a_cpu_hog_is_called_in_a_minute_with_a_verdict(tmp_path: Path, prometheus: Path) -> None:
    with watched(CASES["cpu"], tmp_path) as (watcher, broken):
        told = watcher.says(lambda said: [m for m in of_kind(said, "slow") if "cpu-contention" in _verdict(m)])
        first = opened(told, "slow")
        step_s = float(first["facts"]["now"].split()[0])  # on a busy machine seconds
        assert first["time"] < broken.began + 3 * step_s + CALL_S
