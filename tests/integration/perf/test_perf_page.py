"""The performance page in a real browser: from a file, with the network off, by keyboard and mouse."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from trace_maker import Recipe, write_ranks
from triage_logs import ending, header, steps
from typer.testing import CliRunner

from trackwalker.cli.app import app
from trackwalker.job.layout import Job
from trackwalker.perf.analysis.report import Options, analyse
from trackwalker.perf.analysis.step_lanes import step_lanes
from trackwalker.report.perf.page import perf_page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"),
]
H200 = Path(__file__).parents[2] / "data" / "perf" / "h200.xplane.pb.gz"
STRAGGLER = Recipe(gpus=4, steps=4, layers=2, kernels=3, slow={2: 2.5})
EVIL = "</script><img src=x onerror='window.hacked=1'><b onclick=\"window.hacked=2\">\u202egnp\x1b[31m"
LONG_MS = 60_000  # a loaded machine may stand still for seconds


def call(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def make_job(folder: Path, number: int, recipe: Recipe, seconds: float = 10.0) -> Path:
    job = folder / f"{number}-JAX-toy"
    profile = job / "tensorboard" / "plugins" / "profile" / "2023_11_14_22_13_20"
    profile.mkdir(parents=True)
    log = folder / f"{number}-JAX-toy.log"
    config = {"per_device_batch_size": 10, "max_target_length": 4096, "gradient_accumulation_steps": 1}
    log.write_text(header(2, steps=40, **config) + steps(39, 2, seconds=seconds) + ending(0))
    (job / "log").symlink_to(Path("..") / log.name)
    write_ranks(recipe, profile, gpus_per_host=2)
    return job


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each kind of page, as the command writes it."""
    folder = tmp_path_factory.mktemp("pages")
    job, other = make_job(folder, 71, STRAGGLER), make_job(folder, 72, Recipe(**{**vars(STRAGGLER), "slow": {}}), 8.0)
    call("perf", str(job), "--save", "--gpu", "MI300X")
    call("perf", str(H200), "--html", str(folder / "h200.html"))
    call("perf", "diff", str(job), str(other), "--html", str(folder / "diff.html"))
    report = analyse(Job("evil", None, None), Options(traces=[H200]))
    assert report.trace is not None
    lanes = step_lanes(report.trace)
    for row in (*report.trace.kernels, *report.trace.ops, *report.trace.kinds, *report.trace.parts):
        row.name = row.path = row.source = row.part = EVIL
    for fix in report.fixes:
        fix.says = fix.do = fix.evidence = EVIL
    report.job.id = report.job.name = report.trace.devices[0].device = EVIL
    for device in lanes.devices:
        device.device = EVIL
        for lane in device.streams:
            lane.title, lane.name = EVIL, [EVIL] * len(lane.name)
    (folder / "evil.html").write_text(perf_page(report, lanes), encoding="utf-8")
    call("perf", str(folder / "72-JAX-toy"), "--no-trace", "--html", str(folder / "log.html"))
    found = {name: folder / f"{name}.html" for name in ("h200", "diff", "evil", "log")}
    return {"job": job / "perf.html", **found}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        made = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"], timeout=LONG_MS
        )
        yield made
        made.close()


@dataclass
class Looked:
    """A page that is open, and what it asked for and complained of."""

    page: Any
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture
def look(browser: Any) -> Iterator[Callable[..., Looked]]:
    """Opens a page with the network off; whatever it says to the console or asks for is a failure."""
    contexts, opened = [], []

    def open_page(
        where: str, width: int = 1280, height: int = 800, scheme: str = "light", offline: bool = True
    ) -> Looked:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, offline=offline)
        context.set_default_timeout(LONG_MS)
        contexts.append(context)
        looked = Looked(context.new_page())
        opened.append(looked)
        looked.page.on("request", lambda request: looked.asked.append(request.url))
        looked.page.on("console", lambda message: looked.complaints.append(message.text))
        looked.page.on("pageerror", lambda error: looked.complaints.append(str(error)))
        looked.page.on("dialog", lambda dialog: looked.complaints.append(f"dialog: {dialog.message}"))
        looked.page.goto(where)
        return looked

    yield open_page
    for looked in opened:
        assert looked.complaints == []
        assert [url for url in looked.asked if not url.startswith(("file://", "data:", "http://127.0.0.1:"))] == []
        assert len([url for url in looked.asked if not url.startswith("data:")]) == 1  # the page and nothing else
    for context in contexts:
        context.close()


def test_the_first_screen_says_what_to_fix_first(pages: dict[str, Path], look: Callable[..., Looked]) -> None:
    page = look(pages["job"].as_uri()).page
    for selector in ("#h-first", ".fix .gain b", ".fix .evidence", ".tiles", ".stack", ".legend"):
        box = page.locator(selector).first.bounding_box()
        assert box is not None, selector
        assert box["y"] >= 0, selector
        assert box["y"] + box["height"] <= 800, selector
    assert "host1.proc0 gpu 0" in page.inner_text("#h-first")
    assert page.inner_text(".fix .gain b").endswith(" %")
    figures = page.inner_text(".tiles")
    for name in ("TGS", "MFU", "STEP", "EXPOSED COMM", "IDLE", "GOODPUT"):
        assert name in figures
    widths = page.eval_on_selector_all(".stack rect", "rects => rects.map(r => +r.getAttribute('width'))")
    assert sum(widths) == pytest.approx(1000, abs=0.1)  # the bar adds up


def test_every_part_opens_and_every_drawing_has_a_table(pages: dict[str, Path], look: Callable[..., Looked]) -> None:
    page = look(pages["job"].as_uri()).page
    names = page.eval_on_selector_all("[data-tab]", "tabs => tabs.map(t => t.dataset.tab)")
    expected = "overview timeline kernels parts collectives ranks hlo throughput goodput missing"
    assert names == expected.split()
    for name in names:
        page.click(f"[data-tab={name}]")
        page.wait_for_selector(f"#{name}", state="visible")
        assert page.eval_on_selector_all("[data-panel]", "all => all.filter(p => !p.hidden).length") == 1
        assert page.evaluate("scrollY") == 0
        assert page.locator(f"#{name} table").count() >= 1
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.click("[data-tab=overview]")
    page.click("text=see Ranks")  # from the evidence of a fix to where it is shown
    page.wait_for_selector("#ranks", state="visible")
    page.go_back()
    page.wait_for_selector("#overview", state="visible")
    page.click("[data-tab=ranks]")
    assert page.locator("#ranks .plot rect.h4").count() == 4  # the straggler, in every step


def test_the_keyboard_reaches_the_tabs_and_the_zoom(pages: dict[str, Path], look: Callable[..., Looked]) -> None:
    page = look(pages["job"].as_uri()).page
    focused = "document.activeElement"
    page.keyboard.press("Tab")
    assert "Skip" in page.evaluate(f"{focused}.textContent")
    page.keyboard.press("Tab")
    assert page.evaluate(f"{focused}.dataset.tab") == "overview"
    assert page.evaluate(f"getComputedStyle({focused}).outlineStyle") == "solid"  # one sees where one is
    page.keyboard.press("ArrowRight")
    assert page.evaluate(f"{focused}.getAttribute('aria-selected')") == "true"
    assert page.is_visible("#timeline")
    page.keyboard.press("Tab")
    assert page.evaluate(f"{focused}.dataset.zoom") == "in"
    whole = page.inner_text("#lanes-window")
    page.keyboard.press("Enter")
    closer = page.inner_text("#lanes-window")
    assert closer != whole
    for _ in range(5):
        page.keyboard.press("Tab")
    assert page.evaluate(f"{focused}.id") == "lanes-view"
    page.keyboard.press("+")
    assert page.inner_text("#lanes-window") not in (whole, closer)
    page.keyboard.press("ArrowDown")
    first = page.inner_text("#lanes-said")
    assert "host0.proc0 gpu 0" in first
    page.keyboard.press("ArrowDown")
    page.keyboard.press(".")
    assert page.inner_text("#lanes-said") != first
    assert "% of the step" in page.inner_text("#lanes-said")
    page.keyboard.press("0")
    assert page.inner_text("#lanes-window") == whole


def test_the_mouse_zooms_and_asks(pages: dict[str, Path], look: Callable[..., Looked]) -> None:
    page = look(pages["h200"].as_uri() + "#timeline").page
    whole = page.inner_text("#lanes-window")
    box = page.locator("#lanes-view").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.8
    page.mouse.move(x, y)
    assert "gpu 0" in page.inner_text("#lanes-said")
    page.mouse.down()
    page.mouse.move(x + 100, y, steps=3)
    page.mouse.up()
    near = page.inner_text("#lanes-window")
    assert near != whole
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_function("text => document.querySelector('#lanes-window').textContent !== text", arg=near)
    page.mouse.dblclick(x, y)
    assert page.inner_text("#lanes-window") == whole
    page.click("[data-tab=kernels]")
    page.fill("[data-filter=kernels-2]", "NVJET")
    shown = page.eval_on_selector_all("#t-kernels-2 tbody tr", "rows => rows.filter(r => !r.hidden).length")
    assert 0 < shown < 50
    assert page.inner_text("[data-count=kernels-2]").startswith(f"{shown} of ")


def test_hostile_names_are_text(pages: dict[str, Path], look: Callable[..., Looked]) -> None:
    page = look(pages["evil"].as_uri()).page
    for name in page.eval_on_selector_all("[data-tab]", "tabs => tabs.map(t => t.dataset.tab)"):
        page.click(f"[data-tab={name}]")
    page.click("[data-tab=timeline]")
    page.focus("#lanes-view")
    for key in ("ArrowDown", "ArrowDown", ".", "+"):
        page.keyboard.press(key)
    assert "</script><img" in page.inner_text("#lanes-said")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, iframe, object, b[onclick], [onerror]").count() == 0
    assert page.locator("script").count() == 2  # ours and its data
    text = page.evaluate("document.body.textContent")
    assert "onerror='window.hacked=1'" in text
    assert not set(text) & {"\u202e", "\x1b"}


@pytest.mark.parametrize(("scheme", "ground"), [("light", "rgb(246, 247, 248)"), ("dark", "rgb(20, 23, 27)")])
def test_dark_is_dark_and_narrow_is_readable(
    pages: dict[str, Path], look: Callable[..., Looked], scheme: str, ground: str
) -> None:
    page = look(pages["job"].as_uri(), width=600, scheme=scheme).page
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == ground
    for name in ("overview", "collectives", "ranks"):
        page.click(f"[data-tab={name}]")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


def test_paper_has_all_parts_and_none_over_another(pages: dict[str, Path], look: Callable[..., Looked]) -> None:
    page = look(pages["h200"].as_uri(), width=760, scheme="dark").page
    page.emulate_media(media="print")
    assert page.eval_on_selector_all("[data-panel]", "all => all.every(p => p.getClientRects().length > 0)")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    covered = page.evaluate(
        """() => {
          const blocks = [...document.querySelectorAll("section")].map(s => s.getBoundingClientRect());
          const insides = [...document.querySelectorAll("section")].map(s =>
            Math.max(...[...s.querySelectorAll("tr, p, svg")].map(e => e.getBoundingClientRect().bottom), 0));
          return blocks.filter((b, i) => i + 1 < blocks.length && insides[i] > blocks[i + 1].top + 1).length;
        }"""
    )
    assert covered == 0
    assert len(page.pdf()) > 10_000


def test_two_runs_and_a_log_alone_have_pages_too(pages: dict[str, Path], look: Callable[..., Looked]) -> None:
    page = look(pages["diff"].as_uri()).page
    assert "faster" in page.inner_text("#h-first")
    assert page.locator("#overview .falls rect").count() == 7  # A, five buckets, B
    page.click("[data-tab=waterfall]")
    assert page.locator("#waterfall tbody tr").count() == 6
    page = look(pages["log"].as_uri()).page
    assert "a trace would show" in page.inner_text("#overview")
    assert "TGS" in page.inner_text(".tiles")


def test_the_page_is_served_to_this_machine_until_interrupted(look: Callable[..., Looked]) -> None:
    command = [sys.executable, "-m", "trackwalker", "perf", "serve", str(H200)]
    serving = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert serving.stdout is not None
        url = serving.stdout.readline().split()[0]
        assert url.startswith("http://127.0.0.1:")
        page = look(url, offline=False).page
        assert "softmax" in page.inner_text("#h-first")
        serving.send_signal(signal.SIGINT)
        out, errors = serving.communicate(timeout=60)
        assert serving.returncode == 0, out + errors
        assert "Traceback" not in errors
    finally:
        serving.kill()
        serving.wait()
