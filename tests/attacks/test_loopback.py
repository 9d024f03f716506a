"""Loopback is every user's: what we serve there opens with a secret only, and no page of another site gets at it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.testclient import TestClient
from web_client import web_app, workspace_of

from trackwalker.cli import serve
from trackwalker.job.private import read_private, state_home
from trackwalker.observe.login import hashed
from trackwalker.telemetry.client import QueryError
from trackwalker.telemetry.store import open_database

if TYPE_CHECKING:
    from strangers import Stranger

pytest_plugins = ("strangers",)
TOKEN = "a-long-secret-token"  # noqa: S105
READ = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workspace_of(3, tmp_path_factory.mktemp("ws") / "outputs")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, prometheus: Path) -> Path:
    from fuzz.targets import _make_database

    return _make_database(tmp_path_factory.mktemp("db"))


def test_serve_on_loopback_prints_a_link_and_keeps_its_token_to_ourselves(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: Stranger
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    argv = [sys.executable, "-m", "trackwalker", "serve", "--port", "0", "--workspace", str(workspace)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        try:
            assert process.stdout is not None
            link = process.stdout.readline().split()[0]
            bare, token = link.split("?token=")
            tried = stranger.run("python3", "-c", READ, f"{bare}jobs.json")
            assert "401" in tried.stderr, "another user of this machine reads every job"
            with httpx.Client(timeout=60.0) as client:
                assert client.get(link).status_code == 200
                assert client.get(f"{bare}jobs.json").status_code == 200, "the cookie is enough from then on"
        finally:
            process.send_signal(signal.SIGINT)
    kept = tmp_path / "trackwalker" / "web-token"
    assert kept.read_text() == token, "the same link works tomorrow"
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_or_port_is_refused_although_the_browser_sends_the_cookie(
    workspace: Path, site: str
) -> None:
    """Another user's page on another port of 127.0.0.1 is the same site: a strict cookie goes along."""
    with TestClient(web_app(workspace, token=TOKEN), base_url="http://127.0.0.1") as client:
        client.get(f"/?token={TOKEN}")
        assert client.get("/jobs.json").status_code == 200
        assert client.get("/jobs.json", headers={"Sec-Fetch-Site": site}).status_code == 403
        for fine in ("same-origin", "none"):
            assert client.get("/jobs.json", headers={"Sec-Fetch-Site": fine}).status_code == 200


def test_a_rebound_name_is_refused_with_the_token_too(workspace: Path) -> None:
    with TestClient(web_app(workspace, token=TOKEN), base_url="http://127.0.0.1") as client:
        client.get(f"/?token={TOKEN}")
        assert client.get("/jobs.json", headers={"Host": "evil.example:8321"}).status_code == 403


@pytest.mark.parametrize("path", ["/ask", "/ask/answer"])
def test_a_link_cannot_make_a_model_be_asked(workspace: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("trackwalker.web.pages.ask.with_model", lambda *a, **k: asked.append(a))
    with TestClient(web_app(workspace, token=TOKEN, model="test:model"), base_url="http://127.0.0.1") as client:
        client.get(f"/?token={TOKEN}")
        client.get(f"{path}?q=how+far+did+9001+come&model=1&wait=1", headers={"Accept": "text/html"})
        assert asked == []
        foreign = {"Sec-Fetch-Site": "same-site", "Content-Type": "application/x-www-form-urlencoded"}
        body = "q=how+far+did+9001+come&model=1"
        assert client.post(path, content=body, headers=foreign).status_code == 403
        assert client.post(path, content=body, headers={"Origin": "http://127.0.0.1:9"}).status_code == 403
        client.cookies.clear()
        assert client.post(path, content=body).status_code == 401
    assert asked == []


def test_the_private_prometheus_answers_us_only(database: Path, stranger: Stranger) -> None:
    with open_database(database) as telemetry:
        port = telemetry.url.port
        assert telemetry.metrics() == {"up"}
        for name in ("127.0.0.1", "evil.example"):
            answer = httpx.get(
                f"http://127.0.0.1:{port}/api/v1/query?query=up",
                headers={"Host": f"{name}:{port}", "Origin": "http://evil.example"},
            )
            assert answer.status_code == 401
            assert "access-control-allow-origin" not in answer.headers
        tried = stranger.run("python3", "-c", READ, f"http://127.0.0.1:{port}/api/v1/label/__name__/values")
        assert "401" in tried.stderr
        with pytest.raises(QueryError):
            telemetry.instant("up{", 1.0)  # ours are still answered
        # What opens it must not stand on a command line, which everybody can read.
        lines = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if _readable(p)]
        assert not [line for line in lines if (telemetry.url.password or "?").encode() in line]


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def test_a_view_opens_with_its_link_only(database: Path, tmp_path: Path, stranger: Stranger) -> None:
    root = tmp_path / "outputs"
    folder = root / "9001-JAX-toy"
    folder.mkdir(parents=True)
    (folder / "prometheus").symlink_to(database)
    (root / "9001-JAX-toy.log").write_text("x\n")
    argv = [sys.executable, "-m", "trackwalker", "tsdb", "view", "9001", "--workspace", str(root)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            link = ""
            while not link:
                line = process.stdout.readline()
                assert line, process.stderr.read() if process.stderr else ""
                link = "".join(re.findall(r"http://127\S+", line))
            bare = "/".join(link.split("/", 3)[:3])
            asked = f"{bare}/api/v1/query?query=up&time=1700000030"
            assert "401" in stranger.run("python3", "-c", READ, asked).stderr
            token = link.rpartition("token=")[2]
            assert json.loads(httpx.get(f"{asked}&token={token}").text)["data"]["result"], "a script says it each time"
            with httpx.Client() as client:
                assert client.get(f"{bare}/graph?token={token}").status_code == 302
                assert client.get(asked).json()["status"] == "success"
                assert client.post(f"{bare}/api/v1/query", data={"query": "up"}).json()["status"] == "success"
                assert client.get(asked, headers={"Sec-Fetch-Site": "same-site"}).status_code == 403
                assert client.get(asked, headers={"Host": "evil.example:80"}).status_code == 403
        finally:
            process.terminate()


def test_the_hash_is_the_one_of_the_c_library() -> None:
    """Known answers: of the first publication's test suite, and of what libxcrypt gives."""
    salt = bytes.fromhex("10410410410410410410410410410410")  # "CCCCCCCCCCCCCCCCCCCCC."
    assert hashed(b"U*U", salt, 5) == "$2b$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"
    assert hashed(b"", salt, 5) == "$2b$05$CCCCCCCCCCCCCCCCCCCCC.7uG0VCzI2bS7j6ymqJi9CdcdxiRTWNy"


def test_a_secret_that_others_can_read_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = state_home() / "web-token"
    path.parent.mkdir()
    path.write_text("x" * 30)
    path.chmod(0o640)
    with pytest.raises(PermissionError, match="read by others"):
        read_private(path)
    monkeypatch.delenv(serve.TOKEN_VARIABLE, raising=False)
    made = serve._token(kept=True)
    assert made != "x" * 30
    assert path.stat().st_mode & 0o777 == 0o600
    assert serve._token(kept=True) == made


def test_heavy_queries_leave_the_pages_alive_and_end_with_their_askers(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty-five questions that take forever: a page is answered all the same, and who leaves ends his question."""
    from trackwalker.web.data import job_page_charts, query

    going, most, ended = set[object](), [0], [0]

    async def forever(*_: Any) -> bytes:
        me = object()
        going.add(me)
        most[0] = max(most[0], len(going))
        try:
            await asyncio.sleep(60)
        finally:
            going.discard(me)
            ended[0] += 1
        return b""

    monkeypatch.setattr(query, "fetch", forever)
    monkeypatch.setattr(query, "plan", lambda *_: None)

    class Held:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    from web_client import serving

    with serving(workspace) as site:
        monkeypatch.setattr(site.app.state.workspace, "metrics", lambda job: Held())
        assert job_page_charts.query is query

        async def attack() -> float:
            async with httpx.AsyncClient(timeout=60.0, limits=httpx.Limits(max_connections=100)) as client:
                tasks = [asyncio.create_task(client.get(f"{site.url}/job/9001/query.json?q=up")) for _ in range(45)]
                await asyncio.sleep(1.0)
                began = time.monotonic()
                answer = await client.get(f"{site.url}/jobs.json")
                assert answer.status_code == 200
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                return time.monotonic() - began

        assert asyncio.run(attack()) < 20.0
        assert 0 < most[0] <= 8
        deadline = time.monotonic() + 20
        while going and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not going
