"""What readers of the tour and agents complained of, each repaired by its cause."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from triage_logs import ending, header, steps, triage_text

from trackwalker.agent.standing_now import by_small_log
from trackwalker.cli.answers.diagnose import print_evidence
from trackwalker.cli.common.job_row import row_of
from trackwalker.diagnose.causes.examine import Examination
from trackwalker.diagnose.causes.examine import TestResult as Result
from trackwalker.diagnose.causes.playbook import Playbook
from trackwalker.diagnose.causes.playbook import Test as Question
from trackwalker.diagnose.deviations import changed as changing
from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.episodes.symptoms import Span
from trackwalker.diagnose.triage import triage
from trackwalker.diagnose.views.asked import state_of
from trackwalker.errors import UsageError
from trackwalker.fleet.examine import Examined
from trackwalker.fleet.examine import state_of as state_of_files
from trackwalker.job.layout import Job
from trackwalker.job.shorthand import known_start, started
from trackwalker.launch.job_state import Standing, standings
from trackwalker.perf.analysis.report import Options, analyse
from trackwalker.record import steps as step_table
from trackwalker.record.timeline import Timeline
from trackwalker.report.perf.view import summary
from trackwalker.report.terminal import render
from trackwalker.report.triage import render as render_triage
from trackwalker.sweep.batch.request import room_in_run
from trackwalker.sweep.executors.jobs import measure
from trackwalker.sweep.model import Trial
from trackwalker.telemetry.quality import Check

QUIET = Options(with_traces=False)


def job_of(folder: Path, text: str, name: str = "77-JAX-toy.log") -> Job:
    (folder / name).write_text(text)
    return Job(name.partition("-")[0], folder / name, None)


def slowed(folder: Path) -> Job:
    rng = np.random.default_rng(3)
    seconds = np.concatenate([10 + 0.02 * rng.standard_normal(60), 13 + 0.02 * rng.standard_normal(60)])
    lines = "".join(steps(n, 2, n, float(s)) for n, s in enumerate(seconds))
    return job_of(folder, header(2, steps=400) + lines + ending(143, "CANCELLED (scancel)", "0h 30m 0s"))


# One slow phase, one first step of it, the same words everywhere.
def test_an_onset_lies_in_the_step_that_began_then() -> None:
    ends = np.array([100.0, 200.4, 300.0, 430.0])  # clocks let step 2 begin before the end of step 1
    timeline = Timeline(np.arange(4), ends, np.array([100.0, 100.0, 100.0, 130.0]), np.ones(4), True, "x")
    assert timeline.step_at(200.0) == 2
    assert timeline.step_at(150.0) == 1
    assert (timeline.step_at(0.0), timeline.step_at(430.0)) == (0, 4)


def test_perf_names_the_slow_phase_of_triage_and_diagnose(tmp_path: Path) -> None:
    job = slowed(tmp_path)
    report, seen = analyse(job, QUIET), triage(job)
    (phase,) = [p for p in seen.record.phases if p.slow]
    assert report.throughput is not None
    assert [(x.first_step, x.last_step) for x in report.throughput.levels if x.slow] == [(60, 119)]
    told = dict(summary(report))
    assert told["slow phases"].startswith(f"steps {phase.first_step} to {phase.last_step} at 13")
    assert "levels" not in told
    (fix,) = [f for f in report.fixes if f.rule == "slow-phases"]
    assert "steps 60 to 119" in fix.evidence


# The log is opened by its reader alone.
@contextmanager
def opened(path: Path) -> Iterator[list[str]]:
    found: list[str] = []
    _HOOKS.append(lambda name: found.append(name) if name == str(path) else None)
    try:
        yield found
    finally:
        _HOOKS.clear()


_HOOKS: list[Callable[[str], None]] = []
_ADDED: list[bool] = []


@pytest.fixture
def watching() -> None:
    """An audit hook cannot be taken away again: one for all."""
    if not _ADDED:
        _ADDED.append(True)
        sys.addaudithook(lambda event, args: [h(str(args[0])) for h in _HOOKS] if event == "open" else None)  # type: ignore[func-returns-value]


MEMORY = "0: \tUsing (GB) 78.5 / 178.5 (43.9%) on rocm:0\n"
COMPILED = "0: Total memory size: 90.0 GB, Output size: 30.0 GB, Temp size: 20.0 GB, Argument size: 30.0 GB\n"
COUNTED = "0: Total TFLOPs: 500.25 \n0:  split as 92.31% learnable weight flops and 7.69% attention flops\n"


@pytest.mark.usefixtures("watching")
def test_perf_and_sweep_open_the_log_no_more_often_than_the_record_does(tmp_path: Path) -> None:
    text = header(2, steps=40, per_device_batch_size=4) + MEMORY + COMPILED + COUNTED + steps(39, 2)
    job = job_of(tmp_path, text + "1: \tUsing (GB) 80.5 / 178.5 (45%) on rocm:1\n" + ending(0))
    assert job.log is not None
    with opened(job.log) as once:
        triage(job)
    for work in (
        lambda: analyse(job, QUIET),
        lambda: room_in_run(job, "per_device_batch_size", None),
    ):
        with opened(job.log) as often:
            work()
        assert len(often) <= len(once), work
    facts = triage(job).record.facts
    assert (facts.step_tflops, facts.attention_share, facts.compiled_gb) == (500.25, pytest.approx(0.0769), 20.0)
    before = facts.memory_before_steps()
    assert before is not None
    assert (before.used, before.limit, before.device) == (78.5, 178.5, "rocm")
    assert measure(job, Trial("a", "toy", ("node001", "node002")), "completed", "").memory_gb == 80.5


# One status rule; starts of the run, not of its files.
def test_jobs_has_the_records_word_where_no_scheduler_knows(tmp_path: Path) -> None:
    job = job_of(tmp_path, header(steps=1000) + steps(40))
    (seen,) = standings([job])
    assert seen.state == "unknown"
    listed = by_small_log(job, seen)
    assert listed.state == triage(job).status == "indeterminate"
    assert (listed.ended, listed.exit) == (False, None)


def test_a_start_is_the_runs_and_not_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "8308-JAX-toy"
    block = folder / "prometheus" / "01HZZZZZZZZZZZZZZZZZZZZZZZ"
    block.mkdir(parents=True)
    log = tmp_path / "8308-JAX-toy.log"
    log.write_text(header() + steps(5) + ending(0, wall="1h 2m 3s"))
    os.utime(log, (1e9, 1e9))
    job = Job("8308", log, folder)
    assert known_start(job) is None
    assert started(job) == 1e9
    (block / "meta.json").write_text(json.dumps({"minTime": 1_772_000_500_000}))
    assert started(job) == 1_772_000_500.0
    (folder / "artifact").write_text("../.artifacts/artifact_1772000400_8308")  # a copy without links
    assert started(job) == 1_772_000_400.0
    (folder / "artifact").unlink()
    (folder / "artifact").symlink_to("../.artifacts/artifact_1772000401_8308")
    assert started(job) == 1_772_000_401.0
    row = row_of(job, Standing("completed", True, 0))
    assert (row.started, row.elapsed) == (1_772_000_401.0, 3723.0)


def test_jobs_reads_steps_of_any_trainer(tmp_path: Path) -> None:
    line = " iteration {n:8d}/     500 | elapsed time per iteration (ms): 2500.0 | lm loss: 2.5E+00 |\n"
    job = job_of(tmp_path, "".join(line.format(n=n) for n in range(1, 41)))
    row = row_of(job, Standing("failed", True, 1))
    assert (row.step, row.step_s) == (40, 2.5)


# Nothing is lost by a run that is done.
@pytest.mark.parametrize(("last", "lost"), [(99, None), (79, 19)])
def test_steps_are_lost_only_by_a_run_that_was_cut_off(tmp_path: Path, last: int, lost: int | None) -> None:
    text = header(steps=100, enable_checkpointing=True, checkpoint_period=20) + steps(last)
    job = job_of(tmp_path, text + "0: Saved a checkpoint at step 60\n" + ending(0 if last == 99 else 1))
    assert triage(job).progress.last_checkpoint == 60
    assert triage(job).progress.steps_lost == lost
    assert diagnose(job).verdict.progress.steps_lost == lost


# A line that only tells of an end is not called a Python exception.
def test_the_end_of_a_task_is_called_that(tmp_path: Path) -> None:
    text = header() + "".join(
        f"{r}: E0224 19:21:00.0 1 pjrt.cc:1] Execution of replica 0 failed: RESOURCE_EXHAUSTED: Out of memory while "
        f"trying to allocate 213.40GiB.\n{r}: NODE_EXIT host=node00{r + 1} exit=1\n"
        for r in range(4)
    )
    text += "".join(f"srun: error: node00{r + 1}: task {r}: Exited with exit code 1\n" for r in range(4)) + ending()
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    render_triage(triage_text(tmp_path, text), console)
    said = console.export_text()
    assert "main failure: GPU out of memory (oom-gpu)" in said
    above = said.split("srun: error")[0].strip().splitlines()[-2]
    assert above == "consequence: A process ended with an error (subprocess-fail), 4 times"


# Evidence has numbers that can be looked up.
def test_a_piece_of_evidence_is_printed_by_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = diagnose(slowed(tmp_path)).verdict
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    render(verdict, console, "77")
    (line,) = [x for x in console.export_text().splitlines() if "--evidence" in x]
    name = line.split()[-1]
    print_evidence(verdict, name, False)
    item = next(e for e in verdict.evidence if e.id == name)
    assert capsys.readouterr().out.startswith(f"{name}  {item.says}\n    {item.kind}: {item.source}\n")
    print_evidence(verdict, "all", True)
    assert [e["id"] for e in json.loads(capsys.readouterr().out)["evidence"]] == [e.id for e in verdict.evidence]
    with pytest.raises(UsageError, match="no evidence 'e999' in this verdict: it has e1 to"):
        print_evidence(verdict, "e999", False)


# What was not measured is not clean.
@pytest.mark.parametrize(
    ("missing", "evidence", "state"),
    [(["hw_oom_kills_total"], [], "untestable"), ([], [], "clean"), (["hw_oom_kills_total"], ["e1"], "clean")],
)
def test_a_cause_without_its_metric_is_not_clean(missing: list[str], evidence: list[str], state: str) -> None:
    told = Question(id="log-says", role="require", group="killed", signature=["oom-host"])
    counted = Question(
        id="kernel-killed", role="require", group="killed", query="x", metrics=["hw_oom_kills_total"],
        detector="minority", says="s", clean="nothing was killed",
    )  # fmt: skip
    book = Playbook(id="oom-host", title="t", symptoms=["failed"], tests=[told, counted], summary="s")
    results = [Result(told, False, evidence=evidence), Result(counted, None, missing=missing)]
    if evidence:
        results.append(Result(counted, False, evidence=evidence))
    examination = Examination(book, results)
    assert examination.state == "clean"
    assert state_of(examination) == state


# A window behind the last step of a hang is looked at, and an empty one says so.
def hung(recorded_until: float) -> Any:
    ends = 1000.0 + 10.0 * np.arange(1, 61)
    timeline = Timeline(np.arange(60), ends, np.full(60, 10.0), np.ones(60), True, "x")
    telemetry = SimpleNamespace(range=lambda: (1000.0, recorded_until))
    return SimpleNamespace(timeline=timeline, telemetry=telemetry, end_of_work=recorded_until + 60.0, masks=None)


def test_a_window_behind_the_last_step_is_taken_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing, "masked_spans", lambda case: ())
    case = hung(recorded_until=3000.0)
    episode = changing._asked(case, "1970-01-01T00:30:00Z", None)  # 1800; the last step ended at 1600
    assert episode.window == (Span(1800.0, 3000.0),)
    assert episode.reference == (Span(1060.0, 1800.0),)
    whole = changing._asked(case, "59", None)
    assert whole.window == (Span(1590.0, 3000.0),)
    with pytest.raises(UsageError, match="its steps end at 1970-01-01T00:26:40Z"):
        changing._asked(case, "1970-01-01T01:30:00Z", None)
    assert "the recording goes from" in changing._why_nothing(case, [Span(1590.0, 1600.0)])


# A verdict that a server made in the background stands in the table of jobs as well.
def test_jobs_shows_a_verdict_that_was_kept_and_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "ws"
    folder.mkdir()
    job = slowed(folder)
    made = diagnose(job).verdict
    Examined(folder).keep(job.id, state_of_files(job), json.loads(made.to_json()))
    assert row_of(job, Standing("cancelled", True)).verdict == made.outcome


# An empty table clears nobody of whom there was nothing to compare.
def test_changed_names_frozen_exporters_and_hosts_without_the_metrics_of_the_others() -> None:
    hosts = ["n1", "n2", "n3", "n4"]
    there = {"hw_gpu_power_watts": hosts[:3], "hw_procs_running": hosts, "ckpt_save_seconds": ["n1"]}
    rows = [SimpleNamespace(labels={"__name__": m, "host": h}) for m, names in there.items() for h in names]
    telemetry = SimpleNamespace(range=lambda: (0.0, 100.0), instant=lambda query, at: rows)
    frozen = Check("ghost-data", False, ("n2",), "n2: the exporter repeated the same values")
    case: Any = SimpleNamespace(checks=[frozen, Check("gaps", True)], hosts=hosts, telemetry=telemetry)
    lacks = "n4 never reported hw_gpu_power_watts, which most hosts did"
    assert changing._unseen(case, hosts) == [frozen.says, lacks]
    assert changing._unseen(case, ["n1"]) == []


# Who reads all ranks and who reads one takes the steps from the same place.
def test_an_event_file_with_a_step_more_than_the_log_is_not_the_fuller() -> None:
    def place(counts: dict[int, int], source: str) -> step_table._Place:
        rank = np.repeat(list(counts), list(counts.values()))
        step = np.concatenate([np.arange(n) for n in counts.values()])
        table = step_table._table(rank, step, source, seconds=np.ones(len(step)))
        return step_table._Place(table, int(step.max()))

    events = place({0: 148}, step_table.EVENTS)
    for log in ({0: 147}, {0: 147, 1: 149}):
        best = step_table._best({step_table.LOG: place(log, step_table.LOG), step_table.EVENTS: events})
        assert (best.source, len(best.lead())) == (step_table.LOG, 147)
    short = place({0: 100}, step_table.LOG)
    assert step_table._best({step_table.LOG: short, step_table.EVENTS: events}).source == step_table.EVENTS
