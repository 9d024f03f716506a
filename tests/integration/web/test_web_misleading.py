"""What misled on the pages of 0.1.0, each in a real browser: charts, colours, axes, onsets, zones and words."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from web_client import Looked, Site, browser, look, needs_chromium, serving  # noqa: F401
from worlds import START, World

from trackwalker.diagnose.verdict import Cause, Onset
from trackwalker.lab.scenario import load_scenario
from trackwalker.lab.simulate import simulate

pytestmark = [needs_chromium, pytest.mark.usefixtures("prometheus")]

Look = Callable[..., Looked]
NODES, GPUS = 8, 2
LONG_FLAGS = " ".join(f"--xla_gpu_enable_something_number_{n}=true" for n in range(12))
FELL = START + 600.0  # when the power of the fallen job falls
MADE = {
    "incident": ("rdma-phased", 3),
    "healthy": ("healthy-plain", 1),
    "loss": ("loss-spike", 2),
    "hang": ("collective-hang", 2),
    "silent": ("hang-still-silent", 2),  # by its log alone nobody could say how it stands
}


def coloured(page: Any, selector: str, colour: str, share: str = "1") -> float:
    """Which share of a canvas' pixels has this colour of the theme, within a little; `share` narrows the height."""
    return float(
        page.evaluate(
            """([selector, token, share]) => {
          const shown = document.querySelector(selector), canvas = new OffscreenCanvas(shown.width, shown.height);
          const ctx = canvas.getContext("2d", { willReadFrequently: true });
          ctx.drawImage(shown, 0, 0);
          const [from, to] = share.includes("-") ? share.split("-").map(Number) : [0, Number(share)];
          const top = Math.round(from * canvas.height), high = Math.max(1, Math.round((to - from) * canvas.height));
          const data = ctx.getImageData(0, top, canvas.width, high).data;
          const hex = getComputedStyle(document.documentElement).getPropertyValue(token).trim().slice(1);
          const want = [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
          let found = 0;
          for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] > 90 && want.every((c, k) => Math.abs(c - data[i + k]) < 14)) found += 1;
          return found / (data.length / 4);
        }""",
            [selector, colour, share],
        )
    )


class Jobs:
    """The simulated jobs of this file by what they show, behind one server."""

    def __init__(self, folder: Path, prometheus: Path) -> None:
        self.ids: dict[str, str] = {}
        self.workspace = folder / "outputs"
        for what, (scenario, seed) in MADE.items():
            made = simulate(load_scenario(scenario), folder / what, seed=seed, nodes=NODES, gpus=GPUS)
            shutil.copytree(made.workspace, self.workspace, symlinks=True, dirs_exist_ok=True)
            self.ids[what] = made.job.name.partition("-")[0]
            if what == "healthy":  # a setting that no narrow column holds
                log = self.workspace / f"{made.job.name}.log"
                log.write_text(log.read_text().replace("\n 0: ", f"\n 0: XLA_FLAGS={LONG_FLAGS}\n 0: ", 1))

        def metrics(host: str, time: float) -> dict[str, float]:
            watts = 660.0 if time < FELL else 290.0
            return {'hw_gpu_power_watts{gpu="0"}': watts + len(host), "hw_procs_running": 4.0}

        World(["a1", "b2", "c3", "d4"], [10.0] * 100, 100, metrics, job_id="5151").build(self.workspace, prometheus)
        self.ids["fallen"] = "5151"
        self.site: Site

    def url(self, what: str) -> str:
        return f"{self.site.url}/job/{self.ids[what]}"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory, prometheus: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path_factory.mktemp("misleading"), prometheus)
    with serving(made.workspace) as made.site:
        yield made


@pytest.fixture
def opened(jobs: Jobs, look: Look) -> Callable[..., Any]:  # noqa: F811
    def open_job(what: str, part: str = "", **how: Any) -> Any:
        page = look(jobs.url(what), **how).page
        page.wait_for_selector("#job[data-complete=yes]")
        page.wait_for_selector("#timeline-plot canvas")
        if part:
            page.locator("#hosts").scroll_into_view_if_needed()
            page.wait_for_selector("#heat[data-drawn]")
            page.locator(f"#{part}").scroll_into_view_if_needed()
            page.wait_for_selector({"overlay": "#overlay-plot canvas", "devices": "#lanes canvas"}.get(part, "#heat"))
        return page

    return open_job


def test_a_fall_is_drawn_where_it_was_and_not_a_minute_later(opened: Any) -> None:
    page = opened("fallen", "hosts")
    page.select_option("#heat-metric", "hw_gpu_power_watts")
    page.wait_for_selector("#heat[data-drawn=hw_gpu_power_watts]")
    page.locator("#heat").focus()
    page.keyboard.press("Enter")
    page.locator("#overlay").scroll_into_view_if_needed()
    page.wait_for_selector("#overlay-plot[data-selected]:not([data-selected='']) canvas")
    page.locator("#overlay details.behind summary").click()
    page.get_by_role("region", name="hw_gpu_power_watts").wait_for()
    # In one look: the table is replaced whenever the chart is drawn anew.
    cells = "(rows) => rows.map((row) => [...row.cells].slice(0, 2).map((cell) => cell.textContent))"
    rows = page.locator("#overlay-table tbody tr").evaluate_all(cells)
    values = {time[11:19]: float(value) for time, value in rows if value != "–"}
    late = [value for time, value in values.items() if "08:10:20" <= time <= "08:10:50"]
    assert late, rows
    assert max(late) < 320.0, f"twenty seconds and more after the fall: {late}"


def test_what_ended_is_seen_to_end_in_the_evidence_over_time(opened: Any) -> None:
    page = opened("incident")
    page.locator("#findings .evidence a[data-query]:not([data-instant])", has_text="over time").first.click()
    page.wait_for_selector("#query-answer caption")
    asked = page.inner_text("#query-answer caption")
    window = asked.partition("[")[2].partition("]")[0]
    assert window.endswith("s"), asked
    assert int(window[:-1]) <= 120, asked


def test_a_click_leads_to_the_stored_samples_the_log_and_the_query_of_that_moment(opened: Any) -> None:
    page = opened("incident", "overlay")
    page.locator("#overlay-plot .u-over").click(position={"x": 200, "y": 40})
    moment = page.locator("#moment")
    moment.wait_for()
    moment.get_by_role("button", name="Stored samples").click()
    moment.locator("tbody tr").first.wait_for()
    assert "as stored" in moment.inner_text()
    assert moment.get_by_role("link", name="Query around it").get_attribute("href")
    moment.get_by_role("link", name="Log at this moment").click()
    page.wait_for_url("**/log?t=*")
    assert "Written at about" in page.inner_text(".log-says")
    assert page.locator(".is-current").count() == 1


def test_nobody_is_suspect_on_a_healthy_job_whoever_is_selected(opened: Any) -> None:
    page = opened("healthy", "overlay")
    assert "uspect" not in page.inner_text("#h-overlay")
    page.locator("#heat").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#overlay-plot[data-selected]:not([data-selected=''])")
    assert page.get_attribute("#overlay-plot", "data-suspects") == ""
    assert "selected" in page.inner_text("#overlay-about")
    for guilty in ("--bad", "--ask", "--warn"):
        assert coloured(page, "#overlay-plot canvas", guilty) == 0.0, guilty


def test_a_selected_host_is_no_suspect_beside_those_of_the_verdict(opened: Any) -> None:
    page = opened("incident", "overlay")
    suspects = set(page.get_attribute("#overlay-plot", "data-suspects").split())
    assert suspects == set(page.locator("#verdict .culprits button").all_inner_texts())
    page.locator("#heat").focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.wait_for_selector("#overlay-plot[data-selected]:not([data-selected=''])")
    assert set(page.get_attribute("#overlay-plot", "data-suspects").split()) == suspects
    assert "selected" in page.inner_text("#h-overlay")


def test_lanes_that_are_zero_are_folded_and_the_others_tell_peak_last_time_and_unit(opened: Any) -> None:
    page = opened("incident", "devices")
    assert "zero all the time" in page.inner_text("#lanes-zero summary")
    told = page.get_attribute("#lanes", "aria-label")
    assert "peak" in told
    assert "last" in told
    assert "packets/s" in page.inner_text("#lanes-about")
    assert coloured(page, "#lanes canvas", "--soft", "0.6-1") > 0, "there is no time axis"


def test_a_loss_divergence_shows_the_loss_first_and_says_why(opened: Any) -> None:
    page = opened("loss")
    assert page.inner_text("#h-timeline") == "Loss over time"
    assert "the verdict is about it" in page.inner_text("#timeline-about")
    assert page.get_attribute("#timeline-plot", "data-drawn") == "loss"


def test_an_axis_that_does_not_begin_at_zero_says_so_and_no_line_leaves_its_chart(opened: Any) -> None:
    page = opened("incident")
    assert "not at zero" in page.inner_text(".track[data-track=seconds] .axis-note")
    inside = page.evaluate(
        """[...window.jobPage.timeline.charts.values()].every(({ plot }) => plot.data.slice(1).every((line) =>
          line.every((v) => v === null || (v >= plot.scales.y.min && v <= plot.scales.y.max))))"""
    )
    assert inside


def test_every_mark_has_its_words(opened: Any) -> None:
    page = opened("incident")
    assert page.evaluate("window.jobPage.timeline.without") == 0
    page.wait_for_selector("#strips[data-drawn]")
    assert coloured(page, "#strips canvas", "--good") > 0, "the saves are not drawn"


def test_the_heat_map_tells_its_colours_in_numbers_and_keeps_noise_calm(opened: Any) -> None:
    page = opened("healthy", "hosts")
    legend = page.inner_text("#heat-legend")
    assert any(c.isdigit() for c in legend), legend
    assert "noise" in legend
    for tone in ("--bad", "--accent"):
        assert coloured(page, "#heat canvas", tone, "0.25-1") < 0.002, f"{tone}: noise is coloured"


def test_the_heat_map_of_a_hang_shows_the_collapse_of_all(opened: Any) -> None:
    page = opened("hang", "hosts")
    page.select_option("#heat-metric", "hw_gpu_power_watts")
    page.wait_for_selector("#heat[data-drawn=hw_gpu_power_watts]")
    assert coloured(page, "#heat canvas", "--accent", "0.1-0.2") > 0.1, "all hosts fell, and no row shows it"
    assert "no step completed" in page.inner_text("#timeline-says")


def test_a_root_never_begins_after_its_own_consequence(jobs: Jobs, opened: Any) -> None:
    workspace = jobs.site.app.state.workspace
    opened("incident").close()
    found = workspace.diagnosis(workspace.job(jobs.ids["incident"]))
    root = found.verdict.roots[0]
    early = Onset(time="2026-01-01T00:00:00Z", step=1, uncertainty_s=5.0)
    effect = Cause(cause="peer-died", role="consequence", confidence=0.9, onset=early, evidence=root.evidence)
    wrong = found.verdict.model_copy(update={"causes": [*found.verdict.causes, effect]})
    kept = workspace.known_diagnosis
    workspace.known_diagnosis = lambda job: replace(found, verdict=wrong)
    try:
        page = opened("incident")
        onsets = page.locator(".cause dd:has(time)").all_inner_texts()
        assert onsets[0][:19] <= min(onsets)[:19], onsets
    finally:
        workspace.known_diagnosis = kept


def test_the_zone_of_the_page_is_the_zone_of_its_sentences(opened: Any) -> None:
    page = opened("incident", timezone_id="America/New_York")
    assert "UTC" in page.inner_text("#verdict .verdict-where")
    page.click("#zone")
    for part in ("#verdict .verdict-where", "#findings .cause.root .facts"):
        told = page.inner_text(part)
        assert "UTC" not in told, told
        assert "EDT" in told or "EST" in told, told


def test_the_list_calls_a_job_what_its_page_calls_it(jobs: Jobs, opened: Any, look: Look) -> None:  # noqa: F811
    from playwright.sync_api import expect

    said = {what: opened(what).locator("#head .badge").inner_text() for what in MADE}
    page = look(jobs.site.url).page
    page.wait_for_selector("#rows[data-pending='0']")
    for what, word in said.items():  # the list takes a new verdict up when it looks again
        expect(page.locator(f"#job-{jobs.ids[what]} td .badge").first).to_have_text(word, timeout=30_000)


def test_a_run_with_two_speeds_is_not_told_as_one_median(opened: Any) -> None:
    page = opened("incident")
    assert "→" in page.locator("#cost dl div", has_text="throughput").inner_text()


@pytest.mark.parametrize("width", [390, 1024])
def test_nothing_is_wider_than_a_narrow_screen_or_stacked_letter_by_letter(width: int, jobs: Jobs, opened: Any) -> None:
    page = opened("incident", "devices", width=width)
    for part in ("findings", "events", "settings", "query"):
        page.locator(f"#{part}").scroll_into_view_if_needed()
    page.wait_for_selector("main:not(:has(.spinner))")
    page.locator("#config select").select_option(jobs.ids["healthy"])
    page.get_by_role("button", name="Compare settings").click()
    page.wait_for_selector("#config tbody tr")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    stacked = page.evaluate(
        """[...document.querySelectorAll("td, th")].filter((cell) => cell.innerText.trim().length > 20 &&
          cell.getBoundingClientRect().width < 75 && cell.offsetParent !== null).map((cell) => cell.innerText)"""
    )
    assert stacked == []


def test_no_link_of_the_page_leads_nowhere(opened: Any) -> None:
    page = opened("incident")
    dead = page.evaluate(
        """[...document.querySelectorAll('a[href^="#"]')].map((a) => a.getAttribute("href").slice(1))
          .filter((id) => id && !document.getElementById(decodeURIComponent(id)))"""
    )
    assert dead == []
    assert "not on this page" not in page.inner_text("#findings")
