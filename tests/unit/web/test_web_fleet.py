"""Incidents, hosts, fleet and runs over each other: what the pages say, what can be decided on them, and by whom."""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fleet_workspace import RETURNING, accuse, fleet_of, make_run
from starlette.testclient import TestClient
from web_client import web_app, workspace_of, write_ledger

from trackwalker.fleet.marks import Marks
from trackwalker.fleet.rows import JobRow
from trackwalker.fleet.signs import Signs
from trackwalker.fleet.source import last_good
from trackwalker.job.journal import encode
from trackwalker.report.words import amount
from trackwalker.watch.incident import Incident as Watched

HTML = {"Accept": "text/html"}
EVIL = "<img src=x onerror=alert(1)>"
needs_duckdb = pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("duckdb") is None, reason="duckdb is not installed"
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = fleet_of(tmp_path_factory.mktemp("fleet") / "outputs")
    accuse(make_run(place, "6000", [EVIL, "r1-n01"], slow_s=14.0), "rdma-degradation", [EVIL], says=EVIL)
    now = time.time()
    fact = {"host": RETURNING, "attempt": 1, "kind": "check-failed", "what": "network", "line": EVIL}
    write_ledger(place, {"t": now - 3600, "job": "5003", **fact}, {"t": now - 20 * 86400, "job": "5004", **fact})
    return place


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[TestClient]:
    with TestClient(web_app(root, price=2.0), base_url="http://127.0.0.1") as made:
        assert made.app.state.jobs.wait(120.0)  # type: ignore[attr-defined]
        yield made


def inbox(client: TestClient, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"/incidents.json{query}").json()["incidents"]
    return found


def test_the_inbox_has_every_job_in_trouble_what_costs_most_first(client: TestClient) -> None:
    found = inbox(client, "?state=all")
    assert {each["job"] for each in found} == {"5003", "5009", "5015", "5021", "5027", "5033", "5039", "6000"}
    lost = [each["lost_gpu_hours"] for each in found]
    assert lost == sorted(lost, reverse=True)
    assert found[0]["job"] == "5039"
    assert found[0]["lost_money"] == pytest.approx(2.0 * found[0]["lost_gpu_hours"])
    assert found[0]["hosts"] == [RETURNING]
    assert [other["job"] for other in found[0]["alike"]] == ["5027", "5015", "5003"]
    assert found[0]["first"] < found[0]["last"] + 1
    recent = {each["job"] for each in inbox(client)}
    assert "5003" not in recent  # it ended six weeks ago, and nobody touched it
    assert "5039" in recent
    assert {each["job"] for each in inbox(client, "?q=thermal&state=all")} == {"5033", "5021", "5009"}


def test_trouble_whose_cause_nobody_knows_stays_an_incident_with_what_it_cost(tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    poor = accuse(make_run(root, "1", ["n1"], slow_s=20.0, gpus=8), "", [], gpus=8)
    make_run(root, "2", ["n1"], slow_s=20.0, gpus=8)
    make_run(root, "3", ["n1"], gpus=8)
    saved = poor.model_copy(update={"causes": [], "outcome": "insufficient-evidence"})
    for name in ("1", "3"):  # of a run that lost nothing the same words are no incident
        (next(root.glob(f"{name}-*/")) / "verdict.json").write_text(saved.to_json())
    with TestClient(web_app(root), base_url="http://127.0.0.1") as client:
        assert client.app.state.jobs.wait(60.0)  # type: ignore[attr-defined]
        found = {each["job"]: each for each in inbox(client)}
        assert set(found) == {"1", "2"}
        assert "cause unknown" in found["1"]["title"]
        assert found["1"]["lost_gpu_hours"] == pytest.approx(found["2"]["lost_gpu_hours"])
        assert "8 GPUs" in client.get("/incidents", headers=HTML).text
        page = client.get("/job/1", headers=HTML).text
        assert "Its incident</a> is open" in page
        assert "Nothing is to be done" not in page
        fleet = client.get("/fleet.json").json()
    assert (fleet["fleet"]["troubled"], fleet["causes"][0]["name"], fleet["causes"][0]["jobs"]) == (2, "", 2)
    assert fleet["causes"][0]["lost_gpu_hours"] == pytest.approx(2 * found["1"]["lost_gpu_hours"])


def test_the_host_that_comes_back_stands_above_the_inbox_with_its_incidents_and_what_it_cost(
    client: TestClient,
) -> None:
    [first, *_] = client.get("/incidents.json").json()["returning"]  # whatever state is looked at
    assert (first["host"], first["jobs"]) == (RETURNING, ["5039", "5027", "5015", "5003"])
    known = {each["job"]: each["lost_gpu_hours"] for each in inbox(client, "?state=all")}
    assert first["lost_gpu_hours"] == pytest.approx(sum(known[job] for job in first["jobs"]))
    page = client.get("/incidents", headers=HTML).text
    head = page.index("Hosts in several incidents")
    assert head < page.index("in <b>4 incidents</b>") < page.index('<tr id="incident-')
    assert "in 4 incidents</span>" in page  # beside the host in its rows, too
    assert re.search(r'<a href="/incidents\?state=all">\d older</a>: [\d.]+ GPU-hours', page)
    assert EVIL not in page


def test_a_page_of_a_host_begins_with_incidents_and_cost_and_the_dearest_stand_first(client: TestClient) -> None:
    page = client.get("/host", params={"name": RETURNING}, headers=HTML).text
    assert (
        page.index("<b>4</b><span>incidents name it") < page.index("GPU-hours, its share") < page.index("Take it out")
    )
    assert ">stands out<" in page
    named = page[page.index('id="named"') : page.index('id="ledger"')]
    assert re.findall(r'href="/job/(\d+)"', named) == ["5039", "5027", "5015", "5003"]
    assert re.findall(r'href="/incidents/(\d+)"', named) == ["5039", "5027", "5015", "5003"]


def test_a_host_is_called_the_same_on_every_page_that_names_it(client: TestClient) -> None:
    fleet = client.get("/fleet?days=0", headers=HTML).text
    nodes = client.get("/nodes", headers=HTML).text
    out = {each["host"] for each in client.get("/nodes.json").json()["nodes"] if each["stands_out"]}
    assert RETURNING in out
    assert out == set(re.findall(r">([^<]+)</a> <span class=\"badge warn\">stands out", fleet))
    assert nodes.count(">stands out<") + nodes.count(">leave out<") >= len(out)
    assert ">watch<" not in nodes + fleet


def test_a_sum_of_hours_is_rounded_the_same_on_every_page(client: TestClient) -> None:
    [each] = [found for found in inbox(client) if found["job"] == "5039"]
    shown = amount(each["lost_gpu_hours"])
    for path in ("/incidents", "/incidents/5039", "/incidents/5039.md", "/job/5039"):
        text = client.get(path, headers=HTML).text
        assert re.search(rf"(?<![\d.,]){re.escape(shown)}(</b>)?(<[^>]*>)? ?(<span[^>]*>)?\s*GPU-hours", text), path


def test_tabs_that_count_a_job_twice_say_so(client: TestClient) -> None:
    page = client.get("/", headers=HTML).text
    counts = [int(n) for n in re.findall(r'<span class="count">(\d+)</span>', page)]
    twice = re.search(r'id="twice"[^>]*><span>(\d+)</span>', page)
    assert twice is not None
    assert sum(counts[1:]) == counts[0] + int(twice[1])


def test_an_incident_is_worked_on_and_nothing_of_it_is_written_into_the_job(client: TestClient, root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    said = {"state": "acknowledged", "owner": EVIL, "note": "swap the cable\nthen a sweep"}
    answer = client.post("/incidents/5027/mark", data=said, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/incidents/5027")
    assert "5027" not in {each["job"] for each in inbox(client)}
    [mine] = [each for each in inbox(client, "?state=acknowledged") if each["job"] == "5027"]
    assert (mine["owner"], mine["note"]) == (EVIL, "swap the cable\nthen a sweep")
    page = client.get("/incidents/5027", headers=HTML).text
    assert EVIL not in page
    assert "&lt;img src=x" in page
    assert "swap the cable" in page
    assert "2 changes" in page or "1 changes" in page
    back = client.post(
        "/incidents/5027/mark", data={"state": "open", "back": "/incidents?state=all"}, follow_redirects=False
    )
    assert back.headers["location"] == "/incidents?state=all"
    out = client.post("/incidents/5027/mark", data={"state": "open", "back": "//evil.example/"}, follow_redirects=False)
    assert out.headers["location"] == "/incidents/5027"
    assert client.post("/incidents/5027/mark", data={"state": "gone"}).status_code == 400
    assert client.post("/incidents/5027/mark", data={}).status_code == 400
    assert client.post("/incidents/5027/mark", data={"note": "x" * 20_000}).status_code == 400
    assert client.post("/incidents/none/mark", data={"state": "open"}).status_code == 404
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_marks_are_this_users_alone_and_kept_for_the_next_server(tmp_path: Path) -> None:
    first = Marks(tmp_path / "ws", tmp_path / "state")
    first.set("7", state="acknowledged", owner="mira")
    first.set("7", note="cable")
    first.set("7", note="cable")  # says nothing new
    [path] = list((tmp_path / "state").iterdir())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Marks(tmp_path / "ws", tmp_path / "state")
    assert (again.of("7").state, again.of("7").owner, again.of("7").note) == ("acknowledged", "mira", "cable")
    assert [change.what for change in again.history("7")] == ["acknowledged; owner: mira", "note: cable"]
    with path.open("ab") as file:
        file.write(b'{"v":1,"t":1,"incident":"7","set":{"state":"nonsense"}}\n{"torn')
    assert Marks(tmp_path / "ws", tmp_path / "state").of("7").state == "acknowledged"
    path.chmod(0o666)
    assert Marks(tmp_path / "ws", tmp_path / "state").of("7").state == "open"


def test_only_the_inbox_takes_posts_and_never_from_another_site(client: TestClient) -> None:
    for path in ("/incidents", "/incidents/5027", "/fleet", "/host", "/incidents/5027/mark/x", "/jobs.json"):
        assert client.post(path, data={"state": "open"}).status_code == 405
    foreign = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert client.post("/incidents/5027/mark", data={"state": "resolved"}, headers=foreign).status_code == 403
    assert client.get("/incidents/5027/mark?state=resolved").status_code in (404, 405)
    root = client.app.state.workspace.root  # type: ignore[attr-defined]
    with TestClient(web_app(root, token="secret-token-of-16"), base_url="http://127.0.0.1") as other:  # noqa: S106
        assert other.post("/incidents/5027/mark", data={"state": "resolved"}).status_code == 401


def test_an_incident_is_shared_as_markdown_in_which_names_are_only_text(client: TestClient) -> None:
    answer = client.get("/incidents/6000.md")
    assert answer.headers["content-type"].startswith("text/markdown")
    assert EVIL not in answer.text
    assert "\\<img src=x" in answer.text
    assert "<http://127.0.0.1/incidents/6000>" in answer.text
    assert "GPU-hours" in answer.text
    assert client.get("/incidents/nothing.md").status_code == 404
    healthy = client.get("/incidents/5000")
    assert healthy.status_code == 404
    assert "nothing is wrong with job 5000" in healthy.json()["error"]


def test_a_wrong_verdict_becomes_a_case_outside_of_the_job(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def propose(job: Any, truth: Any, to: Path, family: str, about: str) -> Any:
        asked.update(job=job.id, truth=truth, to=to, family=family, about=about)
        return type(
            "Proposal", (), {"case": to / family, "test": to / "t.py", "said": "rdma", "wrong": ["wrong roots"]}
        )

    monkeypatch.setattr("trackwalker.lab.propose.propose", propose)
    truth = {"outcome": "incident", "cause": "gpu-thermal-throttle", "hosts": "r1-n01, r1-n02", "about": EVIL}
    page = client.post("/incidents/5027/wrong", data=truth, headers=HTML)
    assert page.status_code == 200
    assert "wrong roots" in page.text
    assert asked["job"] == "5027"
    assert asked["truth"].roots[0].hosts == ["r1-n01", "r1-n02"]
    assert not asked["to"].is_relative_to(client.app.state.workspace.root)  # type: ignore[attr-defined]
    for wrong in ({"outcome": "incident", "cause": EVIL}, {"outcome": EVIL}, {}):
        refused = client.post("/incidents/5027/wrong", data=wrong, headers=HTML)
        assert refused.status_code == 400
        assert EVIL not in refused.text


def test_what_the_watcher_called_is_in_the_inbox_and_a_foreign_journal_is_not(tmp_path: Path) -> None:
    root = workspace_of(3, tmp_path / "outputs")
    folder = root / ".watch"
    folder.mkdir(mode=0o700)
    made = Watched(id="9001-hang-1", job="9001", kind="hang", title="no step for 12 min", since=5.0, opened=6.0)
    journal = folder / "journal.jsonl"
    over = {"op": "set", "t": 9.0, "id": made.id, "set": {"resolved": 9.0}}
    foreign = {"op": "open", "incident": {"id": 3}}
    lines = [{"op": "begin", "t": 1.0}, {"op": "open", "t": 6.0, "incident": asdict(made)}, over, foreign]
    journal.write_bytes(b"".join(encode(line) for line in lines))
    journal.chmod(0o600)
    [sign] = Signs(root).by_job()["9001"]
    assert (sign.title, sign.since, sign.resolved) == ("no step for 12 min", 5.0, 9.0)
    with TestClient(web_app(root), base_url="http://127.0.0.1") as client:
        assert client.app.state.jobs.wait(60.0)  # type: ignore[attr-defined]
        [found] = inbox(client, "?state=all")
        assert (found["job"], found["title"], found["first"]) == ("9001", "no step for 12 min", 5.0)
        assert "no step for 12 min" in client.get("/incidents/9001", headers=HTML).text
        journal.chmod(0o666)
        journal.write_bytes(journal.read_bytes() + encode({"op": "x"}))
        assert inbox(client, "?state=all") == []
        assert "can be written by others" in client.get("/incidents?state=all", headers=HTML).text


def test_a_host_has_a_page_of_all_that_is_said_against_it(client: TestClient) -> None:
    found = client.get("/host.json", params={"name": RETURNING}).json()
    assert set(found["named_in"]) == {"5003", "5015", "5027", "5039"}
    assert found["rack"] == "r2"
    assert found["share"]["low"] > found["share"]["usual"]
    assert sum(week["jobs"] for week in found["weeks"]) == 4
    assert sum(week["ledger"] for week in found["weeks"]) == 2
    page = client.get("/host", params={"name": RETURNING}, headers=HTML).text
    assert f"scontrol update nodename={RETURNING} state=drain" in page
    assert "more than chance explains" in page
    assert EVIL not in page
    odd = client.get("/host", params={"name": EVIL}, headers=HTML)
    assert odd.status_code == 200
    assert EVIL not in odd.text
    assert "scontrol" not in odd.text
    assert client.get("/host", params={"name": "nobody"}).status_code == 404
    assert client.get("/host").status_code == 400


@needs_duckdb
def test_the_fleet_page_says_what_cost_most_and_who_comes_back(client: TestClient) -> None:
    found = client.get("/fleet.json?days=0").json()
    assert found["fleet"]["jobs"] == 41
    assert found["hosts"][0]["name"] == RETURNING
    assert found["racks"][0]["name"] == "r2"
    assert found["causes"][0]["name"] == "rdma-degradation"
    assert found["flaky"][0]["host"] == RETURNING
    assert found["flaky"][0]["jobs"] == ["5039", "5027", "5015", "5003"]
    assert len(found["days"]) > 20
    assert all(0.0 <= day["goodput"] <= 1.0 for day in found["days"] if day["goodput"] is not None)
    page = client.get("/fleet?days=0", headers=HTML).text
    assert "stands out" in page
    assert page.index("GPU-hours lost") < page.index("in money") < page.index("Hosts in several incidents")
    assert page.index("Hosts in several incidents") < page.index("Hosts that cost most") < page.index("Goodput by day")
    assert EVIL not in page
    assert client.get("/fleet.json?days=%3Cb%3E").json()["fleet"]["jobs"] < 41  # 30 days, as without a number


def test_runs_lie_over_each_other_and_the_baseline_is_the_last_good_one(client: TestClient) -> None:
    page = client.get("/runs?job=5039&job=5027&baseline=auto", headers=HTML).text
    assert "the last good run of qwen3-30b-a3b" in page
    assert page.count('class="trace"') == 3 * 3  # throughput, step time and loss of three runs
    assert ">5035</a>" in page
    assert "-23." in page  # of the steps in common
    by_time = client.get("/runs?job=5039&job=5035&by=time", headers=HTML).text
    assert "hours since the first step" in by_time
    ticked = client.get("/compare?job=5039&job=5027&job=5035", follow_redirects=False)
    assert ticked.headers["location"] == "/runs?job=5039&job=5027&job=5035"
    good = client.get("/compare?b=5039&a=last-good", follow_redirects=False)
    assert good.headers["location"] == "/compare?a=5035&b=5039"
    assert client.get("/runs").status_code == 400
    assert client.get("/runs?" + "&".join(f"job=50{n:02d}" for n in range(12))).status_code == 400
    assert client.get("/runs?job=..%2Fx").status_code == 403


def test_settings_that_differ_stand_beside_each_other(tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    for job, batch in (("1", 4), ("2", 8), ("3", 4)):
        make_run(root, job, ["n1"], age_s=9000.0 - int(job), per_device_batch_size=batch, remat=EVIL)
    with TestClient(web_app(root), base_url="http://127.0.0.1") as client:
        assert client.app.state.jobs.wait(60.0)  # type: ignore[attr-defined]
        page = client.get("/runs?job=3&job=2&job=1", headers=HTML).text
    assert "per_device_batch_size" in page
    assert page.count(" differs") == 2  # of runs 3 and 1 against run 2, the last good one before 3
    assert EVIL not in page


def test_the_last_good_run_is_of_the_same_model_before_it_and_sound() -> None:
    def row(job: str, when: float, **more: Any) -> JobRow:
        return JobRow(job, "", **{"model": "m", "status": "completed", "started": when, "nodes": 4, **more})

    bad = row("9", 9.0, badge_tone="bad")
    rows = [bad, row("8", 8.0, badge_tone="warn"), row("7", 7.0, model="x"), row("6", 6.0, nodes=2), row("5", 5.0),
            row("4", 4.0), row("10", 10.0), row("3", 8.5, status="failed")]  # fmt: skip
    assert last_good(bad, rows) == row("5", 5.0)
    assert last_good(row("1", 1.0), rows) is None
