"""The evidence of a real four-process run: one rank is stopped, all are read, the odd one is named, nobody is hurt."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_run import Run
from processes import end_runs
from tiny_settings import PACED, as_mapping

from trackwalker.diagnose.engine import diagnose
from trackwalker.job.journal import read
from trackwalker.job.layout import Job
from trackwalker.job.processes import read_stat
from trackwalker.job.resolve import resolve
from trackwalker.lab.real.noticing import Noticing
from trackwalker.launch.code.bundle import build_agent
from trackwalker.launch.plan import How, plan_local
from trackwalker.launch.request.words import ModelSpec, Passthrough
from trackwalker.launch.schedulers.local import LocalRun
from trackwalker.node.evidence.rank_stacks import find_pyspy
from trackwalker.record.capsules import read_capsule
from trackwalker.watch.detect import capsule

pytestmark = [pytest.mark.timeout(240)]
ODD = 2


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    settings = Passthrough({**as_mapping(PACED), "steps": "100000", "checkpoint_period": "100000"})
    run = LocalRun.start(plan_local(ModelSpec("tiny"), settings, tmp_path, How("local", ["test"], 4)))
    yield run
    end_runs(tmp_path)


def until(condition: Callable[[], object], what: str, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {seconds:g} s"
        time.sleep(0.1)


def rank_pids(job: Job) -> dict[int, int]:
    assert job.events is not None
    return {e["rank"]: e["data"]["pid"] for e in read(job.events).items if e["kind"] == "rank-start"}


def test_a_stopped_rank_is_named_by_its_evidence_and_nobody_is_hurt(run: LocalRun, tmp_path: Path) -> None:
    watch = Noticing(run.job_dir)
    until(lambda: watch.look() or (watch.last_step or 0) >= 30, "thirty steps")
    job = resolve(str(run.job_dir), tmp_path)
    pids = rank_pids(job)
    os.kill(pids[ODD], signal.SIGSTOP)
    capsule.request(job, "hang-1")
    taken = capsule.wait(job, "hang-1")
    assert taken is not None
    assert (taken.missing, len(taken.stacks)) == ((), 4), taken
    (odd,) = taken.odd
    assert odd.rank == ODD, taken.summary()
    assert "its process is stopped (state T)" in odd.why
    assert all(stack.frames for stack in taken.stacks), "py-spy reads a stopped process, too"
    assert taken.everybody_waits, [str(f) for s in taken.stacks for f in s.frames[:3]]
    folder = run.job_dir / "stacks" / "hang-1" / taken.nodes[0]
    assert {p.name for p in folder.iterdir()} >= {"done.json", "processes.txt", "network.json", f"rank-{ODD}.proc.txt"}
    assert not list(folder.glob("*.tmp"))
    assert "Process " not in (folder / "rank-0.py-spy.txt").read_text(), "command lines may hold secrets"
    stat = read_stat(pids[ODD])
    assert stat is not None
    assert stat.state == "T", "who stopped it has to continue it"

    until(lambda: (notice := watch.notice()) is not None and notice.kind == "stall", "stall")
    verdict = diagnose(job).verdict
    (root,) = verdict.roots
    assert (root.cause, len(root.hosts)) == ("collective-hang", 1), verdict.to_json()
    assert root.hosts[0].endswith(f"-r{ODD}")
    assert any("its process is stopped" in item.says for item in verdict.evidence if item.id in root.evidence)

    os.kill(pids[ODD], signal.SIGCONT)
    reached = watch.last_step or 0
    until(lambda: watch.look() or (watch.last_step or 0) > reached + 3, "further steps: the run goes on as before")


def test_survivors_are_read_before_the_agent_ends_them(tmp_path: Path) -> None:
    # Rank 1 stands where a run stands that hangs; nothing announces it, and py-spy may not be there: /proc always is.
    waits = "import time\nprint('up', flush=True)\ndef collective():\n    time.sleep(600)\ncollective()"
    fails = "import time, sys\nprint('up', flush=True)\ntime.sleep(1)\nsys.exit(3)"
    run = Run(tmp_path, build_agent(tmp_path / "agent.pyz"), [fails, waits], grace_s=5.0)
    assert run.ends(60) == 3
    taken = read_capsule(run.dir / "stacks" / "end-0")
    assert taken is not None
    (survivor,) = taken.stacks
    assert (survivor.rank, survivor.state) == (1, "S")
    assert (run.dir / "stacks" / "end-0" / "box" / "rank-1.proc.txt").read_text().startswith("== process")
    if find_pyspy([sys.executable], dict(os.environ)):
        assert [frame.function for frame in survivor.frames][:2] == ["collective", "<module>"]
    (event,) = run.events("capsule")
    (stop,) = run.events("stop")
    assert run.events("first-failure")[0]["t"] <= event["t"] <= stop["t"]
    assert stop["t"] - run.events("first-failure")[0]["t"] < 10, "evidence holds nothing up for long"
    assert run.left_over() == []
