"""One record of a run: what different commands say about the same job is the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from record_agreement import slow_phases, told_slow
from triage_logs import CANCEL, HEARTBEAT, ending, header, steps

from trackwalker.diagnose.compare.compare import compare
from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.triage import triage
from trackwalker.errors import NotAJobError
from trackwalker.fleet.rows import of_triage
from trackwalker.job.journal import encode
from trackwalker.job.layout import Job
from trackwalker.job.run import RankPlace, RunRecord
from trackwalker.perf.analysis.diff import diff
from trackwalker.perf.analysis.report import Options, analyse, headline

QUIET = Options(with_traces=False)


def job_of(folder: Path, text: str, name: str = "77-JAX-toy.log") -> Job:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return Job(name.partition("-")[0], folder / name, None)


def timed(seconds: list[float], nodes: int = 2) -> str:
    """Step lines of every rank with these durations."""
    return "".join(steps(i, nodes, i, s) for i, s in enumerate(seconds))


def noisy(level: float, n: int, seed: int = 0) -> list[float]:
    return [float(v) for v in level * (1 + 0.004 * np.random.default_rng(seed).standard_normal(n))]


LIMIT = CANCEL.replace(" ***\n", " DUE TO TIME LIMIT ***\n")
LOGS = {
    "walltime": header(steps=1000) + timed(noisy(10, 40)) + LIMIT,
    "cancelled": header(steps=1000) + timed(noisy(10, 40)) + CANCEL,
    "no end": header(steps=1000) + timed(noisy(10, 40)),
    "cut off": header(steps=1000) + timed(noisy(10, 40)) + "0: completed step: 40, seco",
    "one slow step": header(steps=60) + timed([*noisy(10, 40), 60.0, *noisy(10, 19)]) + ending(0),
    "done": header(steps=40) + timed(noisy(10, 40)) + ending(0),
    "done, no summary": header(steps=40) + timed(noisy(10, 40)),
    "short": header(steps=400) + timed(noisy(10, 40)) + ending(0),
    "died": header(steps=400) + timed(noisy(10, 40)) + "1: NODE_EXIT host=node002 exit=137\n" + ending(1),
    "teardown": header(steps=40) + timed(noisy(10, 40)) + ending(134, "Training FAILED (exit=134)"),
    "slowed down": header(steps=400) + timed([*noisy(10, 60), *noisy(13, 60, 1)]) + ending(143, "CANCELLED (scancel)"),
    "saves": header(steps=100, enable_checkpointing=True, checkpoint_period=10)
    + timed([40.0 if i % 10 == 1 else s for i, s in enumerate(noisy(10, 100))])
    + ending(0, wall="0h 25m 0s"),
    "evaluates": header(steps=100, eval_interval=20)
    + timed([50.0 if i and i % 20 == 0 else s for i, s in enumerate(noisy(10, 100))])
    + ending(0, wall="0h 25m 0s"),
    "silent for hours": header(steps=400) + timed(noisy(10, 40)) + ending(143, "CANCELLED (scancel)", "5h 0m 0s"),
    "never began": header(steps=400)
    + "0: Memstats: After params initialized:\n"
    + ending(143, "CANCELLED", "3h 0m 0s"),
    "restarted": header(steps=100)
    + timed(noisy(10, 40))
    + "== Training BEGIN (no timeout) ==\n"
    + "".join(steps(i, 2, i, 10.0) for i in range(20, 100))
    + ending(0, wall="0h 25m 0s"),
}


@pytest.mark.parametrize("name", LOGS)
def test_every_command_says_the_same_of_a_log(tmp_path: Path, name: str) -> None:
    job = job_of(tmp_path, LOGS[name])
    seen, diagnosis = triage(job), diagnose(job)
    verdict, row = diagnosis.verdict, of_triage(seen, None)
    slow = slow_phases(seen.record.phases)
    assert told_slow(diagnosis) == slow
    assert (seen.pattern.name in ("constant-drop", "phased", "gradual")) == bool(slow)
    assert {seen.status, verdict.status, row.status} == {seen.status}
    assert {seen.progress.last_step, verdict.progress.last_step, row.last_step} == {seen.progress.last_step}
    assert {seen.progress.step_time_s, verdict.progress.step_time_s, row.step_s} == {seen.progress.step_time_s}
    assert {seen.record.nodes, verdict.job.nodes, row.nodes} == {seen.record.nodes}
    if seen.progress.step_time_s is None:
        return
    report = analyse(job, QUIET)
    assert report.throughput is not None
    assert (report.job.status, report.job.last_step, report.job.nodes) == (
        seen.status,
        seen.progress.last_step,
        seen.record.nodes,
    )
    assert report.throughput.step_s == seen.progress.step_time_s
    assert f"{seen.progress.step_time_s:.4g} s a step (median of" in headline(report)


def test_a_time_limit_that_the_log_names_is_named_by_triage_and_diagnose(tmp_path: Path) -> None:
    job = job_of(tmp_path, LOGS["walltime"])
    primary = triage(job).primary
    assert primary is not None
    assert primary.cause == "walltime"
    assert [c.cause for c in diagnose(job).verdict.roots] == ["walltime"]


def test_a_single_slow_step_is_seen_by_both(tmp_path: Path) -> None:
    job = job_of(tmp_path, LOGS["one slow step"])
    assert triage(job).pattern.name == "blip"
    verdict = diagnose(job).verdict
    assert "transient-blip" in [c.cause for c in verdict.causes] or "slow step" in verdict.summary


def test_error_words_in_quoted_data_start_no_case(tmp_path: Path) -> None:
    quoted = "".join(f'0: sample text="{line[3:]}"\n' for line in HEARTBEAT.splitlines())
    job = job_of(tmp_path, header(steps=40) + timed(noisy(10, 20)) + quoted + "".join(
        steps(i, 2, i, 10.0) for i in range(20, 40)) + ending(0))  # fmt: skip
    seen, verdict = triage(job), diagnose(job).verdict
    assert seen.index.facts.heartbeat is None
    assert (seen.primary, verdict.causes) == (None, [])
    assert verdict.outcome == "healthy"


def test_a_run_that_ended_well_and_was_not_recorded_is_well(tmp_path: Path) -> None:
    verdict = diagnose(job_of(tmp_path, LOGS["done"])).verdict
    assert (verdict.status, verdict.outcome) == ("completed", "healthy")
    assert "Something is wrong" not in verdict.summary


@pytest.mark.parametrize(
    "text", ["box\n", "127.0.0.1 localhost\n::1 ip6-localhost\n", "a,b\n1,2\n", "# Notes\nall fine\n"]
)
def test_a_file_that_is_no_log_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    job = job_of(tmp_path, text, "hostname")
    for read in (triage, diagnose):
        with pytest.raises(NotAJobError, match="no log of a training run") as caught:
            read(job)
        assert "\n" not in str(caught.value)
        assert caught.value.exit_code == 2


@pytest.mark.parametrize("recorded", [True, False])
def test_what_only_a_recording_can_decide_is_left_to_it_by_name(tmp_path: Path, recorded: bool) -> None:
    found = job_of(tmp_path, LOGS["no end"])
    folder = tmp_path / found.id
    (folder / "prometheus" if recorded else folder).mkdir(parents=True)
    seen = triage(replace(found, dir=folder))
    assert seen.status == "indeterminate"
    assert seen.next[0].startswith("trackwalker diagnose JOB" if recorded else "ask the scheduler")


def test_a_log_without_an_end_is_never_healthy(tmp_path: Path) -> None:
    for name in ("no end", "cut off"):
        verdict = diagnose(job_of(tmp_path / name, LOGS[name])).verdict
        assert verdict.status == "indeterminate"
        assert verdict.outcome != "healthy"


def test_a_b_that_hung_is_never_healthy_in_a_comparison(tmp_path: Path) -> None:
    good = job_of(tmp_path / "a", LOGS["done"], "70-JAX-toy.log")
    for name in ("silent for hours",):
        bad = job_of(tmp_path / "b", LOGS[name], "71-JAX-toy.log")
        for one in (good, job_of(tmp_path / "c", LOGS[name], "72-JAX-toy.log")):
            found = compare(one, bad).verdict
            assert found.outcome != "healthy", found.summary


def test_perf_diff_and_compare_use_the_same_steps_and_say_what_they_left_out(tmp_path: Path) -> None:
    told = {"enable_checkpointing": True, "checkpoint_period": 25}
    slow = [30.0 if i % 25 == 1 else s for i, s in enumerate([*noisy(10, 42, 1), *noisy(11.5, 107, 2)])]
    a = job_of(
        tmp_path / "a", header(steps=149, **told) + timed(noisy(10, 149)) + ending(0, wall="0h 30m 0s"), "70-x.log"
    )
    b = job_of(tmp_path / "b", header(steps=149, **told) + timed(slow) + ending(0, wall="0h 35m 0s"), "71-x.log")
    compared, speed = compare(a, b).aligned, diff(analyse(a, QUIET), analyse(b, QUIET)).speed
    assert compared is not None
    assert speed is not None
    assert speed.change == pytest.approx(compared.difference.change)
    assert (speed.steps_a, speed.steps_b) == (len(compared.steps_a), len(compared.steps_b))
    assert (speed.left_out_a, speed.left_out_b) == (compared.left_out_a, compared.left_out_b)
    assert speed.steps_b + sum(speed.left_out_b.values()) == 149
    assert speed.left_out_b["checkpoint"] >= 12
    assert speed.change == pytest.approx(-0.095, abs=0.02)
    assert diff(analyse(a, QUIET), analyse(b, QUIET)).regression(2.0)
    assert "left out" in diff(analyse(a, QUIET), analyse(b, QUIET)).summary


def test_two_ranks_on_one_machine_are_one_node_with_one_step_time_everywhere(tmp_path: Path) -> None:
    folder = tmp_path / "local_1-JAX-tiny"
    seconds = noisy(0.2, 60)
    job = job_of(
        tmp_path,
        "JOB_ID=local_1\nNNODES=2\nJOB_NODELIST=box-r0,box-r1\n0: Config param steps: 60\n"
        + timed(seconds)
        + ending(0, wall="0h 0m 20s"),
        f"{folder.name}.log",
    )
    folder.mkdir()
    record = RunRecord(
        id="local_1", name="JAX-tiny", model="tiny", scheduler="local", trainer="tiny", created=1000.0, argv=[],
        command=[], workspace=str(tmp_path),
        ranks=[RankPlace(rank=r, host=f"box-r{r}", node="box") for r in (0, 1)],
    )  # fmt: skip
    record.save(folder / "run.json")
    with (folder / "progress.jsonl").open("wb") as file:
        for step, (took, end) in enumerate(zip(seconds, 1002.0 + np.cumsum(seconds), strict=True)):
            for rank in (0, 1):
                told = {"phase": "train", "rank": rank, "step": step, "seconds": took + 0.001 * rank, "t": end}
                file.write(encode(told))
    job = Job("local_1", job.log, folder)
    seen, verdict, report = triage(job), diagnose(job).verdict, analyse(job, QUIET)
    row = of_triage(seen, None)
    assert (seen.record.nodes, seen.record.ranks) == (1, 2)
    assert {verdict.job.nodes, report.job.nodes, row.nodes} == {1}
    assert report.job.ranks == 2
    assert report.throughput is not None
    step_time = seen.progress.step_time_s
    assert {verdict.progress.step_time_s, report.throughput.step_s, row.step_s} == {step_time}
    assert step_time == pytest.approx(0.2005, abs=0.001)
    assert report.throughput.seconds.median == pytest.approx(0.2, abs=0.002)
