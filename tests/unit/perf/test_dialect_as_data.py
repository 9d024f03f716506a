"""A trainer that nobody knew, added as data: everybody who reads step lines reads its lines, without a line of code."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.triage import triage
from trackwalker.job.dialects import VARIABLE, DialectError, dialects, document
from trackwalker.job.layout import Job
from trackwalker.launch.code.bundle import build_agent
from trackwalker.node.collectors.training import parse_step_line
from trackwalker.perf.analysis.report import Options, analyse
from trackwalker.perf.throughput.utilisation import logged_flops
from trackwalker.sweep.executors.jobs import measure
from trackwalker.sweep.model import Trial
from trackwalker.watch.detect.logtail import LogTail

INVENTED = {
    "name": "quillmaster",
    "needles": ["~quill~ finished"],
    "pattern": r"~quill~ finished (?P<step>\d+) in (?P<ms>NUM) ms, (?P<tgs>NUM) tok, (?P<tflops>NUM) TF, "
    r"cost (?P<loss>NUM)",
    "first": 0,
    "counts_on": True,
}
STEPS = 60


@pytest.fixture
def invented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"dialects": [INVENTED]}))
    monkeypatch.setenv(VARIABLE, str(path))


def line(step: int, rank: int = 0) -> str:
    return f"{rank}: ~quill~ finished {step} in {500 + step % 3}.5 ms, 2000.5 tok, 12.25 TF, cost {9 - step / 50:.3f}"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    log = tmp_path / "77-JAX-toy.log"
    lines = ["JOB_ID=77", "NNODES=2", "JOB_NODELIST=node[1-2]", "0: Using (GB) 3.5 / 10.0 (35%) on cuda:0"]
    lines += [line(step, rank) for step in range(STEPS) for rank in (0, 1)]
    lines += [" JOB SUMMARY ".center(60, "="), "  Wall:   1m 0s", "  Status: SUCCESS (exit 0)"]
    log.write_text("\n".join(lines) + "\n")
    return Job("77", log, None)


def test_without_the_list_nobody_reads_it(job: Job) -> None:
    assert parse_step_line(line(3)) is None
    assert triage(job).progress.last_step is None


def test_triage_and_diagnose_read_it(invented: None, job: Job) -> None:
    seen = triage(job)
    assert (seen.index.steps.dialect, seen.progress.last_step, seen.progress.first_step) == (
        "quillmaster",
        STEPS - 1,
        0,
    )
    assert seen.progress.step_time_s == pytest.approx(0.5015, abs=0.001)
    assert seen.progress.tgs == 2000.5
    assert seen.index.steps.last_by_rank == {0: STEPS - 1, 1: STEPS - 1}
    verdict = diagnose(job).verdict
    assert (verdict.progress.last_step, verdict.progress.step_time_s) == (STEPS - 1, seen.progress.step_time_s)


def test_the_watcher_reads_it(invented: None, job: Job) -> None:
    assert job.log is not None
    records = LogTail(job.log).new(1000.0)
    assert [r["step"] for r in records if r["rank"] == 1] == list(range(STEPS))
    assert records[0]["seconds"] == pytest.approx(0.5005)


def test_perf_and_sweep_read_it(invented: None, job: Job) -> None:
    report = analyse(job, Options(with_traces=False))
    assert report.throughput is not None
    assert report.throughput.steps == STEPS
    assert [r.rank for r in report.throughput.ranks] == [0, 1]
    facts = triage(job).record.facts
    logged = logged_flops(facts, None)
    assert logged.tflops == pytest.approx(12.25 * 0.5015, rel=0.01)
    held = facts.memory_before_steps()
    assert held is not None
    assert (held.used, held.limit, held.device) == (3.5, 10.0, "cuda")
    result = measure(job, Trial("a", "toy", ("node1", "node2")), "completed", "")
    assert (result.status, result.step_s) == ("ok", report.throughput.step_s), result.why


def test_the_agent_reads_it_from_the_zipapp_of_its_job(invented: None, tmp_path: Path) -> None:
    told = parse_step_line(line(7))
    assert told is not None
    assert (told["step"], told["seconds"], told["tokens_per_s"]) == (7, 0.5015, 2000.5)
    target = build_agent(tmp_path / "agent.pyz")
    with zipfile.ZipFile(target) as archive:
        assert json.loads(archive.read("trackwalker/job/dialects.json")) == document()
        assert "trackwalker/job/dialects.py" in archive.namelist()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("{", "Expecting"),
        ("[]", "dialects"),
        ('{"dialects": [{"name": "x"}]}', "needs name, needles and pattern"),
        ('{"dialects": [{"name": "x", "needles": ["longer than seven"], "pattern": "("}]}', "x"),
        ('{"dialects": [{"name": "x", "needles": ["short"], "pattern": "a"}]}', "at least 7"),
        ('{"dialects": [{"name": "x", "needles": ["longer than seven"], "pattern": "(?P<size>a)"}]}', "size"),
    ],
)
def test_a_list_that_cannot_be_used_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, says: str
) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(given)
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(DialectError, match=says) as caught:
        dialects()
    assert "\n" not in str(caught.value)
