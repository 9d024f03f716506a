"""Tools: any command, run as an argument list, in a place without the truth; whatever it does, the scoring goes on."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from trackwalker.errors import UsageError
from trackwalker.lab.scenario import Truth
from trackwalker.lab.scoring.cases import Case, build, make_suite
from trackwalker.lab.scoring.score import grade_answer
from trackwalker.lab.scoring.tools import Answer, ask, check_tool, find_verdict


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "a place; with 'odd' $names" / "8308-JAX-x"
    path.mkdir(parents=True)
    return path


def script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "tool.py"
    path.write_text(body)
    return f"{sys.executable} {path} {{job}}"


@pytest.mark.starts_processes
def test_the_job_is_one_argument_whatever_its_name(tmp_path: Path, job: Path) -> None:
    body = "import json, os, sys; print(json.dumps({'outcome': sys.argv[1:], 'cwd': os.getcwd()}))"
    answer = ask(script(tmp_path, body), job, 30)
    assert answer.verdict == {"outcome": [str(job)], "cwd": str(job.parent)}


@pytest.mark.starts_processes
def test_there_is_no_shell(tmp_path: Path, job: Path) -> None:
    body = "import json, sys; print(json.dumps({'outcome': sys.argv[1:]}))"
    answer = ask(script(tmp_path, body) + " '$HOME' ; touch gone", job, 30)
    assert answer.verdict == {"outcome": [str(job), "$HOME", ";", "touch", "gone"]}
    assert not (job.parent / "gone").exists()


def test_an_agent_may_talk_before_it_answers() -> None:
    text = (
        'I looked at {this} and {"that": 1}.\n```json\n{"outcome": "healthy", "causes": [{"cause": "x"}]}\n```\nDone.'
    )
    assert find_verdict(text) == {"outcome": "healthy", "causes": [{"cause": "x"}]}
    assert find_verdict("nothing {here}") is None


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("print('no idea')", "no verdict on stdout, exit code 0"),
        ("import sys; sys.exit('it broke')", "exit code 1: it broke"),
        ("print('[1, 2]')", "no verdict"),
    ],
)
def test_no_verdict_says_why(tmp_path: Path, job: Path, body: str, says: str) -> None:
    answer = ask(script(tmp_path, body), job, 30)
    assert answer.verdict is None
    assert says in answer.error


@pytest.mark.starts_processes
def test_a_tool_that_is_too_slow_ends_with_all_it_started(tmp_path: Path, job: Path) -> None:
    pid = tmp_path / "pid"
    (tmp_path / "tool.sh").write_text(f"sleep 60 &\necho $! > {pid}\nwait\n")
    answer = ask(f"sh {tmp_path / 'tool.sh'} {{job}}", job, 2)
    assert "no answer within 2 s" in answer.error
    child = int(pid.read_text())
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _lives(child):
        time.sleep(0.05)
    assert not _lives(child)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("tool", ["true", "baseline:oracle", "true '{job}", "no-such-program {job}"])
def test_a_tool_that_cannot_be_run_is_refused_first(tool: str) -> None:
    with pytest.raises(UsageError):
        check_tool(tool)


@pytest.mark.parametrize("said", [{"outcome": "x", "causes": ["y"]}, {"outcome": "x", "causes": 3}])
def test_a_verdict_of_another_form_is_no_verdict(said: dict[str, object]) -> None:
    grade, error = grade_answer(Answer(said, 1.0), Truth(outcome="healthy"))
    assert not grade.passed
    assert error.startswith("not a verdict")


def test_the_truth_is_not_where_the_tool_looks(tmp_path: Path) -> None:
    _, truth = build(Case("container-pull-fail", "tune"), tmp_path / "case")
    assert truth.roots[0].cause == "container-pull-fail"
    assert list(tmp_path.iterdir()) == [tmp_path / "case"]
    assert [p.name for p in (tmp_path / "case").iterdir()] == ["outputs"]
    for path in (tmp_path / "case").rglob("*"):
        assert "truth" not in path.name
        assert "container-pull-fail" not in str(path)
        if path.is_file():
            assert b"must_not" not in path.read_bytes()


def test_suites() -> None:
    smoke = make_suite(["smoke"], None, False)
    assert len(smoke) == len({c.family for c in smoke}) == 12
    full = make_suite(["full"], None, False)
    assert len(full) == 5 * len({c.family for c in full})
    assert {c.split for c in full} >= {"tune"}
    apart = [make_suite([split], 1) for split in ("tune", "test")]
    assert [{c.split for c in cases} for cases in apart] == [{"tune"}, {"test"}]
    assert sum(map(len, apart)) * 5 == len(full)
    derived = make_suite(["gpu-thermal-throttle"], 2, True)
    assert {c.variant for c in derived} >= {"", "drop-metrics", "clock-shift", "nodes-96", "gpu-h200", "live-cut"}
    with pytest.raises(UsageError, match="no scenario 'meteor'"):
        make_suite(["meteor"], None, False)


def test_a_baseline_is_a_tool(tmp_path: Path) -> None:
    job, _ = build(Case("container-pull-fail", "tune"), tmp_path / "case")
    grep = ask("baseline:grep", job, 30).verdict
    assert grep is not None
    assert [c["cause"] for c in grep["causes"]] == ["container-pull-fail"]
    healthy = ask("baseline:always-healthy", job, 30).verdict
    assert healthy is not None
    assert healthy["outcome"] == "healthy"
