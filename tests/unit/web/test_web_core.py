"""The web app's ground: who may look, what every answer carries, what is kept, what happens when a job vanishes."""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from web_client import make_job, web_app

from trackwalker.cli import serve
from trackwalker.errors import EvidenceError, UsageError
from trackwalker.web.data import databases
from trackwalker.web.data.cache import Cache
from trackwalker.web.data.databases import Databases
from trackwalker.web.pages.render import json_island, moment
from trackwalker.web.security import CONTENT_POLICY

HOME = "http://127.0.0.1:8321"
TOKEN = "a-long-secret-token"  # noqa: S105


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "outputs"
    root.mkdir()
    make_job(root, "9001", "toy")
    return root


@pytest.fixture
def client(workspace: Path) -> Iterator[TestClient]:
    with TestClient(web_app(workspace), base_url=HOME) as made:
        yield made


@pytest.mark.parametrize("path", ["/", "/jobs.json", "/nodes", "/lab", "/sweeps", "/ask", "/compare", "/nothing"])
def test_every_answer_carries_the_rules_for_browsers(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.headers["content-security-policy"] == CONTENT_POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.status_code == (404 if path == "/nothing" else 200)


def test_the_policy_allows_nothing_inline_and_nobody_elses(client: TestClient) -> None:
    assert "unsafe" not in CONTENT_POLICY
    assert "default-src 'none'" in CONTENT_POLICY
    page = client.get("/", headers={"Accept": "text/html"}).text
    for forbidden in ("<style", " style=", "onclick", "onerror", "<script>"):
        assert forbidden not in page


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8321", "127.0.0.1.evil.example", "", "[::2]:8321"])
def test_a_request_that_names_another_host_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8321", "localhost", "LOCALHOST:1", "[::1]:8321"])
def test_this_machine_by_any_of_its_names_is_answered(client: TestClient, host: str) -> None:
    assert client.get("/jobs.json", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_there_is_nothing_to_write(client: TestClient, method: str) -> None:
    assert client.request(method, "/").status_code == 405


def test_a_token_opens_once_by_address_and_then_by_cookie(workspace: Path) -> None:
    with TestClient(web_app(workspace, token=TOKEN), base_url="http://gpu-login:9000") as client:
        assert client.get("/jobs.json").status_code == 401
        assert client.get("/jobs.json?token=a-long-secret-tokeN").status_code == 401
        welcome = client.get("/nodes?token=a-long-secret-token&x=1")
        assert welcome.status_code == 200
        assert 'content="0;url=/nodes?x=1"' in welcome.text
        cookie = welcome.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert client.get("/jobs.json").status_code == 200
        client.cookies.clear()
        assert client.get("/jobs.json").status_code == 401


def test_the_way_on_after_the_token_cannot_leave_the_site(workspace: Path) -> None:
    with TestClient(web_app(workspace, token=TOKEN), base_url="http://gpu-login:9000") as client:
        said = client.get("//evil.example/%22%3E%3Cscript%3E?token=a-long-secret-token").text
        client.cookies.clear()
        slanted = client.get("/%5Cevil.example?token=a-long-secret-token").text
    assert "url=//" not in said
    assert "<script>" not in said
    assert "url=/%5Cevil" in slanted  # a browser reads a backslash as a slash


def test_a_mistake_of_ours_is_one_line_with_the_same_rules(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client.app.state.jobs, "rows", lambda: 1 / 0)  # type: ignore[attr-defined]
    answer = client.get("/", headers={"Accept": "text/html"})
    assert answer.status_code == 500
    assert "Traceback" not in answer.text
    assert "ZeroDivisionError" in answer.text
    assert answer.headers["content-security-policy"] == CONTENT_POLICY
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("name", ["../etc", "..%2Fsecret", "/etc/passwd", "~root"])
def test_a_path_is_never_a_job(client: TestClient, name: str) -> None:
    answer = client.get("/compare/result", params={"a": name, "b": "9001"})
    assert answer.status_code in (403, 404)
    assert "error" in answer.json()


def test_a_job_that_vanishes_gives_a_clear_answer(client: TestClient, workspace: Path) -> None:
    make_job(workspace, "9002", "toy")
    assert client.get("/compare?a=9001&b=9002").status_code == 200
    shutil.rmtree(workspace / "9002-JAX-toy")
    (workspace / "9002-JAX-toy.log").unlink()
    answer = client.get("/compare/result?a=9001&b=9002")
    assert answer.status_code in (404, 410, 422)
    assert "9002" in answer.json()["error"]


def test_a_job_that_was_taken_away_is_no_job_whose_log_cannot_be_read(client: TestClient, workspace: Path) -> None:
    make_job(workspace, "9003", "toy")
    assert client.get("/job/9003/log").status_code == 200  # its name is believed for seconds now
    shutil.rmtree(workspace / "9003-JAX-toy")
    (workspace / "9003-JAX-toy.log").unlink()
    assert client.get("/job/9003/log").status_code == 404


def test_many_who_ask_for_the_same_share_one_making() -> None:
    cache: Cache[int] = Cache(4)
    gate, made = threading.Event(), []

    def make() -> int:
        gate.wait(30)
        made.append(1)
        return 7

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(cache.get, "job", 1, make) for _ in range(8)]
        gate.set()
        assert [a.result(30) for a in asked] == [7] * 8
    assert len(made) == 1
    assert cache.peek("job", 1) == 7
    assert cache.peek("job", 2) is None


def test_what_changed_is_made_anew_and_what_failed_is_tried_again() -> None:
    cache: Cache[int] = Cache(2)
    assert cache.get("job", 1, lambda: 1) == 1
    assert cache.get("job", 2, lambda: 2) == 2
    with pytest.raises(ZeroDivisionError):
        cache.get("job", 3, lambda: 1 // 0)
    assert cache.get("job", 3, lambda: 3) == 3


def test_the_least_recently_used_leave_first() -> None:
    cache: Cache[str] = Cache(2)
    for name in ("a", "b", "a", "c"):
        cache.get(name, 0, lambda name=name: name)  # type: ignore[misc]
    assert [cache.peek(name, 0) for name in "abc"] == ["a", None, "c"]
    assert len(cache) == 2


class Opener:
    """Stands in for `open_database`: notes what is open."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.opened: list[str] = []

    @contextmanager
    def __call__(self, path: Path) -> Iterator[Any]:
        if path.name == "bad":
            raise EvidenceError("unreadable")
        self.open.append(path.name)
        self.opened.append(path.name)
        yield Opened(path.name)
        self.open.remove(path.name)


class Opened(str):
    """Stands in for Telemetry."""

    def fresh(self) -> Opened:
        return self


@pytest.fixture
def opener(monkeypatch: pytest.MonkeyPatch) -> Opener:
    made = Opener()
    monkeypatch.setattr(databases, "open_database", made)
    return made


def test_a_database_is_shared_and_the_longest_unused_makes_room(opener: Opener, tmp_path: Path) -> None:
    pool = Databases(most=2)
    for name in "abac":
        with pool.open(tmp_path / name), pool.open(tmp_path / name) as found:
            assert found == name
    assert opener.opened == ["a", "b", "c"]
    assert opener.open == ["a", "c"]
    pool.close()
    assert opener.open == []


def test_a_database_in_use_is_not_closed_and_one_that_does_not_open_is_forgotten(
    opener: Opener, tmp_path: Path
) -> None:
    pool = Databases(most=1)
    with pool.open(tmp_path / "a"):
        pool.close_idle(0.0)
        assert opener.open == ["a"]
        pool.close()
        assert opener.open == ["a"]
    assert opener.open == []  # told to close while in use: closed by its last user
    with pytest.raises(EvidenceError), pool.open(tmp_path / "bad"):
        pass
    assert len(pool) == 0
    with pool.open(tmp_path / "b"):
        assert opener.open == ["b"]
    pool.close_idle(0.0)
    assert opener.open == []


def test_who_finds_all_places_taken_waits_for_one(opener: Opener, tmp_path: Path) -> None:
    pool = Databases(most=1)
    order = []

    def other() -> None:
        with pool.open(tmp_path / "b"):
            order.append("b")

    with pool.open(tmp_path / "a"):
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(0.05)
        order.append("a")
    thread.join(30)
    assert order == ["a", "b"]
    pool.close()


def test_a_port_that_is_taken_and_a_token_that_can_be_guessed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(serve._listen("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match="--port 0"):
            serve._listen("127.0.0.1", port)
    monkeypatch.setenv(serve.TOKEN_VARIABLE, "short")
    with pytest.raises(UsageError, match="too short"):
        serve._token()
    monkeypatch.delenv(serve.TOKEN_VARIABLE)
    assert len(serve._token()) >= 32
    assert serve._token() != serve._token()


def test_data_in_a_page_cannot_end_its_element() -> None:
    said = str(json_island({"host": "</script><img onerror=1>&\u2028"}))
    assert "<" not in said
    assert "\u2028" not in said


def test_a_moment_is_written_in_utc_for_readers_and_scripts() -> None:
    assert str(moment(1_780_300_800.0)) == '<time datetime="2026-06-01T08:00:00Z">2026-06-01 08:00:00 UTC</time>'
    assert "unknown" in str(moment(float("nan")))


def test_a_server_that_is_ended_does_not_complain_about_open_questions() -> None:
    def record(said: str, error: BaseException | None = None) -> logging.LogRecord:
        told = (type(error), error, None) if error is not None else None
        return logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, said, (), told)

    assert not serve._worth_telling(record("Exception in ASGI application", asyncio.CancelledError()))
    assert not serve._worth_telling(record("Cancel 2 running task(s), timeout graceful shutdown exceeded"))
    assert serve._worth_telling(record("Exception in ASGI application", ValueError("x")))
