"""Slurm's accounting tells apart what the log cannot; here by a stand-in `sacct` that prints what the real one does."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from triage_logs import ending, header, steps
from typer.testing import CliRunner

from trackwalker.cli.app import app
from trackwalker.diagnose.triage import Triage, triage
from trackwalker.job.layout import Job
from trackwalker.record import accounting

pytestmark = pytest.mark.starts_processes

TERM = "slurmstepd: error: *** STEP 77.0 ON node001 CANCELLED AT 2026-02-11T16:00:49 ***\n"
CANCELLED = TERM + ending(143, "CANCELLED (scancel / SIGTERM)", "0h 5m 0s")
TRES = "billing=384,cpu=384,gres/gpu=32,mem=8000000M,node=4"


def row(
    state: str, step: str = "", exit_code: str = "0:15", elapsed: int = 300, name: str = "JAX-toy",
    nodes: str = "node[001-004]", start: float = 1770825649,
) -> str:  # fmt: skip
    end = "Unknown" if state in ("RUNNING", "PENDING") else f"{start + elapsed:.0f}"
    return f"77{step}|{name}|{state}|{exit_code}|{start:.0f}|{end}|{elapsed}|120|4|{nodes}|{TRES}"


@pytest.fixture
def sacct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is first on PATH; tests put an executable `sacct` there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    tools = tmp_path / "tools"  # not all of /usr/bin: a real sacct may be there
    tools.mkdir()
    for name in ("sh", "cat", "sleep"):
        (tools / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    monkeypatch.setenv("PATH", f"{folder}:{tools}")
    return folder / "sacct"


def install(tool: Path, script: str) -> None:
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


def answers(tool: Path, *rows: str) -> None:
    install(tool, f"echo \"$@\" >> {tool}.calls\ncat <<'END'\n" + "\n".join(rows) + "\nEND")


def read(tmp_path: Path, text: str, job_id: str = "77") -> Triage:
    log = tmp_path / f"{job_id}-JAX-toy.log"
    log.write_text(text)
    return triage(Job(job_id, log, None))


@pytest.mark.parametrize(
    ("state", "cause", "status"),
    [
        ("CANCELLED by 1000", "user-cancel", "cancelled"),
        ("TIMEOUT", "walltime", "cancelled"),
        ("DEADLINE", "walltime", "cancelled"),
        ("PREEMPTED", "preempted", "cancelled"),
        ("NODE_FAIL", "node-death", "failed"),
        ("BOOT_FAIL", "node-death", "failed"),
        ("OUT_OF_MEMORY", "oom-host", "failed"),
    ],
)
def test_d25_d33_one_sigterm_many_reasons(tmp_path: Path, sacct: Path, state: str, cause: str, status: str) -> None:
    """D-25, D-33: the launcher's words are the same for all of them, and every terminal state is known."""
    answers(sacct, row(state), row("CANCELLED", ".batch"), row("CANCELLED", ".0"))
    found = read(tmp_path, header() + steps(20) + CANCELLED)
    assert found.accounting.ended
    assert not found.accounting.live
    assert found.primary is not None
    assert (found.primary.cause, found.status) == (cause, status)
    assert "sacct: State=" in found.primary.text + found.primary.why
    others = {f.role for f in found.roles.findings if f.id == "cancelled" and f is not found.primary}
    assert others <= {"note"}
    assert not any(s.startswith("ask the scheduler") for s in found.next)


def test_a_step_killed_for_memory_inside_a_failed_job(tmp_path: Path, sacct: Path) -> None:
    answers(sacct, row("FAILED", exit_code="1:0"), row("OUT_OF_MEMORY", ".0", "0:125"))
    found = read(tmp_path, header() + steps(20) + "2: NODE_EXIT host=node003 exit=137\n" + ending(wall="0h 5m 0s"))
    assert found.primary is not None
    assert found.primary.cause == "oom-host"
    assert found.accounting.steps == ("OUT_OF_MEMORY",)


def test_a_hang_that_met_the_time_limit_stays_a_hang(tmp_path: Path, sacct: Path) -> None:
    answers(sacct, row("TIMEOUT", elapsed=7200))
    found = read(tmp_path, header() + steps(20) + TERM)
    assert found.primary is not None
    assert (found.primary.id, found.primary.cause) == ("hang", "collective-hang")
    assert [f.id for f in found.roles.findings if f.role == "mechanism"] == ["walltime"]
    assert found.progress.wall_s == 7200  # no summary: the scheduler knows
    assert (found.goodput.gpus, found.goodput.gpus_from) == (32, "sacct")


def test_gpu_hours_from_the_allocation(tmp_path: Path, sacct: Path) -> None:
    answers(sacct, row("FAILED", elapsed=3600))
    found = read(
        tmp_path, header(enable_checkpointing=True) + steps(20) + "1: CUDA out of memory\n" + ending(wall="1h 0m 0s")
    )
    assert sum(p.gpu_hours or 0 for p in found.goodput.parts) == pytest.approx(32.0, abs=0.05)
    assert sum(p.share or 0 for p in found.goodput.parts) == pytest.approx(1.0, abs=0.002)


@pytest.mark.parametrize(
    ("text", "begun", "status"),
    [
        (header() + steps(20), 250, "running"),  # 210 s of steps in 250 s
        (header() + steps(20), 7200, "hanging"),
        (header(), 900, "initialising"),
        (header(), 7200, "hanging"),
    ],
)  # fmt: skip
def test_the_scheduler_says_it_runs(tmp_path: Path, sacct: Path, text: str, begun: int, status: str) -> None:
    answers(sacct, row("RUNNING", elapsed=begun, start=time.time() - begun))
    found = read(tmp_path, text)
    assert found.accounting.live
    assert found.status == status


@pytest.mark.parametrize(("state", "status"), [("FAILED", "unknown-death"), ("COMPLETED", "completed-short"), ("NODE_FAIL", "failed"), ("PREEMPTED", "cancelled"), ("PENDING", "indeterminate")])  # fmt: skip # noqa: E501
def test_no_summary_but_the_scheduler_knows(tmp_path: Path, sacct: Path, state: str, status: str) -> None:
    answers(sacct, row(state, elapsed=240))
    assert read(tmp_path, header() + steps(20)).status == status


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (None, "no sacct here"),
        ("echo 'sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection' >&2\necho 'sacct: error: Problem talking to the database: Connection refused' >&2\nexit 1", "Problem talking to the database"),  # noqa: E501
        ("exit 3", "code 3"),
        ("exit 0", "does not know this job"),
        ("echo 'nonsense|x'", "does not know this job"),
    ],
)  # fmt: skip
def test_a_scheduler_that_cannot_be_asked_proves_nothing(
    tmp_path: Path, sacct: Path, script: str | None, why: str
) -> None:
    if script is not None:
        install(sacct, script)
    found = read(tmp_path, header() + steps(20))
    assert found.accounting.state == "unknown"
    assert why in found.accounting.why_unknown
    assert not found.accounting.ended
    assert found.status == "indeterminate"  # never "finished"
    assert read(tmp_path, header() + steps(20) + CANCELLED).status == "cancelled"


def test_a_slow_scheduler_is_not_waited_for(tmp_path: Path, sacct: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "_TIMEOUT_S", 0.2)
    install(sacct, "exec sleep 30")
    began = time.perf_counter()
    assert "did not answer" in read(tmp_path, header() + steps(20)).accounting.why_unknown
    assert time.perf_counter() - began < 20


def test_another_clusters_job_of_the_same_number(tmp_path: Path, sacct: Path) -> None:
    answers(sacct, row("COMPLETED", name="other", nodes="cpu[1-2]"))
    found = read(tmp_path, header() + steps(20))
    assert "another job" in found.accounting.why_unknown
    assert found.status == "indeterminate"


def test_only_slurm_ids_are_asked_for_and_only_when_in_doubt(tmp_path: Path, sacct: Path) -> None:
    answers(sacct, row("FAILED"))
    calls = Path(f"{sacct}.calls")
    read(tmp_path, header() + steps(99) + ending(0))
    read(tmp_path, header() + steps(20), "local_20260101_101010_abcd")
    assert not calls.exists()
    read(tmp_path, header() + steps(20))
    assert calls.read_text().split()[:4] == ["-D", "-P", "--noheader", "-j"]


def test_a_requeued_job_has_a_row_for_every_run(tmp_path: Path, sacct: Path) -> None:
    answers(sacct, row("NODE_FAIL", elapsed=600), row("CANCELLED by 1000", elapsed=400))
    text = header() + steps(40) + header() + steps(60, first=41) + CANCELLED
    found = read(tmp_path, text)
    assert (found.accounting.restarts, found.accounting.total_elapsed_s) == (1, 1000)
    assert found.progress.wall_s == 1000
    assert found.progress.attempts == 2


def test_times_without_the_number_format(tmp_path: Path, sacct: Path) -> None:
    answers(sacct, row("FAILED").replace("1770825649", "2026-02-11T16:00:49"))
    found = read(tmp_path, header() + steps(20))
    assert found.accounting.start is not None
    assert abs(found.accounting.start - 1770825649) < 15 * 3600  # sacct prints local time


def test_all_jobs_are_asked_for_at_once(tmp_path: Path, sacct: Path) -> None:
    for number in (75, 76, 77):
        (tmp_path / f"{number}-JAX-toy.log").write_text(header() + steps(20))
    answers(sacct, row("PREEMPTED"))
    shown = CliRunner().invoke(app, ["triage", "--all", "-w", str(tmp_path)]).output
    assert shown.count("Preempted") == 1
    assert shown.count("indeterminate") == 2
    calls = Path(f"{sacct}.calls").read_text().splitlines()
    assert len(calls) == 1
    assert sorted(calls[0].split()[4].split(",")) == ["75", "76", "77"]


@pytest.mark.parametrize(("exit_code", "prolog"), [("0:53", True), ("1:0", False)])
def test_a_job_that_left_no_log(tmp_path: Path, sacct: Path, exit_code: str, prolog: bool) -> None:
    """ST-1, FC-01: there is nothing to read, but the scheduler knows."""
    (tmp_path / "77-JAX-toy").mkdir()
    answers(sacct, row("FAILED", exit_code=exit_code, elapsed=1))
    result = CliRunner().invoke(app, ["triage", "77", "-w", str(tmp_path)])
    said = str(result.exception)
    assert "has no log" in said
    assert "sacct: State=FAILED" in said
    assert ("died in the prolog" in said) == prolog
