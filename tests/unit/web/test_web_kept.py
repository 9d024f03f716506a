"""Pages that many read: made once for each state of what they show, packed once, and not sent to who has them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_workspace import fleet_of
from starlette.testclient import TestClient
from web_client import make_job, web_app, write_ledger

from trackwalker.web.data import workspace
from trackwalker.web.data.cache import Cache
from trackwalker.web.logs import log_view
from trackwalker.web.pages import incidents, jobs, nodes

PAGES = ("/", "/?q=rdma", "/jobs/rows", "/jobs.json", "/incidents", "/nodes", "/job/5003/log")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fleet_of(tmp_path_factory.mktemp("kept") / "outputs", 16)


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[TestClient]:
    with TestClient(web_app(root, price=2.0), base_url="http://127.0.0.1") as made:
        assert made.app.state.jobs.wait(120.0)  # type: ignore[attr-defined]
        yield made


@pytest.mark.parametrize("path", PAGES)
def test_who_has_a_page_is_not_sent_it_again_and_packed_it_is_the_same(client: TestClient, path: str) -> None:
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    assert (plain.status_code, "content-encoding" in plain.headers) == (200, False)
    again = client.get(path, headers={"If-None-Match": plain.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    with client.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as packed:
        sent = b"".join(packed.iter_raw())
    assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert gzip.decompress(sent) == plain.content
    assert len(sent) < len(plain.content)


@pytest.mark.parametrize(
    ("path", "room"), [("/", jobs), ("/incidents", incidents), ("/nodes", nodes), ("/job/5009/log", log_view)]
)
def test_a_page_is_made_once_as_long_as_nothing_changes_and_not_on_the_event_loop(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str, room: Any
) -> None:
    made: list[str] = []
    whole = room.text_of

    def counted(*args: Any, **kwargs: Any) -> str:
        made.append(threading.current_thread().name)
        return str(whole(*args, **kwargs))

    monkeypatch.setattr(room, "text_of", counted)
    client.app.state.sheets = Cache(32)  # type: ignore[attr-defined]
    first = client.get(path).content
    assert [client.get(path).content for _ in range(3)] == [first] * 3
    assert len(made) <= 2  # once more where a minute begins
    assert all("AnyIO worker thread" in name for name in made)


def test_a_decision_about_an_incident_is_on_the_next_page(client: TestClient) -> None:
    before = client.get("/incidents?state=all")
    assert client.post("/incidents/5003/mark", data={"state": "resolved"}, follow_redirects=False).status_code == 303
    after = client.get("/incidents?state=all", headers={"If-None-Match": before.headers["etag"]})
    assert after.status_code == 200
    assert 'data-id="5003" data-state="resolved"' in after.text


def test_a_line_of_the_ledger_is_on_the_next_page_of_nodes(client: TestClient, root: Path) -> None:
    assert "fan-7" not in client.get("/nodes").text
    fact = {"host": "fan-7", "attempt": 1, "kind": "check-failed", "what": "thermal", "line": "hot"}
    write_ledger(root, {"t": 1.0, "job": "5004", **fact})
    assert "fan-7" in client.get("/nodes").text


def test_of_a_list_only_the_lines_that_changed_are_made_again(client: TestClient, root: Path) -> None:
    client.get("/")
    known = jobs.line.cache_info().misses
    make_job(root, "9100", "toy")
    index = client.app.state.jobs  # type: ignore[attr-defined]
    index._looked = 0.0
    assert index.wait(60.0)
    page = client.get("/").text
    assert 'id="job-9100"' in page
    assert page.count('<tr id="job-') == 17
    assert 1 <= jobs.line.cache_info().misses - known <= 2  # unread perhaps, then read


def test_settings_of_two_runs_are_read_from_their_logs_once(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    whole = workspace.changes_between

    def counted(reference: Any, job: Any, scrubber: Any) -> Any:
        read.append(job.id)
        return whole(reference, job, scrubber)

    monkeypatch.setattr(workspace, "changes_between", counted)
    for _ in range(3):
        assert client.get("/job/5012/config?ref=5008").status_code == 200
    assert client.get("/runs?job=5012&job=5008").status_code == 200
    assert read.count("5012") == 1


def test_a_log_that_still_grows_is_never_kept(client: TestClient, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_view, "is_live", lambda _: True)
    answer = client.get("/job/5006/log")
    assert (answer.status_code, "etag" in answer.headers) == (200, False)
    assert "etag" not in client.get("/job/5006/log?q=step&go=next").headers
