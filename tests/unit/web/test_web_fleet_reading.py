"""Jobs are read and diagnosed in the background: once, by readers that may die, and listed by when they ran."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fleet_workspace import make_run
from starlette.testclient import TestClient
from web_client import accusing, make_job, web_app, workspace_of

from trackwalker.diagnose.verdict import Verdict
from trackwalker.diagnose.views.asked import Diagnosis
from trackwalker.diagnose.views.story import Story
from trackwalker.errors import EvidenceError
from trackwalker.fleet import reading
from trackwalker.fleet.examine import Examined, Examiner, GivenUp, state_of
from trackwalker.fleet.index import JobIndex
from trackwalker.fleet.source import Plain
from trackwalker.job.layout import Job
from trackwalker.web.data import workspace as workspaces

HTML = {"Accept": "text/html"}


def test_a_finished_job_is_diagnosed_once_in_the_background_whoever_looks(tmp_path: Path) -> None:
    """On 0.1.0 the list said what the log says until somebody opened the job."""
    root = workspace_of(2, tmp_path / "outputs")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    calls: list[str] = []

    def engine(job: Job, given_up: GivenUp) -> Verdict:
        calls.append(job.id)
        if job.id == "9001":
            raise EvidenceError("nothing to read")
        assert not given_up()
        return accusing(job.id, "x")

    kept = tmp_path / "kept"

    def worker() -> tuple[JobIndex, Examiner]:
        source = Plain(root, kept)
        index = JobIndex(source, kept)
        index.refresh()
        return index, Examiner(index, source._examined, engine)

    index, examiner = worker()
    assert {row.badge_from for row in index.rows()[0]} == {""}
    polite = Examiner(index, Examined(root, kept), engine, busy=lambda: True)
    assert not polite.step()  # somebody waits for a verdict: what nobody waits for stands back
    while examiner.step():
        index.refresh()
    rows = {row.id: row for row in index.rows()[0]}
    assert (rows["9000"].badge, rows["9000"].badge_from, rows["9000"].hosts) == (
        "RDMA degradation",
        "verdict",
        ("node002",),
    )
    assert rows["9001"].badge_from == ""  # nothing came of it, and it is not tried again
    index.close()
    again, second = worker()
    assert not second.step()
    assert again.row("9000") == rows["9000"]
    again.close()
    assert len(calls) == 2
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    with next(root.glob("9000-*.log")).open("a") as log:
        log.write("more\n")
    third = Examined(root, kept)
    assert third.verdict(again.job("9000")) is None  # type: ignore[arg-type]  # of other evidence
    [file] = kept.glob("verdicts/9000.json")
    file.chmod(0o666)
    assert Examined(root, kept).mark("9000") == ""


def test_who_opens_a_job_that_is_being_diagnosed_waits_for_that_diagnosis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, made = threading.Event(), threading.Event(), []

    def slowly(work: Any, job: Job, *_: Any, **__: Any) -> Diagnosis:
        begun.set()
        assert go_on.wait(10.0)
        made.append(job.id)
        return Diagnosis(accusing(job.id, "x"), Story(), [])

    monkeypatch.setattr(workspaces, "apart", slowly)
    monkeypatch.setattr(workspaces, "diagnose_job", lambda *_, **__: pytest.fail("diagnosed a second time"))
    workspace = workspaces.WebWorkspace(workspace_of(1, tmp_path / "outputs"), tmp_path / "kept")
    job = workspace.job("9000")
    with ThreadPoolExecutor(2) as pool:
        background = pool.submit(workspace.diagnosis, job, lambda: False)
        assert begun.wait(10.0)
        assert not workspace.busy
        visit = pool.submit(workspace.diagnosis, job)
        go_on.set()
        assert visit.result(10.0).verdict == background.result(10.0).verdict
    assert made == ["9000"]
    assert workspace.known_diagnosis(job) is not None  # whoever comes later has it at once


def test_a_verdict_made_while_a_job_went_on_is_not_its_last_word(tmp_path: Path) -> None:
    root = workspace_of(1, tmp_path / "outputs")
    source = Plain(root, tmp_path / "kept")
    index = JobIndex(source, tmp_path / "kept")
    source._examined.keep("9000", "live hanging x", json.loads(accusing("9000", "x").to_json()))
    index.refresh()
    row = index.row("9000")
    assert row is not None
    assert row.badge_from == "verdict"
    worker = Examiner(index, source._examined, lambda job, _: accusing(job.id, "x"))
    assert worker.waiting() == 1
    job = index.job("9000")
    assert job is not None
    source._examined.keep("9000", state_of(job), json.loads(accusing("9000", "x").to_json()))
    assert worker.waiting() == 0
    source._examined.keep("9000", state_of(job), None)
    index.refresh()
    assert worker.waiting() == 0  # nothing came of it: not again today
    index.close()


def test_a_reader_that_is_killed_takes_few_jobs_with_it_and_none_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = workspace_of(9, tmp_path / "outputs")

    class Deadly(ThreadPoolExecutor):
        """Whoever reads job 9004 is killed."""

        def __init__(self, workers: int, **_: Any) -> None:
            super().__init__(workers)

        def submit(self, work: Any, part: Any, answer: Any) -> Any:  # type: ignore[override]
            made: Future[Any] = Future()
            if any(job.id == "9004" for job, _ in part):
                made.set_exception(BrokenExecutor())
            else:
                made.set_result(work(part, answer))
            return made

    with monkeypatch.context() as patched:
        patched.setattr(reading, "ProcessPoolExecutor", Deadly)
        patched.setattr(reading, "_MANY", 1)
        index = JobIndex(Plain(root, tmp_path / "kept"), tmp_path / "kept")
        index.refresh()
        lost = {row.id for row in index.rows()[0] if not row.readable}
        index.close()
    assert "9004" in lost
    assert len(lost) < 9
    again = JobIndex(Plain(root, tmp_path / "kept"), tmp_path / "kept")  # the next start
    again.refresh()
    assert all(row.readable for row in again.rows()[0])
    again.close()


def test_a_job_is_shown_under_every_tab_that_it_belongs_to(tmp_path: Path) -> None:
    """On 0.1.0 a cancelled job that had been slow was counted as trouble only: "Cancelled 1" above seven of them."""
    from triage_logs import CANCEL, header, steps

    root = workspace_of(1, tmp_path / "outputs")
    for number in range(3):
        make_job(root, str(9100 + number), "toy")
        log = next(root.glob(f"{9100 + number}-*.log"))
        log.write_text(header(2, steps=80) + steps(39, 2) + steps(59, 2, first=40, seconds=14.0) + CANCEL)
    with TestClient(web_app(root), base_url="http://127.0.0.1") as client:
        assert client.app.state.jobs.wait(60.0)  # type: ignore[attr-defined]
        rows = {row["id"]: row for row in client.get("/jobs.json").json()["jobs"]}
        assert {row["status"] for row in rows.values()} == {"completed", "cancelled"}
        cancelled = {name for name, row in rows.items() if row["status"] == "cancelled"}
        assert {row["id"] for row in client.get("/jobs.json?state=cancelled").json()["jobs"]} == cancelled
        assert {row["id"] for row in client.get("/jobs.json?state=trouble").json()["jobs"]} == cancelled
        page = client.get("/", headers=HTML).text
        assert 'data-group="cancelled">Cancelled <span class="count">3</span>' in page


def test_a_list_shows_when_a_job_ran_and_not_when_a_file_was_touched(tmp_path: Path) -> None:
    """On 0.1.0 it showed the time at which the log was last written, copied or unpacked."""
    root = tmp_path / "outputs"
    folder = make_run(root, "1", ["n1"], age_s=5 * 86400.0)
    began = json.loads((folder / "run.json").read_text())["created"]
    next(root.glob("1-*.log")).touch()
    with TestClient(web_app(root), base_url="http://127.0.0.1") as client:
        assert client.app.state.jobs.wait(60.0)  # type: ignore[attr-defined]
        page = client.get("/", headers=HTML).text
        assert client.get("/jobs.json").json()["jobs"][0]["started"] == pytest.approx(began)
    assert time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(began)) in page
    assert time.strftime("%Y-%m-%d", time.gmtime()) not in page
