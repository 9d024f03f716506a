"""The report file of a real diagnosis: from the command and from the server, offline, in both themes, and on paper."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pdf_text import pages_of
from typer.testing import CliRunner
from web_client import LONG_MS, Site, browser, needs_chromium, serving  # noqa: F401
from worlds import START, World

from trackwalker.cli.app import app

HOSTS = [f"tx{n}" for n in (11, 14, 15, 19, 23, 31)]
BAD = "tx19"


@dataclass(frozen=True)
class Told:
    """The report of one job, as both surfaces give it."""

    site: Site
    file: Path
    root: Path


def slow_world(job_id: str, batch: str) -> World:
    """Half way the NIC of one host begins to send packets again, and every step waits for it."""
    rng = random.Random(job_id)
    steps = [level * rng.gauss(1.0, 0.005) for level in (10.0, 13.0) for _ in range(60)]
    config = {"per_device_batch_size": batch, "enable_checkpointing": "true"}
    world = World(HOSTS, steps, total=120, job_id=job_id, config=config)
    onset = world.ends[59]

    def metrics(host: str, time: float) -> dict[str, float]:
        sent = 40 * max(0.0, time - onset) if host == BAD else 0.0
        return {
            'hw_rdma_tx_retx_pkts_total{device="mlx5_2",port="1"}': round(sent),
            'hw_rdma_tx_ack_timeout_total{device="mlx5_2",port="1"}': round(sent / 50),
            "hw_procs_running": 20 + (int(time) + len(host)) % 5,
            "hw_tcp_retransmits_total": 2000 * (time - START),
            'hw_gpu_power_watts{gpu="0"}': 650 + (int(time) % 7),
        }

    world.metrics = metrics
    world.tail = ["3: WARNING slow collective", "3: HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz"]
    return world


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, prometheus: Path) -> Iterator[Told]:
    root = tmp_path_factory.mktemp("report")
    slow_world("5149", "8").build(root, None)
    slow_world("5150", "12").build(root, prometheus)
    file = tmp_path_factory.mktemp("ticket") / "report.html"
    done = CliRunner().invoke(app, ["diagnose", "5150", "--workspace", str(root), "--html", str(file)])
    assert done.exit_code == 0, done.output
    with serving(root) as site:
        yield Told(site, file, root)


@pytest.fixture
def offline(browser: Any, told: Told) -> Iterator[Any]:  # noqa: F811
    """The file in a browser that has no network; any request, complaint or dialog fails the test."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(LONG_MS)
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else wrong.append(r.url))
    page.goto(told.file.as_uri())
    yield page
    assert wrong == []
    context.close()


def test_the_file_tells_the_whole_story_and_names_the_host(told: Told) -> None:
    text = told.file.read_text(encoding="utf-8")
    assert len(text.encode()) < 1_000_000
    assert "hf_abcdefghijklmnopqrstuvwxyz" not in text
    for section in (
        "verdict",
        "timeline",
        "hosts",
        "causes",
        "evidence",
        "tested",
        "quality",
        "progress",
        "settings",
        "raw",
    ):
        assert f'<section id="{section}"' in text
    for word in (
        "rdma",
        BAD,
        "exclude-nodes",
        "Where the time went",
        "GPU-hours",
        "per_device_batch_size",
        "explains speed",
    ):
        assert word in text
    assert text.count('<svg class="plot') == 4
    assert text.count("data:image/png;base64,") == 1


def test_the_server_gives_the_same_story_and_leaves_the_job_as_it_was(told: Told, unchanged: list[Path]) -> None:
    unchanged.append(told.root)
    answer = told.site.get("/job/5150/report.html")
    assert answer.status_code == 200

    def body(text: str) -> list[str]:
        return [line for line in text.splitlines() if "diagnosis took" not in line and '"seconds"' not in line]

    own, theirs = body(told.file.read_text(encoding="utf-8")), body(answer.text)
    assert sum(a != b for a, b in zip(own, theirs, strict=True)) <= 4  # what the diagnosis itself cost


@needs_chromium
def test_the_file_opens_without_a_network_and_its_charts_have_tables(offline: Any) -> None:
    assert offline.locator("h1").inner_text().count(BAD) >= 1
    assert offline.locator("figure").count() == 4
    assert offline.locator("figure + details table, details:has(table)").count() >= 4
    image = offline.locator("image.cells").bounding_box()
    assert image["width"] > 500
    assert image["height"] >= 6 * 10
    evidence = offline.locator("#evidence .item").first
    assert evidence.locator(".source code").inner_text()


@needs_chromium
def test_the_file_passes_the_accessibility_checks_in_both_themes(offline: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    for scheme, ground in (("light", "rgb(246, 247, 248)"), ("dark", "rgb(20, 23, 27)")):
        offline.emulate_media(color_scheme=scheme)
        assert offline.evaluate("getComputedStyle(document.documentElement).backgroundColor") == ground
        offline.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        found = Axe().run(offline).response["violations"]
        assert [(v["id"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found] == []


@needs_chromium
def test_the_file_prints_to_a_few_pages_with_no_chart_cut(offline: Any) -> None:
    pages = pages_of(offline.pdf(format="A4", print_background=True))
    text = "\n".join(pages)
    assert 2 <= len(pages) <= 8
    squeezed = text.replace("\n", " ")
    for word in (
        "Trackwalker",
        BAD,
        "Step time",
        "Suspect hosts against the others",
        "Where the time went",
        "Ruled out",
    ):
        assert word in squeezed
    assert "Trackwalker" in pages[0]
    assert all(len(page.strip()) > 40 for page in pages), "an almost empty page"
    # On paper nothing scrolls and nothing that is drawn is higher than a page, so no chart is cut.
    offline.emulate_media(media="print")
    offline.set_viewport_size({"width": 703, "height": 1000})  # A4 less its margins
    heights = offline.evaluate(
        "[...document.querySelectorAll('figure')].map(f => [f.offsetHeight, getComputedStyle(f).breakInside])"
    )
    assert all(height < 1000 and inside == "avoid" for height, inside in heights)
    assert offline.evaluate(
        "[...document.querySelectorAll('figure svg')].every(s => s.getBoundingClientRect().right <= innerWidth)"
    )
