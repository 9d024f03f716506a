"""One cursor and one zoom for every chart of a job page, by pointer and by keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from web_client import Looked, browser, look, needs_chromium, serving  # noqa: F401

from trackwalker.lab.scenario import load_scenario
from trackwalker.lab.simulate import simulate

pytestmark = [needs_chromium, pytest.mark.usefixtures("prometheus")]

Look = Callable[..., Looked]
TRACKS = {"tgs", "seconds", "loss", "grad", "rate"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, prometheus: Path) -> Iterator[str]:
    made = simulate(load_scenario("rdma-phased"), tmp_path_factory.mktemp("axis"), seed=3, nodes=8, gpus=2)
    with serving(made.workspace) as site:
        yield f"{site.url}/job/{made.job.name.partition('-')[0]}"


MANY_SAVES = """async () => {
  const { story } = await import("/static/story.js");
  const { span } = window.jobPage, words = [], was = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    if (this.canvas.closest("#strips") && /^\\d+$/.test(text)) words.push([x, x + this.measureText(text).width, text]);
    was.apply(this, arguments);
  };
  const at = (i) => span.from + (span.to - span.from) * (i + 0.6) / 24;
  const marks = [...Array(24).keys()].map((i) => ({ kind: "checkpoint", label: `checkpoint ${50 * i}`, time: at(i) }));
  story.set({ phases: [], silences: [], marks });
  CanvasRenderingContext2D.prototype.fillText = was;
  return words.sort((a, b) => a[0] - b[0]);
}"""


def drawn(look: Look, url: str, **how: Any) -> Looked:  # noqa: F811
    """The page with all of its charts."""
    looked = look(url, **how)
    page = looked.page
    page.wait_for_selector("#job[data-complete=yes]")
    for part in ("hosts", "overlay", "devices"):
        page.locator(f"#{part}").scroll_into_view_if_needed()
        page.wait_for_selector({"hosts": "#heat canvas", "overlay": "#overlay-plot canvas"}.get(part, "#lanes canvas"))
    page.wait_for_selector(".track[data-track=rate] canvas")
    page.wait_for_selector("#strips[data-drawn]")
    page.evaluate("scrollTo(0, 0)")
    return looked


def lines(page: Any) -> list[str]:
    """Where the cursor stands in each chart that is drawn by hand."""
    found: list[str] = page.evaluate(
        """[...document.querySelectorAll(".cursor-line")].filter((l) => l.style.display === "block")
          .map((l) => Math.round(l.getBoundingClientRect().left))"""
    )
    return found


def test_one_cursor_and_one_zoom_go_through_all_charts(url: str, look: Look) -> None:  # noqa: F811
    page = drawn(look, url).page
    keys = set(page.evaluate("[...window.jobPage.timeline.charts.keys()]"))
    assert keys >= TRACKS, keys
    box = page.locator("#timeline-plot .u-over").bounding_box()
    at = box["x"] + 0.5 * box["width"]
    page.mouse.move(at, box["y"] + 60)
    hand = lines(page)
    assert len(hand) == 3, "strips, map and lanes"
    assert max(abs(x - at) for x in hand) <= 2, (hand, at)
    others = page.evaluate("[...window.jobPage.timeline.charts.values()].map((c) => Math.round(c.plot.cursor.left))")
    assert max(others) - min(others) <= 1, others
    assert "loss" in page.inner_text("#timeline-readout")
    page.locator("#timeline-plot").focus()
    page.keyboard.press("+")
    ends = page.evaluate(
        "[...window.jobPage.timeline.charts.values()].map((c) => [c.plot.scales.x.min, c.plot.scales.x.max])"
    )
    assert len({tuple(each) for each in ends}) == 1


def test_a_moment_is_opened_and_closed_by_keys(url: str, look: Look) -> None:  # noqa: F811
    looked = drawn(look, url)
    page = looked.page
    page.locator("#timeline-plot").focus()
    for _ in range(3):
        page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector("#moment:not([hidden])")
    assert "Log at this moment" in page.evaluate("document.activeElement.innerText")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#moment tbody tr")
    assert looked.axe() == []
    page.keyboard.press("Escape")
    assert not page.locator("#moment").is_visible()
    assert page.evaluate("document.activeElement.id") == "timeline-plot"


def test_a_chart_is_put_away_and_taken_back(url: str, look: Look) -> None:  # noqa: F811
    page = drawn(look, url).page
    button = page.locator("#track-toggles button", has_text="learning rate")
    button.focus()
    page.keyboard.press("Enter")
    assert not page.locator(".track[data-track=rate]").is_visible()
    assert page.evaluate("document.activeElement.innerText") == "learning rate"
    page.keyboard.press("Enter")
    page.wait_for_selector(".track[data-track=rate] canvas")


def test_each_finding_has_its_chart(url: str, look: Look) -> None:  # noqa: F811
    page = drawn(look, url).page
    page.locator("#findings .evidence").first.scroll_into_view_if_needed()
    page.wait_for_selector("#findings .mini[data-drawn]")
    assert "series" in page.get_attribute("#findings .mini[data-drawn]", "aria-label")


def test_on_a_phone_no_save_is_printed_over_another_and_every_zoom_has_ticks(url: str, look: Look) -> None:  # noqa: F811
    page = drawn(look, url, width=390).page
    words = page.evaluate(MANY_SAVES)
    assert "1150" in {text for _, _, text in words}, "the last one decides what is lost"
    assert all(one[1] < other[0] for one, other in pairwise(words)), words
    # In the middle of the run: of its first minute nothing is recorded, and whether that is asked depends on the load.
    middle = page.evaluate("(window.jobPage.span.from + window.jobPage.span.to) / 2")
    for seconds in (45, 270, 900, 3000):
        page.evaluate(f"window.jobPage.span.set({middle}, {middle} + {seconds})")
        named = page.evaluate("window.jobPage.timeline.chart.plot.axes[0]._values.filter(Boolean).length")
        assert named >= 2, seconds
    whole = page.evaluate("[...document.querySelectorAll('.wide')].every((t) => t.clientWidth >= 700)")
    assert whole  # settings are not stacked letter by letter
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
