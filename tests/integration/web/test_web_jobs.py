"""The web app's core in a real browser: find the broken job among 200, compare two, every page usable and clean."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from web_client import (
    ACCUSED,
    BROKEN,
    SLOW,
    SWEEP,
    Looked,
    Site,
    browser,  # noqa: F401
    log_of,
    look,  # noqa: F401
    make_job,
    make_sweep,
    needs_chromium,
    serving,
    workspace_of,
    write_ledger,
)

pytestmark = [needs_chromium]
Look = Callable[..., Looked]
JOBS = 200


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = workspace_of(JOBS, tmp_path_factory.mktemp("web") / "outputs")
    now = time.time()
    trouble = {"attempt": 1, "kind": "check-failed", "what": "ecc", "line": "GPU 3: 2 uncorrectable memory errors"}
    silent = {"attempt": 1, "kind": "no-word", "what": "preflight", "line": "no word within the time of the stage"}
    write_ledger(
        root,
        {"t": now - 3_600, "host": "node002", "job": "9150", **trouble},
        {"t": now - 90_000, "host": "node002", "job": "9140", **silent},
        {"t": now - 200_000, "host": "node031", "job": "9120", **silent},
    )
    make_sweep(root)
    return root


@pytest.fixture(scope="module")
def site(workspace: Path) -> Iterator[Site]:
    with serving(workspace) as made:
        assert made.app.state.jobs.wait(120.0)
        yield made


def test_the_broken_job_is_found_among_two_hundred(site: Site, look: Look) -> None:  # noqa: F811
    seen = look(site.url)
    page = seen.page
    page.wait_for_selector("#rows tr")
    assert page.locator("#rows tr").count() == JOBS
    head, first = page.locator("table.jobs thead").bounding_box(), page.locator("#rows tr").first.bounding_box()
    assert head["y"] + head["height"] <= first["y"] + 1  # the head that stays in sight covers no row
    assert page.inner_text(".tabs a[data-group=trouble] .count") == "3"
    seen.screenshot("jobs", whole=False)
    page.click(".tabs a[data-group=trouble]")
    seen.wait_for_count("#rows tr", 3)
    seen.screenshot("jobs-trouble", whole=False)
    page.keyboard.press("/")
    page.keyboard.type("failed")
    seen.wait_for_count("#rows tr", 1)
    assert page.inner_text("#rows tr th") == BROKEN
    assert "q=failed" in page.url
    page.reload()
    assert page.locator("#rows tr").count() == 1
    with page.expect_response(lambda r: f"/job/{BROKEN}" in r.url) as opened:
        page.click(f"#job-{BROKEN} th a")
    assert opened.value.status == 200
    assert BROKEN in page.inner_text("main")


def test_two_jobs_are_ticked_and_compared(site: Site, look: Look) -> None:  # noqa: F811
    seen = look(f"{site.url}/?q=llama2")
    page = seen.page
    assert page.is_disabled("#compare")
    page.check("#job-9004 .tick input")
    page.fill("#q", "")
    page.wait_for_selector(f"#job-{SLOW}")
    assert page.is_checked("#job-9004 .tick input")  # a search does not forget what was ticked
    page.check(f"#job-{SLOW} .tick input")
    page.click("#compare")
    page.wait_for_selector(".versus")
    assert page.url.endswith(f"/compare?a=9004&b={SLOW}")
    assert "tokens/s/device" in page.inner_text(".versus")
    assert "Settings that differ" in page.inner_text("main")
    assert seen.axe() == []
    seen.screenshot("compare")


def test_the_list_follows_the_workspace_and_keeps_the_focus(tmp_path: Path, look: Look) -> None:  # noqa: F811
    root = workspace_of(3, tmp_path / "outputs")
    with serving(root) as own:
        page = look(own.url).page
        page.wait_for_selector("#rows[data-pending='0']")
        page.focus("#job-9001 .tick input")
        make_job(root, "9100", "late")
        page.wait_for_selector("#job-9100 .badge.good")
        assert page.evaluate("document.activeElement.value") == "9001"
        shutil.rmtree(root / "9100-JAX-late")
        log_of(root, "9100").unlink()
        page.wait_for_selector("#job-9100", state="detached")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("jobs", "/?state=trouble"),
        ("none", "/?q=nothing-like-it"),
        ("nodes", "/nodes"),
        ("lab", "/lab"),
        ("sweeps", "/sweeps"),
        ("sweep", f"/sweeps/{SWEEP}"),
        ("ask", f"/ask?q=which+node+is+bad+in+{ACCUSED}&wait=1"),
        ("compare-ask", "/compare"),
    ],
)
def test_every_page_passes_the_accessibility_checks_in_both_themes(
    site: Site,
    look: Look,  # noqa: F811
    name: str,
    path: str,
) -> None:
    seen = look(site.url + path)
    seen.page.wait_for_load_state("networkidle")
    seen.screenshot(f"{name}-light", whole=name != "lab")
    assert seen.axe() == []
    assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = seen.page.evaluate(ground)
    seen.page.emulate_media(color_scheme="dark")
    assert seen.page.evaluate(ground) != light
    seen.screenshot(f"{name}-dark", whole=name != "lab")
    assert seen.axe("color-contrast") == []  # all that a theme changes


def test_a_page_that_is_not_there_says_so_in_the_same_frame(site: Site, look: Look) -> None:  # noqa: F811
    seen = look(f"{site.url}/ask")
    seen.page.goto(f"{site.url}/job/no-such-job-anywhere")
    assert "No such job" in seen.page.inner_text("h1")
    assert seen.axe() == []
    seen.complaints.clear()  # a browser notes a 404 on its console


def test_theme_and_zone_are_chosen_by_keyboard_and_kept(site: Site, look: Look) -> None:  # noqa: F811
    page = look(f"{site.url}/nodes", timezone_id="Asia/Kolkata").page
    first = page.locator("time").first
    written = first.inner_text()
    assert written.endswith("UTC")
    page.focus("#zone")
    page.keyboard.press("Enter")
    assert not first.inner_text().endswith("UTC")
    assert first.get_attribute("title") == written
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(ground)
    page.focus("#theme")
    page.keyboard.press("Enter")
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark
    assert not page.locator("time").first.inner_text().endswith("UTC")
    page.keyboard.press("Tab")
    assert "Skip" in page.evaluate("document.activeElement.textContent")


@contextmanager
def command(workspace: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`trackwalker serve` as a process, and the address that it printed."""
    argv = [sys.executable, "-c", "from trackwalker.cli import app; app.main()", "serve", "--port", "0", *words]
    process = subprocess.Popen(
        [*argv, "--workspace", str(workspace)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[0]
    finally:
        process.kill()
        _, said = process.communicate()
    assert "Traceback" not in said


def test_the_command_serves_until_it_is_interrupted(workspace: Path) -> None:
    with command(workspace) as (process, url):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{20,}", url)
        assert "Trackwalker" in httpx.get(url, timeout=60.0).text
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_on_another_address_the_printed_token_opens_it_and_stays_a_secret(workspace: Path, look: Look) -> None:  # noqa: F811
    with command(workspace, "--host", "127.0.0.2") as (_, url):  # still this machine, but not by its usual name
        bare, token = url.split("?token=")
        assert httpx.get(bare, timeout=60.0).status_code == 401
        page = look(url).page
        page.wait_for_selector("table.jobs")
        assert token not in page.url
        assert token not in page.evaluate("document.cookie")
        assert token not in page.content()
        page.close()  # before the server: a browser notes on its console that nobody answers
