"""A running job in a real browser: how old what is shown is, the chart that grows, the end that is announced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from watched_job import SimJob
from web_client import browser, look, needs_chromium, serving  # noqa: F401

from trackwalker.job.journal import encode
from trackwalker.job.processes import read_stat
from trackwalker.watch.memory import FOLDER

pytestmark = [needs_chromium]


class Running(SimJob):
    """A job whose agent is a process of the test's own."""

    def __init__(self, workspace: Path) -> None:
        super().__init__(workspace, "4242")
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        stat = read_stat(self.process.pid)
        assert stat is not None
        (self.dir / "agent").mkdir()
        state = {"agent": {"pid": self.process.pid, "start": stat.start}, "ranks": []}
        (self.dir / "agent" / "state.json").write_text(json.dumps(state))

    def grow(self, count: int) -> None:
        """So many steps, the last of them now."""
        last = getattr(self, "last", time.time() - 30.0 * count)
        self.last = self.steps(last, (time.time() - last) / count, count, loss=2.5)
        with self.log.open("a") as log:
            log.write("0: more words\n")
        os.utime(self.log)

    def called(self, title: str) -> None:
        """What a watcher of the workspace would have written down."""
        folder = self.log.parent / FOLDER
        folder.mkdir(mode=0o700)
        said = {"id": "i1", "job": self.id, "kind": "stall", "title": title, "since": time.time(), "severity": "high"}
        (folder / "journal.jsonl").write_bytes(encode({"op": "open", "incident": said}))

    def finish(self) -> None:
        self.process.kill()
        self.process.wait()
        (self.dir / "agent" / "state.json").unlink()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    job = Running(tmp_path / "outputs")
    job.grow(40)
    yield job
    job.process.kill()
    job.process.wait()


def test_a_running_job_says_how_old_it_is_grows_and_ends(running: Running, look: Any) -> None:  # noqa: F811
    with serving(running.log.parent) as site:
        page = look(f"{site.url}/job/4242").page
        page.wait_for_selector("#timeline-plot canvas")
        page.locator("#live-words", has_text="ago").wait_for()
        assert "running" in page.inner_text("#live-words")
        assert "updated" in page.inner_text("#live-words")
        # A long run's words break on a phone instead of making the page wider.
        page.set_viewport_size({"width": 390, "height": 900})
        fits = "document.documentElement.scrollWidth <= innerWidth"
        deadline = time.monotonic() + 10
        while not page.evaluate(fits) and time.monotonic() < deadline:
            page.wait_for_timeout(100)  # the charts follow the window a moment later
        words = "running, step 1,002,790 of 1,600,000; updated 0.66 s ago"
        assert page.evaluate(
            f"() => {{ document.getElementById('live-words').textContent = '{words}'; return {fits}; }}"
        )
        last = "window.jobPage.timeline.data.step.at(-1)"
        before = page.evaluate(last)
        running.grow(5)
        deadline = time.monotonic() + 40
        while page.evaluate(last) == before and time.monotonic() < deadline:
            page.wait_for_timeout(300)
        assert page.evaluate(last) > before, "the chart did not grow"
        running.called("no step for 10 min")
        page.locator("#live-said", has_text="The watcher calls: no step for 10 min").wait_for()
        page.locator("#head .signs", has_text="no step for 10 min").wait_for()
        running.finish()
        page.locator("#live-said", has_text="The job was").wait_for()
        page.close()


def test_the_stream_says_what_changed(running: Running) -> None:
    import httpx

    with serving(running.log.parent) as site, httpx.stream("GET", f"{site.url}/job/4242/live", timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in answer.iter_lines() if line.startswith("data:"))
        first = json.loads(next(lines)[5:])
        assert first["live"]
        running.grow(3)
        second = json.loads(next(lines)[5:])
        assert second["mark"] != first["mark"]
        assert second["last_step"] > first["last_step"]
