"""Attacks 7, 8, 16, 25 and 27: what `serve` and Prometheus answer to whom. On the public surface, by a second user."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from model_server import model
from recorded_job import Exporter, Job
from surface import ATTACKED, READ, Site, children, lands, serving, until
from web_client import workspace_of

from trackwalker.job.services import USER, login_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strangers import Stranger

pytest_plugins = ("strangers",)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, prometheus: Path) -> Path:
    from fuzz.targets import _make_database

    root = workspace_of(3, tmp_path_factory.mktemp("ws") / "outputs")
    shutil.copytree(_make_database(tmp_path_factory.mktemp("db")), next(root.glob("9001-*/")) / "prometheus")
    return root


@pytest.fixture(scope="module")
def site(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving(workspace, tmp_path_factory.mktemp("state")) as site:
        yield site


def asked(stranger: Stranger, url: str) -> str:
    """What another user of this machine reads there; empty where he is refused."""
    done = stranger.run("python3", "-c", READ, url)
    return done.stdout if done.returncode == 0 else ""


def test_a07_another_user_of_this_machine_does_not_read_the_jobs(site: Site, stranger: Stranger) -> None:
    with site.visitor() as ours:
        assert "9001" in ours.get("/jobs.json").text
    if "9001" in asked(stranger, f"{site.url}/jobs.json"):
        lands("another user reads every job through serve")


def prometheus_of(site: Site) -> tuple[int, int]:
    """The private Prometheus behind a page: its process and its port."""
    with site.visitor() as ours:
        ours.get("/job/9001/query.json", params={"q": "up"})
    pid = until(lambda: children(site.process.pid, "--storage.tsdb.path"), 60)
    assert pid, "no Prometheus was opened"
    words = Path(f"/proc/{pid[0]}/cmdline").read_text()
    return pid[0], int(re.findall(r"listen-address=127\.0\.0\.1:(\d+)", words)[0])


def test_a08_another_user_and_another_site_do_not_read_the_private_prometheus(site: Site, stranger: Stranger) -> None:
    _, port = prometheus_of(site)
    if '"success"' in asked(stranger, f"http://127.0.0.1:{port}/api/v1/label/__name__/values"):
        lands("another user reads every metric through the private Prometheus")
    answer = httpx.get(
        f"http://127.0.0.1:{port}/api/v1/query?query=up",
        headers={"Host": f"evil.example:{port}", "Origin": "http://evil.example"},
    )
    assert answer.status_code == 401
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.long(
    reason="its defence is tested from within at every landing; on the surface it takes a server and 45 queries"
)
def test_a16_45_heavy_queries_leave_the_pages_alive(site: Site) -> None:
    """A Prometheus that is held still stands for questions that take their whole 15 seconds each."""
    pid, _ = prometheus_of(site)
    with site.visitor() as ours:
        cookies = dict(ours.cookies)

    async def attack() -> float:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(timeout=120.0, limits=limits, cookies=cookies, base_url=site.url) as client:
            await client.get("/jobs.json")
            tasks = [
                asyncio.create_task(client.get("/job/9001/query.json", params={"q": f"up + {n}"})) for n in range(45)
            ]
            await asyncio.sleep(3.0)
            began = time.monotonic()
            with contextlib.suppress(httpx.TimeoutException):
                await client.get("/jobs.json", timeout=8.0)
            took = time.monotonic() - began
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return took

    os.kill(pid, signal.SIGSTOP)
    try:
        took = asyncio.run(attack())
    finally:
        os.kill(pid, signal.SIGCONT)
    if took >= 8.0:
        lands("forty-five questions keep every page from being answered: eight seconds were not enough")


@pytest.mark.long(
    reason="its defence is tested from within at every landing; on the surface it takes a server of its own"
)
def test_a25_a_link_cannot_make_a_model_be_asked(workspace: Path, tmp_path: Path) -> None:
    pytest.importorskip("pydantic_ai", reason="the agent extra is not installed")
    question = {"q": "how far did 9001 come", "model": "1", "wait": "1"}
    with (
        model({"content": "It came far."}) as (url, heard),
        serving(workspace, tmp_path, "--endpoint", url) as site,
        site.visitor() as ours,
    ):
        for path in ("/ask", "/ask/answer"):
            ours.get(path, params=question, headers={"Accept": "text/html"})
        if heard:
            lands("a link that a browser follows sends evidence to a model's provider")
        ours.post("/ask/answer", data=question, headers={"Origin": site.url, "Sec-Fetch-Site": "same-origin"})
        assert until(lambda: heard, 60), "the form itself asks"
        json.loads(heard[0])


def test_a27_another_user_does_not_read_the_prometheus_of_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: Stranger, prometheus: Path
) -> None:
    """The recorder's own, on the head node of a run."""
    monkeypatch.setenv("PYTHONPATH", str(ATTACKED / "src"))
    job, exporter = Job(tmp_path), Exporter()
    try:
        job.announce(exporter)
        job.start()
        port = job.server()["port"]
        with httpx.Client(auth=(USER, login_of(job.dir)), trust_env=False) as ours:
            assert ours.get(f"http://127.0.0.1:{port}/api/v1/query?query=up").json()["status"] == "success"
        if '"success"' in asked(stranger, f"http://127.0.0.1:{port}/api/v1/label/__name__/values"):
            lands("another user reads a running job's metrics")
        assert stranger.run("cat", str(job.dir / "agent" / "login.key")).returncode != 0
    finally:
        job.close()
        exporter.close()
