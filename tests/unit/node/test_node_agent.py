"""The agent's small parts: step lines, ranks and their signals, the closing block, what may be shipped to a node."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import step_line
from hypothesis import given
from hypothesis import strategies as st

import trackwalker
from trackwalker.job.processes import read_stat, session_members
from trackwalker.launch.code.bundle import carried
from trackwalker.node.agent.agent import Agent
from trackwalker.node.agent.outcome import summary_block, wall
from trackwalker.node.agent.ranks import Rank, describe_exit
from trackwalker.node.agent.spec import AgentSpec, RankSpec, load_spec
from trackwalker.node.collectors.training import TrainingCollector, parse_step_line
from trackwalker.node.exporter.backlog import Backlog

ODD = "$HOME `id` \"' %d ü \n \udcff"
ABSL = "I1115 00:44:52.123456 139872 metric_logger.py:123] "


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (step_line(7), {"step": 7, "seconds": 12.345, "tflops": 812.345, "tokens_per_s": 2034.567, "loss": 10.123}),
        (ABSL + step_line(7, mfu=False), {"step": 7, "tokens_per_s": 2034.567, "loss": 10.123}),
        (step_line(0, loss="nan"), {"step": 0, "loss": math.nan}),
        (step_line(1, loss="-1.5e-03"), {"loss": -0.0015}),
        (step_line(1, loss="inf") + "\r", {"loss": math.inf}),
        ("completed step: 3, seconds: 0.5, total_weights: 8, loss: 2.0, lm_loss: 1.0", {"step": 3, "loss": 2.0}),
        (step_line(1, loss="-"), {"step": 1, "seconds": 12.345}),  # a step all the same: what is no loss is not told
    ],
)
def test_step_lines(line: str, expected: dict[str, float]) -> None:
    record = parse_step_line(line)
    assert record is not None
    assert isinstance(record["step"], int)
    assert {k: str(record[k]) for k in expected} == {k: str(v) for k, v in expected.items()}
    assert "tflops" in record or "TFLOP" not in line


@pytest.mark.parametrize(
    "line",
    [
        "completed step: x",
        "completed step: 5",
        "completed step: 1, seconds: .., loss: 1",
        "completed profiler activation/deactivation step: 8, total_weights: 1, loss: 2",
        f"completed step: {'9' * 400}, seconds: 1, loss: 1",
    ],
)
def test_lines_that_only_look_like_steps(line: str) -> None:
    assert parse_step_line(line) is None


@given(
    st.lists(
        st.sampled_from(["completed step: ", "1", ", seconds: ", ".", ", loss: ", "-", "e", "nan", "inf", "9" * 40])
    ).map("".join)
)
def test_no_line_can_end_the_agent(line: str) -> None:
    parse_step_line(line)


def test_training_samples_carry_the_end_of_their_step() -> None:
    backlog = Backlog(lambda: 15.0)
    collector = TrainingCollector(backlog, "b")
    collector.feed({"phase": "train", "rank": 1, "host": "b-r1", "t": 12.5, "step": 3, "seconds": 0.5, "loss": "nan"})
    collector.feed({"phase": "compile", "rank": 0, "host": "b-r0", "t": 13.0})
    collector.feed(
        {"phase": "train", "rank": 2, "host": "b-r2", "t": 14.0, "step": 4, "loss": {"odd": 1}, "seconds": None}
    )
    samples = {f.name: f.samples for f in backlog.since(0)[0]}
    assert samples["tb_step"] == [
        ({"host": "b-r1", "rank": "1"}, 3.0, 12.5),
        ({"host": "b-r2", "rank": "2"}, 4.0, 14.0),
    ]
    assert math.isnan(samples["tb_learning_loss"][0][1])
    assert len(samples["tb_learning_loss"]) == 1  # what is no number is left out, and takes nothing with it
    assert len(samples["tb_perf_step_time_seconds"]) == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59, "59s"),
        (60, "1m 0s"),
        (184, "3m 4s"),
        (3600, "1h 0m 0s"),
        (3723, "1h 2m 3s"),
        (360_000, "100h 0m 0s"),
    ],
)
def test_wall_formats(seconds: int, text: str) -> None:
    assert wall(seconds) == text


def spec(tmp_path: Path, *ranks: list[str], **more: Any) -> AgentSpec:
    specs = [RankSpec(r, f"box-r{r}", argv) for r, argv in enumerate(ranks)]
    base = {"job_id": "local_1_1_ab", "job_name": "JAX-x", "model": "x", "node": "box"}
    return AgentSpec(**base, job_dir=tmp_path / "job", log=tmp_path / "job.log", ranks=specs, world=len(specs), **more)


def test_summary_block(tmp_path: Path) -> None:
    good = summary_block(spec(tmp_path, ["true"]), 7, 0, "").splitlines()
    assert good[0] == "========================== JOB SUMMARY =========================="
    assert good[1:6] == [
        "  Job:    local_1_1_ab (JAX-x)",
        "  Model:  x",
        "  Nodes:  1",
        "  Wall:   7s",
        "  Status: SUCCESS (exit 0)",
    ]
    assert good[6] == "=" * 65
    bad = summary_block(spec(tmp_path, ["true"]), 7, 1, "Training FAILED (exit=137)")
    assert "  Status: FAILED (exit 1) — Training FAILED (exit=137)\n" in bad
    assert "  Status: FAILED (exit 1)\n" in summary_block(spec(tmp_path, ["true"]), 7, 1, "")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited normally"),
        (3, "exited with code 3"),
        (137, "killed by SIGKILL"),
        (139, "killed by SIGSEGV"),
        (255, "exited with code 255"),
    ],
)
def test_exit_codes_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


def test_spec_round_trip(tmp_path: Path) -> None:
    before = spec(tmp_path, ["echo", "a b", "ü\n\udcff"], grace_s=2.5)
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(dataclasses.asdict(before), default=str))
    assert load_spec(path) == before


def finished(rank: Rank, seconds: float = 5.0) -> int:
    deadline = time.monotonic() + seconds
    while rank.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return rank.poll() or 0


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "kill -9 $$"], 137),
        (["/no/such/program"], 127),
        (["printf", "%s", ODD], 0),
    ],
)
def test_a_rank_by_itself(tmp_path: Path, argv: list[str], code: int) -> None:
    rank = Rank(RankSpec(0, "box-r0", argv, {"X": "1"}), tmp_path)
    rank.launch(dict(os.environ))
    assert finished(rank) == code
    assert session_members(rank.pid) == []
    if code == 0:
        assert rank.raw.read_bytes() == os.fsencode(ODD)
    rank.tidy()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.starts_processes
def test_a_rank_that_cannot_be_started_is_a_failed_rank(tmp_path: Path) -> None:
    rank = Rank(RankSpec(0, "box-r0", ["echo", "x" * 200_000]), tmp_path)  # more than one word may hold
    rank.launch(dict(os.environ))
    rank.signal(signal.SIGTERM)  # must not go to process group 0, which is ours
    assert finished(rank) == 126


@pytest.mark.starts_processes
def test_ranks_inherit_no_ignored_signal(tmp_path: Path) -> None:
    program = "import re; print('ign', re.search('SigIgn:.*([0-9a-f]{16})', open('/proc/self/status').read())[1])"
    agent = spec(tmp_path, [sys.executable, "-c", program])
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom pathlib import Path\n"
        "from trackwalker.node.agent.agent import Agent\nfrom trackwalker.node.agent.spec import load_spec\n"
        "sys.exit(Agent(load_spec(Path(sys.argv[2]))).run(adopt=False))"
    )
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(dataclasses.asdict(agent), default=str))
    src = str(Path(trackwalker.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code, src, str(path)], check=True, timeout=30)
    log = agent.log.read_text()
    ignored = int(log.split("ign ")[1].split()[0], 16)
    assert not ignored & (1 << (signal.SIGHUP - 1)), "a terminal's hang-up must end a rank that wants to hear of it"


@pytest.mark.starts_processes
def test_a_reused_process_number_is_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "30"], start_new_session=True)
    try:
        stat = read_stat(stranger.pid)
        assert stat is not None
        rank = Rank(RankSpec(0, "box-r0", ["true"]), tmp_path)
        saved = {"pid": stranger.pid, "start": stat.start - 1, "main": stranger.pid, "exit": None, "ended": None}
        rank.adopt(saved)
        assert rank.poll() == 137  # our shell is gone and left no code
        with pytest.raises(subprocess.TimeoutExpired):  # a stranger who got the number lives on
            stranger.wait(0.3)
    finally:
        stranger.kill()
        stranger.wait()


def test_the_first_of_two_failures_is_the_earlier_one(tmp_path: Path) -> None:
    """Both ended between two looks (or while no agent was there): the exit files know the order."""
    agent = Agent(spec(tmp_path, ["true"], ["true"], ["true"]))
    for rank, (age, code) in enumerate([(1.0, 143), (9.0, 0), (5.0, 3)]):
        path = tmp_path / "job" / "ranks" / f"{rank}.exit"
        path.write_text(str(code))
        os.utime(path, (time.time() - age, time.time() - age))
        agent._ranks[rank].adopt({"pid": 2**22 + 1, "start": 1, "main": 1, "exit": None, "ended": None})
    assert agent._poll_ranks()
    assert agent._first_bad is not None
    assert agent._first_bad.rank == 2
    assert agent._finish() == 3
    text = (tmp_path / "job.log").read_text()
    assert "FIRST_FAILURE rank=2 host=box-r2 exit=3 cause=exited with code 3" in text
    assert text.index("2: NODE_EXIT") < text.index("0: NODE_EXIT")


ON_NODES = list(carried(Path(__file__).parents[3] / "src" / "trackwalker"))


@pytest.mark.parametrize("path", ON_NODES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_node_code_needs_python_3_9_and_nothing_else(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    carried = {str(p.with_suffix("")).split("/src/")[1].replace("/", ".") for p in ON_NODES}
    carried |= {name.removesuffix(".__init__") for name in carried} | {"trackwalker"}
    annotations = {id(n) for node in ast.walk(tree) for a in _annotations(node) for n in ast.walk(a)}
    for node in ast.walk(tree):
        modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        modules += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            assert module in carried or module.split(".")[0] in sys.stdlib_module_names, module
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and id(node) not in annotations:
            sides = (node.left, node.right)
            assert not any(map(_is_type, sides)), f"line {node.lineno}: X | Y of types, evaluated at run time"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            words = {k.arg for k in node.keywords}
            assert not (node.func.id == "zip" and "strict" in words), f"line {node.lineno}: zip(strict=)"
            assert not (node.func.id == "dataclass" and words & {"slots", "kw_only"}), f"line {node.lineno}"
    if annotations:
        assert "from __future__ import annotations" in path.read_text()


def _annotations(node: ast.AST) -> list[ast.AST]:
    found = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    return [a for a in found if isinstance(a, ast.AST)]


def _is_type(side: ast.expr) -> bool:
    if isinstance(side, ast.Name):
        return isinstance(getattr(builtins, side.id, None), type) or (side.id[:1].isupper() and not side.id.isupper())
    return isinstance(side, ast.Subscript) or (isinstance(side, ast.Constant) and side.value is None)
