"""What the list of jobs said wrongly on 0.1.0 (a6c3c48), in a real browser: each of these fails there.

It needs nothing that 0.1.0 had not: `git archive a6c3c48`, this file and `pytest` show it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from fleet_workspace import make_run
from triage_logs import CANCEL, header, steps
from web_client import (  # noqa: F401
    LONG_MS,
    SLOW,
    Looked,
    browser,
    look,
    make_job,
    needs_chromium,
    serving,
    workspace_of,
)

from trackwalker.job.processes import read_stat

pytestmark = needs_chromium


def test_bars_are_green_for_much_goodput_only(tmp_path: Path, look: Callable[..., Looked]) -> None:  # noqa: F811
    """On 0.1.0 a bar of 23 % was as green as one of 98 %; a run that hardly trained has none."""
    root = workspace_of(1, tmp_path / "outputs")
    make_run(root, "9900", ["n1"], slow_s=60.0)
    with serving(root) as site_:
        assert site_.app.state.jobs.wait(60.0)
        page = look(f"{site_.url}/").page
        share = float(page.locator("#job-9900 td:nth-last-child(2)").inner_text().split()[0])
        assert share < 50
        assert page.locator("#job-9000 td:nth-last-child(2)").inner_text() == "mostly start-up"
        fill = page.locator(".meter .part").first.evaluate("e => getComputedStyle(e).fill")
        green = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--good').trim()")
        assert fill != _rgb(green)
        page.close()


def test_tabs_count_every_job_that_they_show(tmp_path: Path, look: Callable[..., Looked]) -> None:  # noqa: F811
    """On 0.1.0 "Cancelled 1" stood above seven cancelled rows: those that had been slow before counted as trouble."""
    root = workspace_of(1, tmp_path / "outputs")
    for number in range(3):
        make_job(root, str(9100 + number), "toy")
        slow = steps(59, 2, first=40, seconds=14.0) if number else ""
        next(root.glob(f"{9100 + number}-*.log")).write_text(header(2, steps=80) + steps(39, 2) + slow + CANCEL)
    with serving(root) as site_:
        assert site_.app.state.jobs.wait(60.0)
        seen = look(f"{site_.url}/")
        words = seen.page.locator("tbody tr td:nth-child(3)").all_inner_texts()
        told = seen.page.locator(".tabs a[data-group=cancelled] .count").inner_text()
        assert int(told) == sum(word.strip() == "cancelled" for word in words) == 3
        seen.page.goto(f"{site_.url}/?state=cancelled")
        assert seen.page.locator("tbody tr").count() == 3
        seen.page.close()


def test_two_slow_steps_of_a_running_job_are_no_slowdown(tmp_path: Path, look: Callable[..., Looked]) -> None:  # noqa: F811
    """On 0.1.0 a healthy running job flashed "slower -37.5 %" while it saved or evaluated."""
    root = workspace_of(0, tmp_path / "outputs")
    folder = make_job(root, "9100", "toy")
    log = next(root.glob("9100-*.log"))
    _live(folder)
    log.write_text(header(2, steps=400) + steps(79, 2) + steps(82, 2, first=80, seconds=40.0))
    with serving(root) as site_:
        assert site_.app.state.jobs.wait(60.0)
        page = look(f"{site_.url}/").page
        assert page.locator("tbody .badge").first.inner_text() == "running"
        assert "slower" not in page.locator("tbody").inner_text()
        # What lasts is said.
        log.write_text(header(2, steps=400) + steps(79, 2) + steps(110, 2, first=80, seconds=20.0))
        page.wait_for_selector("text=slower", timeout=LONG_MS)
        page.close()


def test_a_list_shows_when_a_job_ran_and_not_when_a_file_was_touched(
    tmp_path: Path,
    look: Callable[..., Looked],  # noqa: F811
) -> None:
    """On 0.1.0 it showed when the log was last written, copied or unpacked."""
    root = workspace_of(0, tmp_path / "outputs")
    folder = make_job(root, "9100", "toy")
    began = time.time() - 5 * 86400.0
    run = {
        "schema": "trackwalker.run/1", "id": "9100", "name": "JAX-toy", "model": "toy", "scheduler": "slurm",
        "trainer": "maxtext", "created": began, "argv": ["submit"], "command": ["python"], "workspace": str(root),
        "ranks": [{"rank": n, "host": f"node00{n}", "node": f"node00{n}"} for n in (1, 2)],
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run))
    next(root.glob("9100-*.log")).touch()
    with serving(root) as site_:
        assert site_.app.state.jobs.wait(60.0)
        page = look(f"{site_.url}/").page
        told = page.locator("tbody tr td:last-child time").first.inner_text()
        assert told == time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(began))
        page.close()


def test_a_verdict_is_on_the_list_though_nobody_opened_the_job(tmp_path: Path) -> None:
    """On 0.1.0 it said "slower -28.6 %" until somebody looked at the job, and its host was not among the nodes."""
    root = workspace_of(14, tmp_path / "outputs")
    for folder in root.glob("90*-*"):
        if not folder.name.startswith(SLOW):
            folder.unlink() if folder.is_file() else None
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state")}
    argv = [sys.executable, "-m", "trackwalker", "serve", "--workspace", str(root), "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            link = process.stdout.readline().split()[0]
            with httpx.Client(timeout=60.0, follow_redirects=True) as client:
                client.get(link)
                deadline = time.monotonic() + 100.0
                while (row := _row(client, link.partition("?")[0]))["badge_from"] != "verdict":
                    assert time.monotonic() < deadline, row
                    time.sleep(0.1)
            assert not list(root.rglob("verdict.json"))
        finally:
            process.terminate()
            process.wait(60.0)


def _row(client: httpx.Client, url: str) -> dict[str, Any]:
    return next(row for row in client.get(f"{url}jobs.json").json()["jobs"] if row["id"] == SLOW)


def _live(folder: Path) -> None:
    """As an agent that runs writes it: this very process."""
    seen = read_stat(os.getpid())
    assert seen is not None
    (folder / "agent").mkdir()
    state: dict[str, Any] = {
        "v": 1,
        "agent": {"pid": seen.pid, "start": seen.start},
        "started": time.time(),
        "ranks": [],
    }
    (folder / "agent" / "state.json").write_text(json.dumps(state))


def _rgb(colour: str) -> str:
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return f"rgb({', '.join(map(str, parts))})"
