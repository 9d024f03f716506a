"""Rows of many jobs: read once, kept in Parquet, made again from the job directories, and asked questions."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from web_client import ACCUSED, BROKEN, accusing, log_of, make_job, workspace_of, write_ledger

from trackwalker.cli.jobs import list as listing
from trackwalker.fleet import questions, reading
from trackwalker.fleet.index import JobIndex
from trackwalker.fleet.rows import JobRow, packed, unpacked
from trackwalker.fleet.scan import TURNS, Written, newest, scan
from trackwalker.fleet.source import Plain
from trackwalker.job.resolve import list_jobs
from trackwalker.launch.job_state import standings
from trackwalker.launch.ledger import suspects

duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: pip install 'trackwalker[fleet]'")
from trackwalker.fleet.store import Kept, Store  # noqa: E402

EVIL = "x'); DROP TABLE jobs; --<b>"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return workspace_of(24, tmp_path / "outputs")


def index_of(root: Path) -> JobIndex:
    return JobIndex(Plain(root, root.parent / "kept"), root.parent / "kept")


def test_an_index_is_built_once_and_known_to_the_next_process(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = index_of(root)
    assert first.refresh() == 24
    before = first.rows()[0]
    first.close()
    monkeypatch.setattr(reading, "triage", lambda *_, **__: pytest.fail("a log was read again"))
    second = index_of(root)
    assert second.refresh() == 0
    assert second.rows()[0] == before
    second.close()


def test_only_what_changed_is_read_again(root: Path) -> None:
    index = index_of(root)
    index.refresh()
    with log_of(root, "9003").open("a") as log:
        log.write("more\n")
    make_job(root, "9100", "toy")
    folder = next(root.glob("9005-*/"))
    (folder / "verdict.json").write_text(accusing("9005", str(folder), "node009").to_json())
    for path in (log_of(root, "9001"), next(root.glob("9001-*/"))):
        path.rename(root.parent / path.name)
    assert index.refresh() == 3
    rows = {row.id: row for row in index.rows()[0]}
    assert len(rows) == 24
    assert "9001" not in rows
    assert rows["9005"].hosts == ("node009",)
    assert index.saved() is index.store
    assert index.store is not None
    assert index.store.ask("SELECT count(*) FROM jobs") == [(24,)]
    index.close()


def test_it_is_kept_outside_of_the_workspace_for_this_user_alone_and_rebuilt_where_it_is_damaged(root: Path) -> None:
    held = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    index = index_of(root)
    index.refresh()
    index.close()
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == held
    assert index.store is not None
    [part] = list(index.store.folder.iterdir())
    assert part.stat().st_mode & 0o077 == 0
    part.write_bytes(b"PAR1 and nothing else")
    again = index_of(root)
    assert again.refresh() == 24
    again.close()


def test_files_of_others_are_not_believed(root: Path) -> None:
    index = index_of(root)
    index.refresh()
    index.close()
    assert index.store is not None
    [part] = list(index.store.folder.iterdir())
    part.chmod(0o666)
    assert Store(root.parent / "kept").ask("SELECT count(*) FROM jobs") == [(0,)]
    part.chmod(0o600)
    assert Store(root.parent / "kept").ask("SELECT count(*) FROM jobs") == [(24,)]
    os.symlink("/etc/passwd", index.store.folder / "rows-00000099.parquet")
    assert Store(root.parent / "kept").ask("SELECT count(*) FROM jobs") == [(24,)]


def test_many_saves_become_one_file_and_the_latest_row_counts(tmp_path: Path) -> None:
    store = Store(tmp_path / "w")
    for number in range(60):
        store.put([Kept(JobRow("7", "x", says=str(number)), "s"), Kept(JobRow(str(100 + number), "y"), "s")])
    assert len(list(store.folder.iterdir())) < 30
    for each in (store, Store(tmp_path / "w")):
        assert each.ask("SELECT says FROM jobs WHERE id = '7'") == [("59",)]
        assert each.ask("SELECT count(*) FROM jobs") == [(61,)]
    store.put([Kept(JobRow("7", ""), "", gone=True)])
    assert store.ask("SELECT count(*) FROM jobs WHERE id = '7'") == [(0,)]


def test_two_writers_keep_each_others_rows(tmp_path: Path) -> None:
    one, two = Store(tmp_path / "w"), Store(tmp_path / "w")
    one.put([Kept(JobRow("1", "a"), "s")])
    two.put([Kept(JobRow("2", "b"), "s")])
    one.put([Kept(JobRow("3", "c"), "s")])
    assert sorted(one.ask("SELECT id FROM jobs")) == sorted(two.ask("SELECT id FROM jobs")) == [("1",), ("2",), ("3",)]


def test_hostile_text_is_only_text(tmp_path: Path) -> None:
    store = Store(tmp_path / "w")
    row = JobRow(
        "1", EVIL, model=EVIL, hosts=(EVIL, "half \ud800 a letter\0"), ran_on=(EVIL,), badge_tone="bad", cause=EVIL
    )
    store.put([Kept(row, "s")])
    [kept] = store.rows()
    assert kept.row.model == EVIL
    assert kept.row.hosts[0] == EVIL
    assert questions.of_host(store, EVIL)[1] == 1
    assert questions.by_model(store)[0].name == EVIL
    assert store.ask("SELECT count(*) FROM jobs") == [(1,)]


def test_what_cost_most_is_booked_once_however_many_hosts_share_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "w")
    bad = {
        "badge_tone": "bad",
        "cause": "rdma-degradation",
        "gpus": 8,
        "gpu_hours": 100.0,
        "started": 1e9,
        "model": "m",
    }
    store.put(
        [
            Kept(JobRow("1", "", hosts=("r1-n1", "r1-n2"), ran_on=("r1-n1", "r1-n2"), lost_gpu_hours=40.0, **bad), "s"),
            Kept(JobRow("2", "", hosts=("r1-n1",), ran_on=("r1-n1", "r2-n1"), lost_gpu_hours=5.0, **bad), "s"),
            Kept(JobRow("3", "", ran_on=("r2-n1",), gpu_hours=10.0, lost_gpu_hours=0.0, started=1e9, model="m"), "s"),
            Kept(JobRow("4", "", hosts=("r2-n1",), ran_on=("r2-n1",), started=1e9, badge_tone="bad", cause="x"), "s"),
        ]
    )
    hosts = {each.name: each for each in questions.by_host(store)}
    assert (hosts["r1-n1"].lost_gpu_hours, hosts["r1-n2"].lost_gpu_hours) == (25.0, 20.0)
    assert (hosts["r2-n1"].lost_gpu_hours, hosts["r2-n1"].unknown) == (None, 1)  # not known is not nothing
    racks = questions.by_rack(store)
    assert [(rack.name, rack.lost_gpu_hours) for rack in racks] == [("r1", 45.0), ("r2", None)]
    assert questions.rack_of("r12-n03") == "r12"
    assert questions.rack_of("gpu-1264") == ""
    [model] = questions.by_model(store, 0.0, 1)
    assert (model.jobs, model.troubled, model.lost_gpu_hours) == (3, 2, 45.0)
    assert [cause.name for cause in questions.by_cause(store)] == ["rdma-degradation", "x"]
    whole = questions.whole(store)
    assert (whole.jobs, whole.hosts, whole.lost_gpu_hours, whole.unknown) == (4, 3, 45.0, 1)
    assert questions.whole(store, 2e9).jobs == 0


def test_a_flaky_host_stands_out_by_its_interval_and_not_by_its_count(tmp_path: Path) -> None:
    store = Store(tmp_path / "w")
    rows = []
    for number in range(400):
        host = f"n{number % 20}"
        often = host == "n3" and number % 40 == 3  # half of its 20 jobs
        busy = number % 20 == 0 and number < 60  # three times named, in one of twenty hosts that all jobs use
        hosts = (host,) if often else ("n0",) if busy else ()
        every = ("n0", host) if host != "n0" else ("n0",)
        rows.append(Kept(JobRow(str(number), "", hosts=hosts, ran_on=every, badge_tone="bad" if hosts else ""), "s"))
    store.put(rows)
    found = {each.host: each for each in questions.flaky(store)}
    assert found["n3"].stands_out
    assert (found["n3"].named, found["n3"].ran) == (10, 20)
    assert found["n3"].low < 0.5 < found["n3"].high
    assert (found["n0"].named, found["n0"].ran) == (3, 400)
    assert not found["n0"].stands_out


def test_the_newest_jobs_are_those_of_the_whole_list(root: Path) -> None:
    (root / "9400-shared-checkpoints").mkdir()
    waiting = root / "9500-JAX-later"
    waiting.mkdir()
    (waiting / "run.json").write_text("{}")
    every = list_jobs(root)
    found, more = newest(root, 6)
    assert [job.id for job in found] == ["9500", *[job.id for job in every[:5]]]
    assert more == 24 + 1 - 6
    assert len(newest(root, 100)[0]) == 25
    assert len(scan(root)) == 26


def test_when_jobs_were_written_is_known_without_their_directories(root: Path) -> None:
    (root / "9600-JAX-no-log").mkdir()
    (root / "9700-JAX-nowhere.log").symlink_to("gone")
    told = {name: (each.names, each.changed) for name, each in scan(root).items()}
    seen = Written(root)
    assert {name: (each.names, pytest.approx(each.changed)) for name, each in seen.of(seen.times).items()} == told
    assert seen.unlogged == {"9600"}
    assert not Written(root / "none").times


def test_a_list_looks_into_as_many_jobs_as_it_shows(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(listing, "standings", lambda jobs: asked.append(len(jobs)) or standings(jobs))
    rows, more, unlooked = listing._rows(root, None, None, 5)
    assert (len(rows), more, unlooked, asked) == (5, 19, 0, [5])
    state = rows[0].seen.state
    asked.clear()
    rows, _, unlooked = listing._rows(root, frozenset({state}), None, 2)
    assert len(rows) == 2
    assert asked[0] == 2
    assert unlooked == 24 - asked[-1]
    asked.clear()
    rows, more, unlooked = listing._rows(root, frozenset({"no such state"}), None, 2)
    assert (rows, more, unlooked, asked) == ([], 0, 0, [2, 16, 24])
    rows, more, unlooked = listing._rows(root, None, time.time() + 60, 2)
    assert (rows, more, unlooked) == ([], 0, 0)
    assert len(listing._rows(root, None, None, 0)[0]) == 24


def test_nodes_are_weighed_by_the_index_as_by_the_records(root: Path) -> None:
    now = time.time()
    fact = {"host": "node002", "attempt": 1, "kind": "check-failed", "what": "network", "line": "slow"}
    write_ledger(root, {"t": now - 60, "job": "9003", **fact}, {"t": now - 90, "job": "9004", **fact})
    index = index_of(root)
    index.refresh()
    assert index.store is not None
    known = questions.ran_since(index.store, 0.0)
    assert {"9000", ACCUSED, BROKEN} <= set(known["node002"])
    [suspect] = suspects(root, now, known)
    assert suspect.rate is not None
    assert suspect.rate.of == 24
    index.close()


def test_a_packed_sparkline_keeps_its_shape() -> None:
    assert unpacked(packed((1.0, None, 0.5, 0.0))) == (1.0, None, 0.5, 0.0)
    assert unpacked("\x01~ ") == (None, None, None)


@pytest.mark.starts_processes
def test_many_jobs_are_read_in_processes_of_their_own_or_here_where_none_can_be_started(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = index_of(root)
    here.refresh()
    rows = here.rows()[0]
    monkeypatch.setattr(reading, "_MANY", 2)
    todo = [(job, None) for job in here.jobs()]
    apart = {row.id: row for _, row, _ in reading.read_rows(todo, len(todo), threading.Event())}
    assert apart == {row.id: row for row in rows if row.id != ACCUSED} | {ACCUSED: apart[ACCUSED]}

    def refuse(*_: object) -> None:
        raise RuntimeError("not before the main program is there")

    monkeypatch.setattr(reading.ProcessPoolExecutor, "submit", refuse)
    assert {row.id: row for _, row, _ in reading.read_rows(todo, len(todo), threading.Event())} == apart
    here.close()


@pytest.mark.starts_processes
def test_readers_do_not_outlive_a_server_that_was_killed(tmp_path: Path) -> None:
    root = workspace_of(30, tmp_path / "outputs")
    code = f"""
import pathlib, sys
from trackwalker.fleet import reading
from trackwalker.fleet.index import JobIndex
from trackwalker.fleet.source import Plain
if __name__ == "__main__":
    reading._MANY, reading._PART = 2, 1
    kept = pathlib.Path({str(tmp_path / "kept")!r})
    index = JobIndex(Plain(pathlib.Path({str(root)!r}), kept), kept)
    index.refresh(lambda done, of: print(done, flush=True) or sys.stdin.read())
"""
    (tmp_path / "main.py").write_text(code)
    argv = [sys.executable, str(tmp_path / "main.py")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        process.kill()
        assert process.stdout.read() == ""  # which it would wait for as long as one of them held the pipe


def test_old_jobs_are_looked_at_in_turns_and_missed_at_once(root: Path) -> None:
    index = index_of(root)
    index.refresh()
    for _ in range(2 * TURNS):
        assert index.refresh(every=False) == 0  # all ended long ago
    folder = next(root.glob("9005-*/"))
    (folder / "verdict.json").write_text(accusing("9005", str(folder), "node009").to_json())
    make_job(root, "9100", "toy")
    assert sum(index.refresh(every=False) for _ in range(TURNS)) == 2
    assert {row.id: row for row in index.rows()[0]}["9005"].hosts == ("node009",)
    log_of(root, "9001").rename(root.parent / "log")
    next(root.glob("9002-*/")).rename(root.parent / "folder")
    log_of(root, "9002").rename(root.parent / "other")
    index.refresh(every=False)
    index.refresh(every=False)
    left = {row.id for row in index.rows()[0]}
    assert "9002" not in left
    assert "9001" not in left
    assert len(left) == 23
    index.close()
