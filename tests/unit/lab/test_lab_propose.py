"""A disagreement becomes a case that fails until the engine learns it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from helpers import HEADER, make_job, step_line

from trackwalker.errors import UsageError
from trackwalker.job.resolve import resolve
from trackwalker.lab.propose import PLAYBOOKS, propose, read_truth, wrong_in
from trackwalker.lab.scenario import Truth

TRUTH = {"outcome": "expected", "roots": [{"cause": "python-exception"}]}
# What preempted runs print under submitit, in the shape of a public report; the words are ours.
PREEMPTED = """submitit WARNING (2026-07-12 04:18:45,706) - Bypassing signal SIGTERM
submitit WARNING (2026-07-12 04:18:45,881) - Caught signal SIGHUP on n7: this job is preempted.
submitit INFO (2026-07-12 04:18:45,912) - Requeued job 8308 (3 remaining timeouts)
submitit INFO (2026-07-12 04:18:45,913) - Exiting gracefully after preemption/timeout.
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    _, log = make_job(tmp_path / "outputs", "8308-JAX-a")
    lines = [*HEADER.splitlines(), *(f"0: {step_line(s)}" for s in range(30)), "0: ValueError: rope", ""]
    log.write_text("\n".join(lines))
    return log


def test_a_case_fails_until_the_engine_learns_it(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PLAYBOOKS, raising=False)
    cases = tmp_path / "cases"
    made = propose(resolve(str(log), log.parent), read_truth(json.dumps(TRUTH)), cases, "rope-1", 'the "owner" said so')
    assert "python-exception" in made.said
    assert "wrong outcome" in made.wrong
    assert wrong_in(made.case) == made.wrong
    assert made.bundle.is_file()
    assert compile(made.test.read_text(), str(made.test), "exec")
    assert 'wrong_in(Path(__file__).parent / "rope-1") == []' in made.test.read_text()
    books = tmp_path / "books"
    books.mkdir()
    # At this site trial runs end so on purpose: a cause file of one's own replaces the shipped one.
    shipped = Path(str(files("trackwalker.playbooks"))) / "python-exception.md"
    (books / shipped.name).write_text(shipped.read_text().replace("\nsymptoms:", "\noutcome: expected\nsymptoms:", 1))
    monkeypatch.setenv(PLAYBOOKS, str(books))
    assert wrong_in(made.case) == []  # learned


def test_a_truth_that_the_engine_knows_already_teaches_nothing(log: Path, tmp_path: Path) -> None:
    right = Truth(outcome="incident", roots=[{"cause": "python-exception"}])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="nothing to teach"):
        propose(resolve(str(log), log.parent), right, tmp_path / "cases", "x", "")
    assert not (tmp_path / "cases").exists()


def test_a_log_alone_can_be_a_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PLAYBOOKS, raising=False)
    alone = tmp_path / "8309.log"
    alone.write_text(PREEMPTED)
    truth = Truth(outcome="healthy")
    made = propose(resolve(str(alone), tmp_path), truth, tmp_path / "cases", "alone", "")
    assert wrong_in(made.case)


def test_what_was_proposed_once_is_learned(tmp_path: Path) -> None:
    """A real log of this shape was told as preempted by triage and abstained on by diagnose; see docs/how-to/lab.md."""
    alone = tmp_path / "8309.log"
    alone.write_text(PREEMPTED)
    truth = Truth(outcome="incident", roots=[{"cause": "preempted"}])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="nothing to teach"):
        propose(resolve(str(alone), tmp_path), truth, tmp_path / "cases", "learned", "")


@pytest.mark.parametrize(
    ("given", "family", "says"),
    [
        ("{", "x", "no truth"),
        ('{"outcome": "odd"}', "x", "no truth"),
        (json.dumps(TRUTH), "../x", "cannot name a case"),
    ],
)
def test_bad_input_is_one_line(given: str, family: str, says: str, log: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        propose(resolve(str(log), log.parent), read_truth(given), tmp_path / "cases", family, "")


@pytest.mark.starts_processes
def test_the_command_writes_a_test_that_pytest_fails(log: Path, tmp_path: Path) -> None:
    words = ["lab", "propose", str(log), "--truth", json.dumps(TRUTH), "--to", str(tmp_path / "c"), "--family", "r"]
    done = subprocess.run(
        [sys.executable, "-m", "trackwalker", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "python-exception" in done.stdout
    # Outside of this repository's settings, as a user would run it.
    argv = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path / "c")]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1, ran.stdout
    assert "wrong outcome" in ran.stdout
