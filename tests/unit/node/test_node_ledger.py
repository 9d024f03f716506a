"""The node ledger: agents write facts, the reader weighs them, `nodes` and `submit` tell."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from trackwalker.cli.jobs.nodes import nodes, suspect_lines
from trackwalker.job.run import RankPlace, RunRecord
from trackwalker.launch.ledger import incidents, note, of_end, path_of, suspects, to_exclude, wilson
from trackwalker.node.stages.incidents import Incident, Scribe

DAY = 86400.0


def fail(check: str, text: str = "wrong") -> dict[str, str]:
    return {"id": check, "status": "fail", "text": text}


def lost(host: str, job: str, age: float = 0.0) -> Incident:
    return Incident(time.time() - age, host, job, 0, "node-lost", "node-lost", "never said how its ranks ended")


def test_an_agent_writes_down_which_check_failed_where(tmp_path: Path) -> None:
    scribe = Scribe(tmp_path, "8308", 1)
    bad = {"host": "n3", "results": [fail("ecc", "2 uncorrected errors"), {"id": "thp", "status": "warn", "text": ""}]}
    scribe.stage_failed({0: {"host": "n1", "results": []}, 2: bad})
    scribe.no_word("preflight", ["n4"])
    first, second = incidents(tmp_path)
    assert (first.host, first.job, first.attempt, first.what, first.line) == (
        "n3", "8308", 1, "ecc", "2 uncorrected errors",
    )  # fmt: skip
    assert (second.host, second.kind) == ("n4", "no-word")


def test_the_end_of_a_run_names_the_first_failure_and_lost_nodes(tmp_path: Path) -> None:
    first = {"rank": 5, "host": "n2", "exit": 139, "ended": 1.0, "cause": "killed by SIGSEGV"}
    events = [
        {"kind": "rank-exit", "rank": 0, "host": "n1", "data": {"exit": 143}},
        {"kind": "run-end", "data": {"exit": 139, "missing": ["n7"], "first": first}},
    ]
    Scribe(tmp_path, "8308", 0).run_ended(events)
    found = {(i.host, i.kind, i.exit) for i in incidents(tmp_path)}
    assert found == {("n2", "first-failure", 139), ("n7", "node-lost", None)}


def test_a_run_without_trouble_makes_no_ledger(tmp_path: Path) -> None:
    Scribe(tmp_path, "8308", 0).run_ended([{"kind": "run-end", "data": {"exit": 0, "missing": []}}])
    assert not path_of(tmp_path).exists()


def test_a_ledger_that_cannot_be_written_costs_only_its_lines(tmp_path: Path) -> None:
    (tmp_path / ".ledger").write_text("a file where the folder should be")
    Scribe(tmp_path, "8308", 0).no_word("preflight", ["n1"])


def test_two_jobs_make_a_suspect_and_one_job_twice_does_not(tmp_path: Path) -> None:
    note(tmp_path, [lost("n1", "1"), lost("n2", "1"), Incident(time.time(), "n2", "1", 1, "no-word", "pull")])
    assert to_exclude(tmp_path) == []
    note(tmp_path, [lost("n1", "2")])
    assert [s.host for s in to_exclude(tmp_path)] == ["n1"]


def test_one_hardware_fault_is_enough(tmp_path: Path) -> None:
    Scribe(tmp_path, "8308", 0).stage_failed({1: {"host": "n2", "results": [fail("ecc")]}})
    Scribe(tmp_path, "8308", 0).stage_failed({2: {"host": "n3", "results": [fail("gpus_free")]}})
    assert [s.host for s in to_exclude(tmp_path)] == ["n2"]
    assert [s.host for s in suspects(tmp_path)] == ["n2", "n3"]


def test_old_incidents_and_a_programs_own_exits_do_not_count(tmp_path: Path) -> None:
    note(tmp_path, [lost("n1", "1", 8 * DAY), lost("n1", "2")])
    exits = [Incident(time.time(), "n2", job, 0, "first-failure", "exited", exit=1) for job in ("1", "2", "3")]
    note(tmp_path, exits)
    assert to_exclude(tmp_path) == []
    assert {s.host: s.why for s in suspects(tmp_path)}["n2"] == "may be the program's own doing"


def test_the_same_fact_is_noted_once_and_damage_is_passed_over(tmp_path: Path) -> None:
    note(tmp_path, [lost("n1", "1")])
    note(tmp_path, [lost("n1", "1")])
    with path_of(tmp_path).open("a") as file:
        file.write('{"v":1,"host":"n9"}\nnot json\n')
    note(tmp_path, [lost("n1", "2")])
    assert [i.job for i in incidents(tmp_path)] == ["1", "2"]


def test_nodes_lists_and_suggests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes(as_json=False, workspace=tmp_path)
    assert "no node was in trouble" in capsys.readouterr().out
    note(tmp_path, [lost("n1", "1"), lost("n1", "2"), lost("n5", "2")])
    nodes(as_json=False, workspace=tmp_path)
    said = capsys.readouterr().out
    assert "n1  leave out: in trouble in 2 of its 2 jobs within 7 days (95 % interval 34% to 100%)" in said
    assert said.splitlines()[-1] == "suggested: --exclude=n1"
    nodes(as_json=True, workspace=tmp_path)
    answer = json.loads(capsys.readouterr().out)
    assert [(n["host"], n["exclude"]) for n in answer["nodes"]] == [("n1", True), ("n5", False)]


def test_submit_warns_of_a_suspect_that_the_job_may_get(tmp_path: Path) -> None:
    note(tmp_path, [lost("n1", "1"), lost("n1", "2")])
    (line,) = suspect_lines(tmp_path, None, None)
    assert line.startswith("warning: n1 may fail again")
    assert suspect_lines(tmp_path, "n[1-4]", None) == [line]
    assert suspect_lines(tmp_path, "n[2-4]", None) == []
    assert suspect_lines(tmp_path, None, "n[1-2]") == []


def test_a_node_that_the_scheduler_lost_counts_and_what_all_share_does_not(tmp_path: Path) -> None:
    for job in ("1", "2", "3"):
        note(tmp_path, of_end(job, 0, "node-fail", ["n3"], time.time()))
    assert [s.host for s in to_exclude(tmp_path)] == ["n3"]
    assert of_end("4", 0, "timeout", ["n3"], time.time()) == []
    everybody = {i: {"host": f"m{i}", "results": [fail("gpus")]} for i in range(4)}
    Scribe(tmp_path, "5", 0).stage_failed(everybody)
    note(tmp_path, [Incident(time.time(), f"k{i}", "6", 0, "check-failed", "ecc") for i in range(5)])
    assert [s.host for s in suspects(tmp_path)] == ["n3"]


def test_two_old_incidents_weigh_less_than_two_of_today(tmp_path: Path) -> None:
    note(tmp_path, [lost("n1", "1", 6 * DAY), lost("n1", "2", 6.5 * DAY), lost("n2", "3", DAY), lost("n2", "4")])
    assert [s.host for s in to_exclude(tmp_path)] == ["n2"]


def record(workspace: Path, job: str, hosts: list[str], age: float = 0.0) -> None:
    """A job that ran on these hosts."""
    folder = workspace / f"{job}-JAX-x"
    folder.mkdir(parents=True)
    ranks = [RankPlace(rank=at, host=host, node=host) for at, host in enumerate(hosts)]
    RunRecord(
        id=job, name="JAX-x", model="x", scheduler="slurm", trainer="tiny", created=0, argv=[], command=[],
        workspace=".", ranks=ranks,
    ).save(folder / "run.json")  # fmt: skip
    os.utime(folder / "run.json", (time.time() - age,) * 2)


def test_a_share_has_an_interval_and_old_jobs_weigh_less(tmp_path: Path) -> None:
    for job in range(1, 11):
        record(tmp_path, str(job), ["n1", "n2", "n3"], age=0.3 * DAY * job)
    note(tmp_path, [lost("n1", "1"), lost("n1", "2"), lost("n1", "3")])
    (n1,) = suspects(tmp_path)
    assert n1.exclude
    assert n1.rate is not None
    assert (n1.rate.jobs, n1.rate.of) == (3, 10)
    assert 0.0 < n1.rate.low < 0.3 < n1.rate.high < 1.0
    assert n1.why.startswith("in trouble in 3 of its 10 jobs within 7 days (95 % interval ")


def test_where_every_host_is_in_trouble_nobody_is_left_out(tmp_path: Path) -> None:
    """Two NODE_FAILs each, one after the other: a switch or a power feed, not four nodes."""
    hosts = ["n1", "n2", "n3", "n4"]
    for job in range(1, 9):
        record(tmp_path, str(job), hosts)
        note(tmp_path, of_end(str(job), 0, "node-fail", [hosts[job % 4]], time.time()))
    found = suspects(tmp_path)
    assert {s.host for s in found} == set(hosts)
    assert [s.host for s in found if s.exclude] == []
    assert all("as often as others (25%)" in s.why for s in found)


@pytest.mark.parametrize(("part", "of", "low", "high"), [(0, 3, 0.0, 0.56), (3, 3, 0.44, 1.0), (10, 100, 0.055, 0.174)])
def test_wilsons_interval(part: int, of: int, low: float, high: float) -> None:
    assert wilson(part, of) == pytest.approx((low, high), abs=0.01)
    assert wilson(0, 0) == (0.0, 1.0)
