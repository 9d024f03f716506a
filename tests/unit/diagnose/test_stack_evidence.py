"""A capsule in the job directory is evidence: it names the rank that holds a hang up, and only of its own silence."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from helpers import step_line, write_lines

from conftest import ROOT
from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.verdict import Verdict
from trackwalker.job.layout import Job
from trackwalker.job.run import RankPlace, RunRecord

REAL = ROOT / "tests" / "data" / "stacks"
START, STEPS = 1_790_000_000.0, 60
STALLED = START + STEPS


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Four ranks, sixty steps of a second, then two minutes of nothing and a cancel; no metrics."""
    folder, log = tmp_path / "7-JAX-tiny", tmp_path / "7-JAX-tiny.log"
    folder.mkdir()
    lines = [f"{rank}: {step_line(step, 1.0)}" for step in range(STEPS) for rank in range(4)]
    log.write_text("\n".join(["0: Config param steps: 1000", *lines, ""]))
    RunRecord(
        id="7", name="JAX-tiny", model="tiny", scheduler="slurm", trainer="tiny", created=START, argv=[], command=[],
        workspace="", ranks=[RankPlace(rank=r, host=f"n{r}", node=f"n{r}") for r in range(4)],
    ).save(folder / "run.json")  # fmt: skip
    steps = [
        {"t": START + 1 + step, "rank": rank, "host": f"n{rank}", "phase": "train", "step": step, "seconds": 1.0}
        for step in range(STEPS)
        for rank in range(4)
    ]
    write_lines(folder / "progress.jsonl", steps)
    ends = [("stop", {"why": "cancelled"}), ("run-end", {"exit": 143, "reason": "CANCELLED (scancel / SIGTERM)"})]
    write_lines(folder / "events.jsonl", [{"t": STALLED + 120, "kind": k, "data": d} for k, d in ends])
    return Job("7", log, folder)


def capsule(job: Job, name: str, at: float, states: str = "SSSS", without_data: int = -1) -> None:
    """What four nodes wrote, with the real stacks of a rank that waits and of one whose batch does not come."""
    assert job.dir is not None
    for rank, state in enumerate(states):
        folder = job.dir / "stacks" / name / f"n{rank}"
        folder.mkdir(parents=True)
        real = "rank-1.no-data.py-spy.txt" if rank == without_data else "rank-0.py-spy.txt"
        (folder / f"rank-{rank}.py-spy.txt").write_text((REAL / real).read_text())
        look = {"state": state, "wchan": "-"}
        entry = {"rank": rank, "host": f"n{rank}", "pid": 9, "now": look, "later": look}
        (folder / "done.json").write_text(json.dumps({"v": 1, "t": at, "node": f"n{rank}", "ranks": [entry]}))


def hang(verdict: Verdict) -> tuple[str, list[str]]:
    (root,) = verdict.roots
    return root.cause, root.hosts


def test_the_stopped_rank_is_the_culprit_and_its_stack_is_cited(job: Job) -> None:
    capsule(job, "hang-1", STALLED + 30, "SSTS")
    verdict = diagnose(job).verdict
    assert hang(verdict) == ("collective-hang", ["n2"]), verdict.to_json()
    cited = {item.source: item.says for item in verdict.evidence if item.id in verdict.roots[0].evidence}
    assert "rank 2 on n2: its process is stopped" in cited["stacks/hang-1/n2/rank-2.py-spy.txt"]
    assert "ranks 0, 1, 3 wait in ArrayImpl._value (jax/_src/array.py:623)" in cited["stacks/hang-1"]


def test_a_rank_whose_batch_does_not_come_makes_it_a_data_loader_hang(job: Job) -> None:
    capsule(job, "hang-1", STALLED + 30, without_data=3)
    verdict = diagnose(job).verdict
    assert hang(verdict) == ("dataloader-hang", ["n3"]), verdict.to_json()
    cited = [item.says for item in verdict.evidence if item.id in verdict.roots[0].evidence]
    assert "rank 3 on n3 waits for its next batch in Pipeline.take (trackwalker/trainers/tiny/data.py:70)" in cited


def test_when_all_wait_alike_nobody_is_named(job: Job) -> None:
    capsule(job, "hang-1", STALLED + 30)
    assert hang(diagnose(job).verdict) == ("collective-hang", [])


def test_the_flight_recorder_names_who_never_entered_and_a_hostile_dump_is_passed_over(job: Job) -> None:
    capsule(job, "hang-1", STALLED + 30)
    assert job.dir is not None
    for rank in range(4):
        entry = {"process_group": ["0", "all"], "collective_seq_id": 9, "state": "scheduled", "is_p2p": False}
        said = {
            "pg_config": {"0": {"desc": "all", "ranks": "[0, 1, 2, 3]"}},
            "entries": [] if rank == 1 else [entry],
        }
        folder = job.dir / "stacks" / "hang-1" / f"n{rank}" / "flight-recorder"
        folder.mkdir()
        (folder / str(rank)).write_bytes(pickle.dumps(said, 2))
    (folder / "99").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    verdict = diagnose(job).verdict
    assert hang(verdict) == ("collective-hang", ["n1"]), verdict.to_json()
    assert any("has not entered collective 9 of all" in item.says for item in verdict.evidence)


@pytest.mark.parametrize("at", [START + 10, STALLED + 3600])
def test_a_capsule_of_another_moment_accuses_nobody(job: Job, at: float) -> None:
    capsule(job, "hang-0", at, "STSS")
    assert "stacks/" not in diagnose(job).verdict.to_json()
