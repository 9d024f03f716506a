"""Verdicts from a log and nothing else: whose end nobody tells, and a cancel that is nobody's wish."""

from __future__ import annotations

from pathlib import Path

from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.verdict import Verdict
from trackwalker.job.resolve import resolve
from triage_logs import ending, header, steps

CLOSED = "{rank}: node00{number}:9:9 [3] socket.cc:915 NCCL WARN socketProgress: Connection closed by remote peer\n"
EXIT = "{rank}: NODE_EXIT host=node00{number} exit={code}\n"
NODE_FAILED = (
    "srun: error: Node failure on node004\n"
    "slurmstepd: error: *** STEP 77.0 ON node001 CANCELLED AT 2026-02-11T16:00:49 DUE TO NODE FAILURE ***\n"
)


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
