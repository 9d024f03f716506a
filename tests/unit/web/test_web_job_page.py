"""The job page as it is first sent: never waits for a diagnosis, always says what is known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the web extra is not installed")
from starlette.testclient import TestClient
from web_client import ACCUSED, BROKEN, accusing, log_of, web_app, workspace_of

from trackwalker.fleet import reading
from trackwalker.fleet.examine import state_of
from trackwalker.job.run import RunRecord
from trackwalker.telemetry.store import KERNEL
from trackwalker.web.data import workspace as workspaces
from trackwalker.web.data.job_page_work import Work

HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workspace_of(24, tmp_path_factory.mktemp("web") / "outputs")


@pytest.fixture
def client(workspace: Path) -> Iterator[TestClient]:
    with TestClient(web_app(workspace), base_url="http://127.0.0.1") as made:
        yield made


def test_a_saved_verdict_is_on_the_page_at_once(client: TestClient) -> None:
    page = client.get(f"/job/{ACCUSED}", headers=HTML).text
    assert "Throughput fell by 20 % at step 12" in page
    assert 'data-host="node002"' in page
    assert "--exclude=node002" in page
    assert "earlier verdict; looking again" in page
    assert 'data-complete="no"' in page  # it may be older than the evidence: it is looked for again


def test_a_verdict_of_the_background_is_on_the_page_at_once(client: TestClient) -> None:
    held = client.app.state.workspace  # type: ignore[attr-defined]
    job = held.job("9004")
    held.examined.keep(job.id, state_of(job), json.loads(accusing(job.id, "x", "node001").to_json()))
    page = client.get("/job/9004", headers=HTML).text
    assert 'data-host="node001"' in page
    assert "earlier verdict; looking again" in page
    held.examined.keep(job.id, "of other evidence", json.loads(accusing(job.id, "x", "node001").to_json()))
    assert 'data-host="node001"' not in client.get("/job/9004", headers=HTML).text


def test_a_verdict_whose_metrics_are_gone_says_when_all_could_be_tested(client: TestClient) -> None:
    page = client.get(f"/job/{ACCUSED}/verdict?wait=1").text
    assert "not here any more" in page
    assert "could be tested when this verdict was made." in page


def test_what_reads_large_databases_is_loaded_before_the_link_only_where_there_are_some(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    monkeypatch.setattr(workspaces, "copies_of", lambda *modules: done.append(modules))
    monkeypatch.setattr(workspaces, "compile_ahead", lambda: done.append("loaded"))
    monkeypatch.setattr(workspaces, "_compile", lambda: None)
    monkeypatch.setattr(workspaces, "is_compiled", lambda: True)
    workspaces.get_ready(workspace)
    monkeypatch.setattr(workspaces, "_holds_large", lambda root: True)
    workspaces.get_ready(workspace)
    assert done == [("trackwalker.diagnose.engine",), ("trackwalker.diagnose.engine", KERNEL), "loaded"]


def test_without_a_verdict_the_page_says_what_the_log_says(client: TestClient) -> None:
    page = client.get(f"/job/{BROKEN}", headers=HTML).text
    assert "failed at step 17" in page
    assert f"/job/{BROKEN}/log?file=" in page
    assert 'data-first="there"' in page


def test_a_long_log_is_not_waited_for(client: TestClient, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "_LONG_LOG", 10)
    asked: list[str] = []
    monkeypatch.setattr(workspaces, "apart", lambda work, *args: (asked.append(work.__name__), work(*args))[1])
    page = client.get("/job/9003", headers=HTML).text
    assert 'data-first="missing"' in page
    assert "Reading the log" in page
    client.app.state.workspace.triage(client.app.state.workspace.job("9003"))  # type: ignore[attr-defined]
    assert 'data-first="there"' in client.get("/job/9003", headers=HTML).text
    assert client.get("/job/9003/verdict?wait=1").status_code == 200
    assert asked == ["triage", "diagnose"]  # each once, and neither in the process that paints


def test_the_list_and_a_visitor_share_one_reading_of_a_log(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    whole = workspaces.triage_job
    for module, name in ((workspaces, "triage_job"), (reading, "triage")):
        monkeypatch.setattr(module, name, lambda job, **kept: (read.append(job.id), whole(job, **kept))[1])
    with TestClient(web_app(workspace), base_url="http://127.0.0.1") as client:
        jobs = client.app.state.jobs  # type: ignore[attr-defined]
        assert jobs.wait(60.0)
        assert client.get("/job/9005/verdict?wait=1").status_code == 200
        jobs.look_again()
        assert client.get("/", headers=HTML).status_code == 200
        jobs._pass()  # what is due now, as its verdict is new
    assert read.count("9005") == 1


def test_a_chart_does_not_wait_for_the_log(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The map of 1,000 hosts asked for the ranks' machines, which run.json tells, and waited 18 s for the log."""
    found = workspaces.WebWorkspace(workspace)
    monkeypatch.setattr(found, "triage", lambda job: pytest.fail("it reads the log"))
    assert Work(found).machines(found.job("9005")) == {}


def test_the_verdict_comes_as_parts_of_the_page(client: TestClient) -> None:
    answer = client.get("/job/9004/verdict?wait=1")
    assert answer.status_code == 200
    for part in ("head", "verdict", "findings", "cost"):
        assert f'data-for="{part}"' in answer.text
    assert client.get("/job/9004/verdict.json").json()["schema"] == "trackwalker.verdict/1"
    assert client.get("/job/9004/timeline.json").json()["complete"]
    assert 'data-complete="yes"' in client.get("/job/9004", headers=HTML).text


def test_settings_are_compared_with_the_run_before(client: TestClient, workspace: Path) -> None:
    log = log_of(workspace, "9008")
    log.write_text(
        log.read_text().replace("Config param steps: 30", "Config param steps: 30\n0: Config param remat_policy: full")
    )
    text = client.get("/job/9008/config?ref=9004").text
    assert "remat_policy" in text
    assert "/compare?a=9004&amp;b=9008" in text


def test_a_job_that_waits_has_a_page(client: TestClient, workspace: Path) -> None:
    folder = workspace / "9900-JAX-waiting"
    folder.mkdir()
    record = RunRecord(
        id="9900", name="JAX-waiting", model="m", scheduler="slurm", trainer="t", created=1.0, argv=[], command=[],
        workspace=str(workspace),
    )  # fmt: skip
    record.save(folder / "run.json")
    page = client.get("/job/9900", headers=HTML)
    assert page.status_code == 200
    assert "has written no log yet" in page.text
    assert client.get("/job/9900/verdict").json()["wait"] == 0
    assert "scheduler" in client.get("/job/9900/run").text


@pytest.mark.parametrize("path", ["heat.json?metric=up", "query.json?q=up", "metrics.json", "lanes.json?metric=up"])
def test_a_job_without_metrics_says_that_it_was_not_recorded(client: TestClient, path: str) -> None:
    answer = client.get(f"/job/9001/{path}")
    assert answer.status_code == 422
    assert "was not recorded" in answer.json()["error"]


def test_the_performance_page_loads_its_script_from_the_server(client: TestClient) -> None:
    page = client.get("/job/9001/perf").text
    assert '<script src="/perf.js">' in page
    assert "<style>" not in page
    assert client.get("/perf.js").headers["content-type"].startswith("text/javascript")
    assert client.get("/perf.css").headers["content-type"].startswith("text/css")
