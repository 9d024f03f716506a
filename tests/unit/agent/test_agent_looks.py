"""The tools that look further: lines by range, text and time; last words; small files; log lines that changed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import HEADER, make_job, step_line

from trackwalker.agent import answers
from trackwalker.agent.answers import ranges, size
from trackwalker.agent.job_files import files, rank_tails
from trackwalker.agent.looking import what_changed
from trackwalker.agent.texts import logs
from trackwalker.agent.tools import _by_tools
from trackwalker.agent.workspace import Workspace
from trackwalker.cli.answers.diagnose import diagnose as diagnose_command
from trackwalker.cli.common.say import DAMAGED
from trackwalker.cli.jobs.files import files as files_command
from trackwalker.cli.jobs.files import rank_tails as tails_command
from trackwalker.cli.jobs.logs import logs as logs_command
from trackwalker.diagnose.deviations.log_changes import Kind, _judge, log_changes
from trackwalker.diagnose.episodes.symptoms import Span
from trackwalker.errors import EvidenceError, RefusedError, UsageError
from trackwalker.record.line_clock import LineClock, template_of
from trackwalker.telemetry.query import seconds_of, too_short

BEGIN = 1_772_000_000
TOKEN = "hf_" + "Zx9" * 8


def stamp(minute: int) -> str:
    return f"2026-02-25T06:{13 + minute:02d}:20Z"  # BEGIN is 06:13:20


LINES = [
    *HEADER.splitlines(),
    *(f"{rank}: {stamp(minute)} heartbeat {minute} fine" for minute in range(20) for rank in range(4)),
    *(f"2: {stamp(minute)} retry {minute} of link to 10.0.0.{minute}" for minute in range(12, 20)),
    "2: waiting for the barrier",
    *(f"{rank}: NODE_EXIT host=n{rank} exit=143" for rank in range(4)),
]


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    directory, log = make_job(tmp_path / "outputs", "8308-JAX-a")
    log.write_text("\n".join(LINES) + "\n")
    (directory / "metrics_exporter").mkdir()
    (directory / "metrics_exporter" / "n1.log").write_text(f"scrape failed\nHF_TOKEN={TOKEN}\n")
    (directory / "provenance.json").write_text("{}")
    (directory / "prometheus").mkdir()
    (directory / "prometheus" / "lock").write_text("x")
    return Workspace(tmp_path / "outputs")


def test_lines_by_range_text_exclusion_and_from_the_end(ws: Workspace) -> None:
    first = len(HEADER.splitlines()) + 1
    shown = logs(ws, "8308", first=first, last=first + 2)
    assert [line.line for line in shown.lines] == [first, first + 1, first + 2]
    assert shown.next is None
    others = logs(ws, "8308", contains="heartbeat", exclude="2: ", newest_first=True)
    assert others.lines[0].quote.startswith("“3: ")
    assert not any("“2: " in line.quote for line in others.lines)
    with pytest.raises(UsageError, match="not both"):
        logs(ws, "8308", line=3, first=1)


def test_newest_first_goes_back_to_the_beginning_without_a_line_twice(ws: Workspace) -> None:
    seen: list[int] = []
    cursor = ""
    while True:
        part = logs(ws, "8308", contains="heartbeat", newest_first=True, cursor=cursor, max_bytes=2_000)
        assert bool(part.next) == bool(part.left)
        seen += [line.line for line in part.lines]
        cursor = part.next or ""
        if not cursor:
            break
    assert seen == sorted((n for n, line in enumerate(LINES, 1) if "heartbeat" in line), reverse=True)


def test_lines_of_a_stretch_of_time(ws: Workspace) -> None:
    shown = logs(ws, "8308", start=stamp(12), end=stamp(13), contains="retry")
    assert [line.quote.split()[2] for line in shown.lines] == ["retry", "retry"]
    late = logs(ws, "8308", start=str(BEGIN + 19 * 60), rank=2)
    assert late.lines[-2].quote == "“2: waiting for the barrier”"  # without a time of its own it has that before it
    (ws.root / "8308-JAX-a.log").write_text("no times here\n")
    with pytest.raises(EvidenceError, match="no line of this log has a time"):
        logs(ws, "8308", start=stamp(1))


def test_the_odd_rank_comes_first(ws: Workspace) -> None:
    seen = rank_tails(ws, "8308")
    assert [(g.ranks, g.count) for g in seen.groups] == [("2", 1), ("0-1,3", 3)]
    assert seen.groups[0].quote == "“waiting for the barrier”"
    assert seen.notice == answers.NOTICE


def test_small_files_are_listed_and_read_without_secrets_and_others_are_not(ws: Workspace) -> None:
    assert [row.file for row in files(ws, "8308").files] == ["metrics_exporter/n1.log"]
    shown = files(ws, "8308", file="metrics_exporter/n1.log")
    assert shown.lines[0].quote == "“scrape failed”"
    assert TOKEN not in shown.model_dump_json()
    for name in ("provenance.json", "prometheus/lock", "../8308-JAX-a.log"):
        with pytest.raises(RefusedError):
            files(ws, "8308", file=name)
    (ws.root / "8308-JAX-a" / "link").symlink_to("/etc/passwd")
    with pytest.raises(RefusedError, match="link that leaves"):
        files(ws, "8308", file="link")


def test_the_commands_say_the_same(ws: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    job = str(ws.root / "8308-JAX-a")
    files_command(job, "metrics_exporter/n1.log")
    said = capsys.readouterr().out
    assert "scrape failed" in said
    assert TOKEN not in said
    tails_command(job, as_json=True)
    assert json.loads(capsys.readouterr().out)["groups"][0]["ranks"] == [2]
    log = {"follow": False, "rank": None, "lines": 3, "workspace": ws.root}
    assert logs_command("8308", contains="retry", newest=True, as_json=True, **log) == 0  # type: ignore[arg-type]
    found = json.loads(capsys.readouterr().out)
    assert (len(found["lines"]), found["more"]) == (3, 5)
    assert "retry 19" in found["lines"][0]["text"]


def test_kinds_of_lines_that_came_went_or_changed_their_rate(ws: Workspace) -> None:
    job = ws.job("8308")
    case: Any = SimpleNamespace(job=job, timeline=None)
    window, rest = Span(BEGIN + 720, BEGIN + 1200), Span(BEGIN, BEGIN + 719)
    found = log_changes(case, [window], [rest], None)
    assert next((r.kind, r.inside, r.ranks) for r in found.rows) == ("new", 8, [2])
    assert not any("heartbeat" in r.example for r in found.rows)  # as often as before
    assert [r.example.split()[1] for r in log_changes(case, [window], [rest], {0}).rows] == ["NODE_EXIT"]
    silent = _judge(Kind("t", "e", 1, inside=0, outside=60), 0.5)
    assert silent is not None
    assert silent.kind == "gone"
    assert _judge(Kind("t", "e", 1, inside=0, outside=6), 0.5) is None  # three were expected: chance


def test_a_step_line_is_a_clock_where_lines_have_no_time() -> None:
    timeline: Any = SimpleNamespace(steps=np.array([5, 6]), ends=np.array([100.0, 110.0]))
    clock = LineClock(timeline)
    assert clock.at(b"before") is None
    assert clock.at(f"0: {step_line(5)}".encode()) == 100.0
    assert clock.at(b"something else") == 100.0
    assert clock.at(f"0: {step_line(6)}".encode()) == 110.0
    assert template_of("3: lost 12 of 0x3f packets at 10:22:01") == "lost # of # packets at #"


def test_ranks_in_words() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert ranges([]) == ""


def test_a_rate_over_too_short_a_range_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry: Any = SimpleNamespace(metrics=lambda: {"hw_x_total"})
    monkeypatch.setattr("trackwalker.telemetry.query.scrape_interval", lambda *_: 30.0)
    [said] = too_short(telemetry, "sum(rate(hw_x_total[1m]))")
    assert said.endswith("use at least [120s]")
    assert too_short(telemetry, "rate(hw_x_total[2m])") == []
    assert too_short(telemetry, "avg_over_time(hw_x_total[1m])") == []
    assert seconds_of("1h30m") == 5400


def test_advice_names_tools_instead_of_commands() -> None:
    assert _by_tools("trackwalker diagnose JOB: why") == "the tool diagnose: why"
    assert _by_tools("run `trackwalker tsdb query 8308`") == "run the tool query_metrics"
    assert _by_tools("trackwalker resume 8308") == "trackwalker resume 8308"  # no tool stands for it


def test_pages_say_how_much_is_left(ws: Workspace) -> None:
    made = answers.page(
        list("abcdef"), "1", 7_500, lambda part, on: answers.PlaybookAnswer(body="".join(part), next=on), most=2
    )
    assert (made.body, made.next, made.left) == ("bc", "3", "3 of 6")
    assert size(made) <= 7_500


def test_without_metrics_the_log_is_compared_and_without_steps_nothing_can_be(tmp_path: Path, ws: Workspace) -> None:
    directory, log = make_job(tmp_path / "outputs", "8311-JAX-a")
    (directory / "artifact").symlink_to(f"../.artifacts/artifact_{BEGIN}_8311")
    steps = [f"{rank}: {step_line(s)}" for s in range(60) for rank in range(2)]
    steps += [line for s in range(60, 120) for line in (f"0: {step_line(s)}", f"1: {step_line(s)}", "1: link retries")]
    end = ["== Training END (70s) ==", " JOB SUMMARY ".center(65, "="), "  Nodes:  2", "=" * 65, "0: left over"]
    log.write_text("\n".join([*HEADER.splitlines(), *steps, *end]) + "\n")
    seen = what_changed(ws, "8311")
    assert (seen.metrics, seen.changes) == (0, [])
    assert "no metric was recorded" in (seen.hint or "")
    told = " ".join(line.quote for line in seen.log)
    assert "link retries" in told
    assert "left over" in told
    assert not [words for words in ("END", "SUMMARY", "Nodes", "====") if words in told]  # every run ends so
    _, log = make_job(tmp_path / "outputs", "8312-JAX-a")
    log.write_text(HEADER)
    with pytest.raises(EvidenceError, match="neither metrics nor steps"):
        what_changed(ws, "8312")


def test_the_tests_of_one_cause_are_asked_for_by_its_name(ws: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    workspace = ws.root
    assert diagnose_command("8308", tests=True, cause="user-cancel", as_json=True, workspace=workspace) == DAMAGED
    told = json.loads(capsys.readouterr().out)
    assert [e["cause"] for e in told["asked"]] + list(told["not_asked"]) == ["user-cancel"]
    with pytest.raises(UsageError, match="no cause 'odd' is known"):
        diagnose_command("8308", tests=True, cause="odd", workspace=workspace)
    with pytest.raises(UsageError, match="--cause is for --tests"):
        diagnose_command("8308", cause="user-cancel", workspace=workspace)
