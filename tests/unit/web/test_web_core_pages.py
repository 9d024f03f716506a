"""The pages of the app's core: jobs, compare, nodes, lab, sweeps, ask."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient
from web_client import ACCUSED, BROKEN, SLOW, SWEEP, accusing, make_job, make_sweep, web_app, workspace_of, write_ledger

from trackwalker.fleet import reading
from trackwalker.fleet.rows import spark
from trackwalker.lab.scenario import Truth
from trackwalker.lab.scoring.grade import grade
from trackwalker.lab.scoring.results import CaseResult, Results
from trackwalker.sweep.model import Plot
from trackwalker.web.data.pace import spark_area, spark_path
from trackwalker.web.pages import jobs
from trackwalker.web.pages.sweeps import figure

HTML = {"Accept": "text/html"}
HEALTHY = Truth(outcome="healthy")
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = workspace_of(24, tmp_path_factory.mktemp("web") / "outputs")
    now = time.time()
    bad = {"host": "node002", "attempt": 1, "kind": "check-failed", "what": "ecc", "line": "2 uncorrectable errors"}
    once = {"host": EVIL, "attempt": 1, "kind": "node-lost", "what": "node-lost", "line": EVIL}
    write_ledger(root, {"t": now - 3600, "job": "9003", **bad}, {"t": now - 9e4, "job": "9004", **once})
    return root


@pytest.fixture(scope="module")
def client(workspace: Path) -> Iterator[TestClient]:
    with TestClient(web_app(workspace), base_url="http://127.0.0.1") as made:
        assert made.app.state.jobs.wait(60.0)  # type: ignore[attr-defined]
        yield made


def ids(client: TestClient, query: str = "") -> list[str]:
    return [row["id"] for row in client.get(f"/jobs.json{query}").json()["jobs"]]


def test_the_list_has_every_job_newest_first_with_what_is_wrong(client: TestClient) -> None:
    rows = {row["id"]: row for row in client.get("/jobs.json").json()["jobs"]}
    assert list(rows) == [str(9023 - n) for n in range(24)]
    assert (rows[BROKEN]["status"], rows[BROKEN]["group"], rows[BROKEN]["badge_from"]) == ("failed", "trouble", "log")
    assert (rows[SLOW]["status"], rows[SLOW]["group"], rows[SLOW]["badge_tone"]) == ("completed", "trouble", "warn")
    assert (rows[ACCUSED]["badge"], rows[ACCUSED]["hosts"]) == ("RDMA degradation", ["node002"])
    sound = rows["9000"]
    assert (sound["status"], sound["nodes"], sound["last_step"], sound["total_steps"]) == ("completed", 2, 29, 30)
    assert sound["model"] == "llama2-70b"
    assert sound["tgs"] == pytest.approx(4096.0)
    assert len(sound["spark"]) == 30
    assert sound["badge"] == ""


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?state=trouble", [ACCUSED, SLOW, BROKEN]),
        ("?q=rdma", [ACCUSED]),
        ("?q=NODE002+rdma", [ACCUSED]),
        ("?q=grok-1+9002", ["9002"]),
        ("?q=nothing-like-it", []),
        ("?state=trouble&q=failed", [BROKEN]),
    ],
)
def test_search_and_filter_work_by_address_alone(client: TestClient, query: str, expected: list[str]) -> None:
    assert ids(client, query) == expected
    page = client.get(f"/{query}", headers=HTML).text
    assert page.count('class="tick"') == len(expected)


def test_a_strange_address_shows_the_plain_list(client: TestClient) -> None:
    assert len(ids(client, "?state=%3Cb%3E&sort=__class__&page=-1&page=999999999999")) == 24


def test_a_long_list_is_cut_into_pages(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PAGE", 10)
    assert ids(client, "?page=3") == ["9003", "9002", "9001", "9000"]
    assert ids(client, "?page=99") == ids(client, "?page=3")
    page = client.get("/?q=90&page=2", headers=HTML).text
    assert 'href="/?q=90"' in page
    assert 'href="/?q=90&amp;page=3"' in page


def test_sorting_puts_the_least_goodput_first_and_runs_too_short_to_judge_behind(client: TestClient) -> None:
    rows = client.get("/jobs.json?sort=goodput").json()["jobs"]
    known = [(row["start_up"] is not None, row["goodput"]) for row in rows if row["goodput"] is not None]
    assert known == sorted(known)
    assert len({short for short, _ in known}) == 2
    assert "mostly start-up" in client.get("/", headers=HTML).text


def test_nothing_is_sent_twice_while_nothing_changes(client: TestClient) -> None:
    for path in ("/jobs/rows", "/jobs.json"):
        first = client.get(path)
        again = client.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get(f"{path}?q=x", headers={"If-None-Match": first.headers["etag"]}).status_code == 200


def test_what_was_read_is_known_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = workspace_of(3, tmp_path / "outputs")
    with TestClient(web_app(root), base_url="http://127.0.0.1") as first:
        assert first.app.state.jobs.wait(60.0)  # type: ignore[attr-defined]
        before = first.get("/jobs.json").json()["jobs"]
    monkeypatch.setattr(reading, "triage", lambda *_, **__: pytest.fail("a log was read again"))
    with TestClient(web_app(root), base_url="http://127.0.0.1") as second:
        assert second.get("/jobs.json").json()["jobs"] == before


def test_a_changed_log_and_a_new_verdict_are_seen_and_a_broken_index_is_not_believed(tmp_path: Path) -> None:
    root = workspace_of(2, tmp_path / "outputs")
    (tmp_path / "jobs-outputs.json").write_text('{"version": 7, "jobs": {"9000": []}}')
    with TestClient(web_app(root), base_url="http://127.0.0.1") as client:
        index = client.app.state.jobs  # type: ignore[attr-defined]
        assert index.wait(60.0)
        folder = make_job(root, "9100", "toy")
        (folder / "verdict.json").write_text(accusing("9100", str(folder), EVIL).to_json())
        index._looked = 0.0
        assert index.wait(60.0)
        row = next(r for r in client.get("/jobs.json").json()["jobs"] if r["id"] == "9100")
        assert row["hosts"] == [EVIL]
        page = client.get("/", headers=HTML).text
    assert EVIL not in page
    assert "&lt;img src=x" in page


def test_a_log_that_cannot_be_read_breaks_its_own_line_only(tmp_path: Path) -> None:
    root = workspace_of(2, tmp_path / "outputs")
    (root / "9500-JAX-empty.log").write_bytes(b"")
    with TestClient(web_app(root), base_url="http://127.0.0.1") as client:
        assert client.app.state.jobs.wait(60.0)  # type: ignore[attr-defined]
        rows = {row["id"]: row for row in client.get("/jobs.json").json()["jobs"]}
    assert len(rows) == 3
    assert rows["9500"]["status"] != "reading"
    assert rows["9000"]["status"] == "completed"


def test_two_ticked_jobs_are_compared_with_the_older_as_baseline(client: TestClient) -> None:
    answer = client.get("/compare?job=9005&job=9001", follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/compare?a=9001&b=9005"
    page = client.get("/compare?a=9001&b=9005", headers=HTML).text
    assert 'data-fill="/compare/result?a=9001&amp;b=9005"' in page
    assert "Swap A and B" in page
    asking = client.get("/compare?job=9005", headers=HTML).text
    assert 'value="9005"' in asking


def test_a_comparison_tells_speed_with_its_interval_and_what_differs(client: TestClient) -> None:
    piece = client.get(f"/compare/result?a=9000&b={SLOW}", headers=HTML).text
    assert "tokens/s/device" in piece
    assert "95 % interval" in piece
    whole = client.get(f"/compare?a=9000&b={SLOW}", headers=HTML).text
    assert "data-fill" not in whole  # known by now
    twice = client.get("/compare/result?a=9000&b=9000")
    assert twice.status_code == 400


def test_hosts_that_hurt_are_listed_those_to_leave_out_first(client: TestClient) -> None:
    found = client.get("/nodes.json").json()["nodes"]
    assert [node["host"] for node in found] == ["node002", EVIL]
    assert found[0]["exclude"]
    assert {fact["kind"] for fact in found[0]["facts"]} == {"check failed", "verdict"}
    page = client.get("/nodes", headers=HTML).text
    assert "--exclude=node002" in page
    assert EVIL not in page


def test_the_lab_page_shows_scores_or_how_to_get_them(
    client: TestClient, workspace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("trackwalker.web.pages.lab._PUBLISHED", tmp_path / "none.md")
    assert "trackwalker lab score" in client.get("/lab", headers=HTML).text
    board = tmp_path / "scoreboard.md"
    board.write_text("# Scoreboard\n\nAll of it.\n\n## Totals\n\n| | us |\n| --- | --- |\n| right | 9/10 \\| <b> |\n")
    monkeypatch.setattr("trackwalker.web.pages.lab._PUBLISHED", board)
    page = client.get("/lab", headers=HTML).text
    assert "9/10 | &lt;b&gt;" in page
    (workspace / "lab").mkdir()
    (workspace / "lab" / "odd.json").write_text("{}")
    assert "9/10" in client.get("/lab", headers=HTML).text
    right = grade({"status": "completed", "outcome": "healthy"}, HEALTHY)
    case = CaseResult(
        tool="ours",
        family=EVIL,
        split="test",
        group="healthy",
        seed=1,
        truth=HEALTHY,
        grade=right,
        passed=True,
        seconds=1.0,
    )
    (workspace / "lab" / "mine.json").write_text(Results(version="1", suite=["smoke"], cases=[case]).to_json())
    page = client.get("/lab", headers=HTML).text
    assert "right in everything" in page
    assert "odd.json is not a results file" in page
    assert EVIL not in page


def test_a_question_is_answered_without_a_model(client: TestClient) -> None:
    page = client.get("/ask?q=how+far+did+9007+come", headers=HTML).text
    assert "data-fill=" in page
    piece = client.get("/ask/answer?q=how+far+did+9007+come", headers=HTML).text
    assert "step 17" in piece
    assert 'href="/job/9007"' in piece
    assert "step 17" in client.get("/ask?q=how+far+did+9007+come&wait=1", headers=HTML).text


def test_a_question_that_is_not_understood_says_what_can_be_asked(client: TestClient) -> None:
    answer = client.get(f"/ask/answer?q={EVIL}")
    assert answer.status_code == 400
    assert "ask, for example" in answer.json()["error"]
    assert EVIL not in client.get(f"/ask?q={EVIL}", headers=HTML).text


def test_a_model_is_not_asked_where_none_is_configured(client: TestClient) -> None:
    assert "look further" not in client.get("/ask", headers=HTML).text
    assert "adds</h2>" not in client.get("/ask/answer?q=how+far+did+9007+come&model=1", headers=HTML).text


def test_a_model_looks_further_once_and_what_it_made_up_is_struck_out(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_model = pytest.importorskip("pydantic_ai.models.test", reason="no pydantic-ai here: no model to ask")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    asked = []

    def open_model(*_: object) -> object:
        asked.append(1)
        return test_model.TestModel(call_tools=[], custom_output_text=f"It came to step 17. Then node777 {EVIL} broke.")

    monkeypatch.setattr("trackwalker.agent.ask.ask.open_model", open_model)
    with TestClient(web_app(workspace, model="test:model"), base_url="http://127.0.0.1") as client:
        assert "let test:model look further" in client.get("/ask", headers=HTML).text
        plain = client.get("/ask/answer?q=how+far+did+9007+come", headers=HTML).text
        assert "adds</h2>" not in plain
        form = {"q": "how far did 9007 come", "model": "1"}
        pieces = [client.post("/ask/answer", data=form, headers=HTML).text for _ in range(2)]
    assert asked == [1]  # a reload does not pay again
    assert pieces[0] == pieces[1]
    assert "test:model adds</h2>" in pieces[0]
    assert "It came to step 17." in pieces[0]
    assert "<del>Then node777 &lt;img" in pieces[0]
    assert EVIL not in pieces[0]


def test_sweeps_are_listed_and_a_damaged_one_says_so(tmp_path: Path) -> None:
    root = workspace_of(1, tmp_path / "outputs")
    make_sweep(root)
    odd = root / "sweeps" / "batch-20260101-000000-dead"
    odd.mkdir()
    (odd / "plan.json").write_text("{")
    with TestClient(web_app(root), base_url="http://127.0.0.1") as client:
        page = client.get("/sweeps", headers=HTML).text
        assert "leave out n3" in page
        assert "not readable" in page
        whole = client.get(f"/sweeps/{SWEEP}", headers=HTML).text
        assert '<span class="chip bad">n3</span>' in whole
        assert whole.count("<circle") == 4
        report = client.get(f"/sweeps/{SWEEP}/report.json").json()
        assert (report["schema"], report["status"]) == ("trackwalker.sweep/1", "finished")
        assert client.get("/sweeps/..%2F..").status_code == 404
        assert client.get("/sweeps/nothing").json()["error"].startswith("no sweep 'nothing'")


def test_a_verdict_made_for_a_question_is_on_the_list_from_then_on(tmp_path: Path) -> None:
    root = workspace_of(2, tmp_path / "outputs")
    with TestClient(web_app(root), base_url="http://127.0.0.1") as client:
        index = client.app.state.jobs  # type: ignore[attr-defined]
        assert index.wait(60.0)
        assert {row["badge_from"] for row in client.get("/jobs.json").json()["jobs"]} == {""}
        assert client.get("/ask/answer?q=why+is+9000+slow").status_code == 200
        deadline = time.monotonic() + 60.0
        while not (
            badges := {r["id"] for r in client.get("/jobs.json").json()["jobs"] if r["badge_from"] == "verdict"}
        ):
            assert time.monotonic() < deadline
            index._looked = 0.0  # as if the workspace had been listed long ago
            time.sleep(0.05)
        assert badges == {"9000"}


def test_a_sparkline_keeps_the_proportions_and_leaves_gaps_open() -> None:
    nothing = np.full(100, np.nan)
    seconds = np.concatenate([np.full(50, 10.0), np.full(50, 20.0)])
    points = spark(nothing, seconds)
    assert len(points) == 48
    assert (points[0], points[-1]) == (1.0, 0.5)
    assert spark(nothing, nothing) == ()
    assert spark_path((1.0, None, 0.0)) == "M0 1.5M96 20"
    assert spark_area((1.0, 1.0)) == "M0 1.5L96 1.5L96 20L0 20Z"


def test_a_plot_has_a_mark_for_what_was_measured_and_a_row_for_everything() -> None:
    drawn = figure(
        Plot("t", "batch", "tgs", (4, 8, 12), (100.0, None, 140.0), (95.0, None, 130.0), (105.0, None, 150.0), (2,))
    )
    assert [(p.name, p.marked) for p in drawn.points] == [("4", False), ("12", True)]
    assert [row[1] for row in drawn.rows] == ["100", "not measured", "140"]
    assert drawn.course.startswith("M")
    by_name = figure(Plot("t", "node", "tgs", ("n1", "n2"), (float("nan"), 3.0)))
    assert len(by_name.points) == 1
    assert by_name.course == ""
    json.dumps(drawn.rows)
