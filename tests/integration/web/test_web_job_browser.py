"""The job page in a real browser, over a simulated RDMA incident behind a real Prometheus."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from web_client import Looked, Site, browser, look, needs_chromium, serving  # noqa: F401
from worlds import START, World

from conftest import tree_hash
from trackwalker.lab.scenario import load_scenario
from trackwalker.lab.simulate import simulate

pytestmark = [
    needs_chromium,
    pytest.mark.usefixtures("prometheus"),
]

NODES, GPUS = 8, 2
Look = Callable[..., Looked]
EVIL = "<img src=x onerror=alert(1)>"


class Incident:
    """A simulated job, what is true about it, and a server over its workspace."""

    def __init__(self, folder: Path) -> None:
        made = simulate(load_scenario("rdma-phased"), folder / "sim", seed=3, nodes=NODES, gpus=GPUS)
        self.workspace = made.workspace
        self.id = made.job.name.partition("-")[0]
        self.guilty = {host for root in made.truth.roots for host in root.hosts}
        self.site: Site

    @property
    def url(self) -> str:
        return f"{self.site.url}/job/{self.id}"


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory, prometheus: Path) -> Iterator[Incident]:
    found = Incident(tmp_path_factory.mktemp("job-page"))
    before = tree_hash(found.workspace)
    with serving(found.workspace, price=2.5) as found.site:
        yield found
    assert tree_hash(found.workspace) == before, "looking at a job changed it"


def test_the_page_comes_before_the_verdict(incident: Incident) -> None:
    answer = incident.site.get(f"/job/{incident.id}")
    assert answer.status_code == 200
    assert 'data-complete="no"' in answer.text  # nobody has asked for a diagnosis yet
    first = incident.site.get(f"/job/{incident.id}/verdict")
    assert first.status_code == 202
    assert first.json()["progress"]


def opened(look: Look, url: str, **how: Any) -> Looked:  # noqa: F811
    """The page with its verdict."""
    looked = look(url, **how)
    looked.page.wait_for_selector("#job[data-complete=yes]")
    looked.page.wait_for_selector("#timeline-plot canvas")
    return looked


def test_the_first_screen_names_the_bad_hosts_and_what_to_do(incident: Incident, look: Look) -> None:  # noqa: F811
    looked = opened(look, incident.url)
    page = looked.page
    assert set(page.locator("#verdict .culprits button").all_inner_texts()) == incident.guilty
    for selector in ("#verdict .summary", "#verdict .culprits", "#verdict .command", "#timeline-plot canvas"):
        box = page.locator(selector).first.bounding_box()
        assert box["y"] >= 0, selector
        assert box["y"] + box["height"] <= 900, f"{selector} is not on the first screen"
    assert "rdma-degradation" in page.inner_text("#verdict")
    command = page.inner_text("#verdict .command code")
    assert command.startswith("trackwalker submit")
    assert all(host in command for host in incident.guilty)
    assert "GPU-hours" in page.inner_text("#cost")
    assert "2.5 a GPU-hour" in page.inner_text("#cost")
    looked.screenshot("job-page-first-screen", whole=False)


def test_dragging_and_keys_zoom_all_charts_alike(incident: Incident, look: Look) -> None:  # noqa: F811
    page = opened(look, incident.url).page
    wide = "window.jobPage.span.to - window.jobPage.span.from"
    whole = page.evaluate(wide)
    box = page.locator("#timeline-plot .u-over").bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.4 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], y, steps=4)
    page.mouse.up()
    dragged = page.evaluate(wide)
    assert dragged == pytest.approx(0.2 * whole, rel=0.1)
    assert "from=" in page.url  # the address shows the same to whoever gets it
    assert page.evaluate("window.jobPage.timeline.chart.plot.scales.x.max") == page.evaluate("window.jobPage.span.to")
    plot = page.locator("#timeline-plot")
    plot.focus()
    page.keyboard.press("+")
    assert page.evaluate(wide) == pytest.approx(0.5 * dragged, rel=0.01)
    begun = page.evaluate("window.jobPage.span.from")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("window.jobPage.span.from") > begun
    page.keyboard.press("-")
    page.keyboard.press("0")
    assert page.evaluate(wide) == pytest.approx(whole)
    assert "from=" not in page.url


def test_the_heat_map_has_the_bad_hosts_on_top_and_opens_them(incident: Incident, look: Look) -> None:  # noqa: F811
    looked = opened(look, incident.url)
    page = looked.page
    page.locator("#hosts").scroll_into_view_if_needed()
    page.wait_for_selector("#heat[data-drawn^=hw_rdma]")  # what the verdict rests on
    page.locator("#heat-behind summary").click()
    page.wait_for_selector("#heat-table tbody th")
    rows = page.locator("#heat-table tbody th").all_inner_texts()
    assert len(rows) == NODES
    assert set(rows[: len(incident.guilty)]) == incident.guilty
    page.locator("#heat").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert rows[1] in page.inner_text("#heat-readout")
    page.keyboard.press("Enter")
    page.locator("#devices").scroll_into_view_if_needed()
    page.wait_for_selector("#lanes canvas")
    page.wait_for_selector("#overlay-plot canvas")
    assert page.input_value("#lanes-host") == rows[1]
    assert rows[1] in page.inner_text("#overlay-about")
    page.select_option("#heat-metric", "hw_gpu_power_watts")
    page.wait_for_selector("#heat[data-drawn=hw_gpu_power_watts]")
    looked.screenshot("job-page-hosts")


def test_numbers_link_to_their_query_and_the_query_box_answers(incident: Incident, look: Look) -> None:  # noqa: F811
    looked = opened(look, incident.url)
    page = looked.page
    page.locator("#findings .evidence a[data-query][data-instant]").first.click()
    page.wait_for_selector("#query-answer tbody tr")
    assert "@" in page.input_value("#query-text")
    page.fill("#query-text", "topk(3, sum by (host) (rate(hw_rdma_tx_retx_pkts_total[2m])))")
    page.select_option("#query-mode", "range")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#query-answer canvas")
    assert page.locator("#query-answer tbody tr").count() >= 3
    page.locator("#query-answer table").scroll_into_view_if_needed()
    looked.screenshot("job-page-query", whole=False)
    # the small charts that come into view ask the same address: the answer to this very text is meant
    with page.expect_response(lambda answer: "query.json?q=sum%20by%20(&" in answer.url) as refused:
        page.fill("#query-text", "sum by (")
        page.click("#query-form button")
    assert refused.value.status == 400
    page.wait_for_selector("#query-error")
    assert "parse error" in page.inner_text("#query-error")
    looked.complaints.clear()  # the browser notes each answer of 400 in its console
    alone = look(f"{incident.url}/query?q=max(up)")
    alone.page.wait_for_selector("#query-answer canvas")
    assert alone.axe() == []


def test_the_whole_page_is_accessible_in_both_themes(incident: Incident, look: Look) -> None:  # noqa: F811
    looked = opened(look, incident.url)
    page = looked.page
    for part in ("hosts", "overlay", "devices", "events", "settings", "record", "query"):
        page.locator(f"#{part}").scroll_into_view_if_needed()
    page.wait_for_selector("#overlay-plot canvas")
    page.wait_for_selector("#lanes canvas")
    page.wait_for_selector("main:not(:has(.spinner))")
    assert page.input_value("#lanes-host") in incident.guilty
    page.locator("#heat-behind summary").click()
    assert looked.axe() == []
    looked.screenshot("job-page-light")
    page.emulate_media(color_scheme="dark")
    found = Axe().run(page, options={"runOnly": ["color-contrast"]})  # all that a theme changes
    assert found.violations_count == 0, found.generate_report()
    looked.screenshot("job-page-dark")
    page.emulate_media(media="print", color_scheme="light")
    looked.screenshot("job-page-print")


def test_the_performance_page_fits_the_content_policy(incident: Incident, look: Look) -> None:  # noqa: F811
    looked = look(f"{incident.url}/perf")
    looked.page.wait_for_selector("#tab-overview")  # its script has run
    assert looked.axe() == []
    looked.screenshot("job-page-performance", whole=False)


def test_no_answer_is_without_bounds(incident: Incident) -> None:
    for what in ("heat.json?metric=hw_gpu_power_watts", "overlay.json?metric=up", "timeline.json", "metrics.json"):
        answer = incident.site.get(f"/job/{incident.id}/{what}")
        assert answer.status_code == 200, answer.text
        assert len(answer.content) < 1_000_000
    for wrong, status in (
        ("heat.json?metric=no_such", 400),
        ("heat.json?metric=up&how=x", 400),
        ("heat.json?metric=up&from=nan", 400),
        ("heat.json?metric=up&from=1&to=2", 400),
        ("heat.json?metric=up&ranks=a-b", 400),
        ("query.json?q=", 400),
        ("query.json?q=up%5B5m%5D&mode=instant", 400),
    ):
        answer = incident.site.get(f"/job/{incident.id}/{wrong}")
        assert answer.status_code == status, f"{wrong}: {answer.text}"
        assert answer.json()["error"]


def test_many_visitors_share_one_prometheus(incident: Incident) -> None:
    answers: list[int] = []
    paths = ["heat.json?metric=hw_procs_running", "query.json?q=max(up)", "metrics.json", "timeline.json"] * 3

    def ask(path: str) -> None:
        answers.append(incident.site.get(f"/job/{incident.id}/{path}").status_code)

    threads = [threading.Thread(target=ask, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) == {200}
    assert len(incident.site.app.state.workspace.databases) == 1


def test_a_hostile_host_is_text_and_a_vanished_job_is_told(
    tmp_path: Path,
    prometheus: Path,
    look: Look,  # noqa: F811
) -> None:
    def metrics(host: str, time: float) -> dict[str, float]:
        busy = 40.0 if host == EVIL and time > START + 400 else 4.0
        return {"hw_procs_running": busy + (time % 7) / 7, 'hw_gpu_power_watts{gpu="0"}': 500.0 + time % 11}

    workspace = tmp_path / "outputs"
    job = World([EVIL, "b2", "c3", "d4"], [10.0] * 60, 60, metrics, job_id="5150").build(workspace, prometheus)
    with serving(workspace) as site:
        looked = opened(look, f"{site.url}/job/5150")
        page = looked.page
        page.locator("#hosts").scroll_into_view_if_needed()
        page.wait_for_selector("#heat[data-drawn]")
        page.select_option("#heat-metric", "hw_procs_running")
        page.wait_for_selector("#heat[data-drawn=hw_procs_running]")
        page.locator("#heat-behind summary").click()
        assert page.locator("#heat-table tbody th").first.inner_text() == EVIL
        page.locator("#heat").focus()
        page.keyboard.press("Enter")
        page.locator("#overlay-about", has_text="onerror").wait_for()
        assert page.locator("img").count() == 0
        page.close()
        shutil.rmtree(job)
        (workspace / f"{job.name}.log").unlink()
        for path in (
            "",
            "/verdict",
            "/timeline.json",
            "/heat.json?metric=up",
            "/query.json?q=up",
            "/events",
            "/run",
            "/config",
        ):
            gone = site.get(f"/job/5150{path}")
            assert gone.status_code < 500, f"{path}: {gone.text}"
