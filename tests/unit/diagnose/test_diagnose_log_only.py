"""Verdicts from a log and nothing else: whose end nobody tells, and a cancel that is nobody's wish."""

from __future__ import annotations

from pathlib import Path

import pytest
from triage_logs import ending, header, steps

from trackwalker.diagnose.case import open_case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.causes.examine import _ask_signature
from trackwalker.diagnose.causes.playbook import load_playbooks
from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.verdict import Verdict
from trackwalker.job.resolve import resolve

CLOSED = "{rank}: node00{number}:9:9 [3] socket.cc:915 NCCL WARN socketProgress: Connection closed by remote peer\n"
EXIT = "{rank}: NODE_EXIT host=node00{number} exit={code}\n"
NODE_FAILED = (
    "srun: error: Node failure on node004\n"
    "slurmstepd: error: *** STEP 77.0 ON node001 CANCELLED AT 2026-02-11T16:00:49 DUE TO NODE FAILURE ***\n"
)


ITERATION = (
    " [2026-02-11 15:{minute:02d}:00] iteration {n:8d}/   90000 | elapsed time per iteration (ms): 60000.0 | "
    "global batch size:   480 | lm loss: 2.5E+00 | grad norm: 1.5 |\n"
)
STEP_CANCELLED = "slurmstepd: error: *** STEP 77.0 ON node001 CANCELLED AT 2026-02-11T16:00:49 ***\n"


def iterations(last: int) -> str:
    """A plain Slurm log of another trainer: no header, no summary."""
    return "".join("3: " + ITERATION.format(minute=n, n=n) for n in range(1, last + 1))


def verdict_of(folder: Path, text: str) -> Verdict:
    path = folder / "77-JAX-toy.log"
    path.write_text(text)
    return diagnose(resolve(str(path), folder)).verdict


def spoken(text: str, ranks: list[int], code: int = 143) -> str:
    return "".join(text.format(rank=r, number=r + 1, code=code) for r in ranks)


def test_the_one_host_whose_end_nobody_tells_is_the_peer_that_died(tmp_path: Path) -> None:
    run = header(nodes=6) + steps(40, nodes=6) + spoken(CLOSED, [1, 4])
    mute = verdict_of(tmp_path, run + spoken(EXIT, [1, 4], 134) + spoken(EXIT, [0, 2, 5]) + ending(1))
    roots = [(c.cause, c.hosts) for c in mute.causes if c.role == "root"]
    assert roots == [("peer-died", ["node004"])]
    # Two without a word cannot be told apart.
    two = verdict_of(tmp_path, run + spoken(EXIT, [1, 4], 134) + spoken(EXIT, [0, 2]) + ending(1))
    assert [c.hosts for c in two.causes if c.role == "root"] == [[]]


def test_a_cancel_after_a_node_failed_is_no_users(tmp_path: Path) -> None:
    said = verdict_of(tmp_path, header() + steps(40) + NODE_FAILED + spoken(EXIT, [0, 1, 2]) + ending(1))
    assert [(c.cause, c.hosts) for c in said.causes if c.role == "root"] == [("node-death", ["node004"])]
    assert "user-cancel" not in {c.cause for c in said.causes}


def test_a_log_without_a_summary_ends_as_the_schedulers_own_lines_tell(tmp_path: Path) -> None:
    told = "srun: error: node002: task 1: Terminated\nsrun: error: node003: task 2: Exited with exit code 1\n"
    assert verdict_of(tmp_path, iterations(40) + STEP_CANCELLED + told).status == "cancelled"
    for end in ("tasks 8-15: Exited with exit code 1", "task 3: Segmentation fault (core dumped)", "task 3: Killed"):
        first = f"srun: error: node004: {end}\nsrun: Terminating StepId=77.0\n"
        assert verdict_of(tmp_path, iterations(40) + first + STEP_CANCELLED + told).status == "failed"
    # A step of the job that failed before training did not end it.
    early = "srun: error: node004: task 3: Exited with exit code 2\n" + iterations(40)
    assert verdict_of(tmp_path, early).status == "indeterminate"
    assert verdict_of(tmp_path, early + STEP_CANCELLED + told).status == "cancelled"


FRAME = '2: [rank2]:   File "/usr/lib/python3.12/site-packages/torch/utils/data/dataloader.py", line 1284, in _try_get_data (self)\n'  # noqa: E501
TIMED_OUT = "2: [rank2]: RuntimeError: DataLoader timed out after 1800 seconds\n"
KILLED = "2: kernel: Out of memory: Killed process 4242 (pt_data_worker)\n"


@pytest.mark.parametrize(("told", "fired"), [(FRAME + TIMED_OUT, True), (KILLED + FRAME, None)])
def test_a_loader_is_stuck_where_that_is_the_primary_failure(tmp_path: Path, told: str, fired: bool | None) -> None:
    path = tmp_path / "77-JAX-toy.log"
    path.write_text(header() + steps(40) + told + ending(1))
    (says,) = [t for p in load_playbooks() if p.id == "dataloader-hang" for t in p.tests if t.id == "log-says"]
    with open_case(resolve(str(path), tmp_path)) as case:
        named = [f.cause for f in case.triage.failures]
        assert "dataloader-hang" in named
        assert _ask_signature(says, ["dataloader-hang"], case, EvidenceBook()).fired is fired


def test_words_that_nobody_knows_are_told_with_their_class_and_who_said_them_first(tmp_path: Path) -> None:
    told = "2: ERROR blockfarm: cannot flush extent 77 to volume {vol-9}: sector map refused\n"
    verdict = verdict_of(tmp_path, header() + steps(30) + told + ending())
    assert (verdict.outcome, [c.cause for c in verdict.roots]) == ("incident", ["unclassified"])
    assert "first on rank 2 / node003" in verdict.summary
    assert "of the class storage" in verdict.summary
    assert "sector map refused" in verdict.summary


def test_a_store_that_was_waited_for_and_then_failed_is_broken_and_no_host_s_own(tmp_path: Path) -> None:
    silent = "1: node002 kernel: nfs: server 10.40.0.5 not responding, timed out\n"
    failed = "".join(
        f'{r}: Traceback (most recent call last):\n{r}:   File "save.py", line 3, in write\n'
        f"{r}: OSError: [Errno 5] Input/output error\n"
        for r in (0, 2)
    )
    found = verdict_of(tmp_path, header() + steps(20) + silent + failed + spoken(EXIT, [0, 2], 1) + ending(1))
    assert [(c.cause, c.hosts) for c in found.roots] == [("storage-error", [])]
