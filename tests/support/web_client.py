"""What tests of the web app share: workspaces of small jobs, a real server over one, a real browser that looks at it.

A test file imports the fixtures it wants: `from web_client import browser, look  # noqa: F401`. Screenshots go to the
folder of TRACKWALKER_ARTEFACTS, where it is set.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from triage_logs import NCCL, ending, header, steps

from trackwalker.diagnose.verdict import Action, Cause, Cost, Evidence, JobRef, Verdict, Window
from trackwalker.node.stages.incidents import LEDGER
from trackwalker.sweep.model import Result
from trackwalker.sweep.plan import Plan, Setup
from trackwalker.sweep.state import Book
from trackwalker.sweep.strategies import build

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LONG_MS = 60_000  # a loaded machine may stand still for seconds
MODELS = ("llama2-70b", "mixtral-8x22b", "grok-1", "qwen3-30b-a3b")
BROKEN, SLOW, ACCUSED = "9007", "9013", "9021"  # ids of `workspace_of`
SWEEP = "nodes-20260601-080000-1f3a"  # of `make_sweep`
NOW = 1_780_300_800.0  # 2026-06-01T08:00:00Z, when the newest job of `workspace_of` wrote its last line
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")


def workspace_of(count: int, root: Path) -> Path:
    """Small jobs 9000, 9001, …: most are sound; one failed, one slowed down, one has a verdict that accuses a host."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        make_job(root, str(9000 + number), MODELS[number % len(MODELS)], age_s=60.0 * (count - number))
    if count > 7:
        log = log_of(root, BROKEN)
        failed = header(2, steps=100) + steps(17, 2) + NCCL.format(rank=1) + ending(1)
        _write(log, failed, log.stat().st_mtime, BROKEN, MODELS[7 % len(MODELS)])
    if count > 13:
        log = log_of(root, SLOW)
        slow = header(2, steps=60) + steps(39, 2) + steps(59, 2, first=40, seconds=14.0) + ending(0)
        _write(log, slow, log.stat().st_mtime, SLOW, MODELS[13 % len(MODELS)])
    if count > 21:
        folder = next(root.glob(f"{ACCUSED}-*/"))
        (folder / "verdict.json").write_text(accusing(ACCUSED, str(folder)).to_json())
    return root


def make_job(root: Path, job_id: str, model: str, age_s: float = 0.0, last: int = 29) -> Path:
    """A job of two nodes that finished; returns its directory."""
    name = f"{job_id}-JAX-{model}"
    folder = root / name
    folder.mkdir()
    log = root / f"{name}.log"
    _write(log, header(2, steps=last + 1) + steps(last, 2) + ending(0), NOW - age_s, job_id, model)
    (folder / "log").symlink_to(Path("..") / log.name)
    return folder


def log_of(root: Path, job_id: str) -> Path:
    """The log of a job."""
    return next(root.glob(f"{job_id}-*.log"))


def _write(log: Path, text: str, changed: float, job_id: str, model: str) -> None:
    own = text.replace("JOB_ID=77\nJOB_NAME=JAX-toy\n", f"JOB_ID={job_id}\nJOB_NAME=JAX-{model}\nMODEL_NAME={model}\n")
    log.write_text(own.replace("Job:    77 (JAX-toy)", f"Job:    {job_id} (JAX-{model})"))
    os.utime(log, (changed, changed))


def accusing(job_id: str, folder: str, host: str = "node002") -> Verdict:
    """A verdict that accuses one host."""
    return Verdict(
        job=JobRef(id=job_id, dir=folder, nodes=2, gpus=16),
        window=Window(start="2026-06-01T07:56:30Z", end="2026-06-01T07:57:00Z"),
        status="completed",
        outcome="incident",
        summary=f"Throughput fell by 20 % at step 12: RDMA packets of {host} were sent again.",
        causes=[Cause(cause="rdma-degradation", role="root", confidence=0.95, hosts=[host], evidence=["e1"])],
        evidence=[
            Evidence(id="e1", kind="metric", source="rate(hw_rdma_tx_retx_pkts_total[5m])", says=f"{host} 812/s")
        ],
        actions=[
            Action(do="exclude-nodes", hosts=[host], why="it slows all others", risk="one node", needs_approval=True)
        ],
        cost=Cost(seconds=1.0, queries=9, bytes_read=1000),
    )


def write_ledger(root: Path, *incidents: dict[str, Any]) -> None:
    """Incidents of nodes, as agents write them."""
    path = root / LEDGER
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"v": 1, **incident}) + "\n" for incident in incidents))


def make_sweep(root: Path) -> None:
    """A finished sweep over four nodes, one of them slow, written as the engine writes one."""
    request = {"model": "toy", "nodes": ["n1", "n2", "n3", "n4"]}
    plan, strategy = Plan(SWEEP, "nodes", request, Setup("slurm", str(root)), NOW), build("nodes", request)
    plan.save()
    with Book(plan.folder) as book:
        while trials := [t for t in strategy.next_trials(book.state.done) if t.key not in book.state.done]:
            for trial in trials:
                number = len(book.state.runs)
                run = book.intend(f"t{number}", trial, 1, 0.0)
                book.write("submitted", 1.0, tag=run.tag, job=str(9000 + number))
                speed = 80.0 + number / 10 if "n3" in trial.nodes else 100.0 + number / 10
                result = Result(trial.key, "ok", run.job, speed, speed - 1, speed + 1, 10.0, 20, minutes=5.0)
                book.write("result", 2.0, tag=run.tag, result=asdict(result), again="", stop="")
        book.write("end", 3.0, stop="")


@dataclass
class Site:
    """A running server."""

    url: str
    app: Any

    def get(self, path: str, **options: Any) -> httpx.Response:
        """One answer, redirects not followed."""
        with httpx.Client(timeout=60.0, verify=False) as client:  # noqa: S501 - no TLS here, and its setup is slow
            return client.get(self.url + path, **options)


def web_app(workspace: Path, **settings: Any) -> Any:
    """The app; its index of jobs is kept beside the workspace and not in the user's cache folder."""
    from trackwalker.web.app import create_app
    from trackwalker.web.settings import Settings

    return create_app(Settings(workspace, kept=workspace.parent / f"kept-{workspace.name}", **settings))


@contextmanager
def serving(workspace: Path, **settings: Any) -> Iterator[Site]:
    """The app over a workspace behind a real server on a free loopback port; at the end nothing of it is left."""
    import uvicorn

    app = web_app(workspace, **settings)
    server = uvicorn.Server(
        uvicorn.Config(
            app, host="127.0.0.1", port=0, log_level="warning", access_log=False, timeout_graceful_shutdown=2
        )
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        _wait(lambda: server.started or not thread.is_alive(), 60.0)
        assert server.started, "the server did not start"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Site(f"http://127.0.0.1:{port}", app)
    finally:
        server.should_exit = True
        thread.join(60.0)
        assert not thread.is_alive(), "the server did not end"


def _wait(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)


@dataclass
class Looked:
    """A page that is open, and what it complained of."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)  # requests to anybody but the server

    def wait_for_count(self, selector: str, count: int) -> None:
        """Wait until so many elements are there; `wait_for_function` is a no here: the content policy forbids eval."""
        from playwright.sync_api import expect

        expect(self.page.locator(selector)).to_have_count(count, timeout=LONG_MS)

    def screenshot(self, name: str, whole: bool = True) -> None:
        """Keep a picture of it, where somebody asked for pictures."""
        folder = os.environ.get("TRACKWALKER_ARTEFACTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=whole)

    def axe(self, *rules: str) -> list[str]:
        """What the accessibility checker finds wrong, by these rules or by all, one line each."""
        from axe_playwright_python.sync_playwright import Axe

        options = {"runOnly": list(rules)} if rules else None
        found = Axe().run(self.page, options=options).response["violations"]
        return [f"{v['id']}: {v['help']}: {[n['html'][:160] for n in v['nodes'][:3]]}" for v in found]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for the tests of a file."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'")
    with sync_api.sync_playwright() as driver:
        made = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"], timeout=LONG_MS
        )
        yield made
        made.close()


@pytest.fixture
def look(browser: Any) -> Iterator[Callable[..., Looked]]:
    """Opens a page; whatever it says to the console, throws, pops up or asks of others fails the test at its end."""
    contexts, opened = [], []

    def open_page(url: str, width: int = 1440, height: int = 900, scheme: str = "light", **more: Any) -> Looked:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **more)
        context.set_default_timeout(LONG_MS)
        contexts.append(context)
        looked = Looked(context.new_page())
        opened.append(looked)
        home = url.split("/", 3)[2]
        page = looked.page
        page.on("console", lambda m: looked.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: looked.complaints.append(str(error)))
        page.on("dialog", lambda dialog: looked.complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda r: None if _ours(r.url, home) else looked.foreign.append(r.url))
        page.goto(url)
        return looked

    yield open_page
    for context in contexts:
        context.close()
    complaints = [line for looked in opened for line in looked.complaints]
    foreign = [url for looked in opened for url in looked.foreign]
    assert not complaints, complaints
    assert not foreign, foreign


def _ours(url: str, home: str) -> bool:
    return url.startswith(("data:", "blob:", "file:")) or url.split("/", 3)[2] == home
