"""Incidents, hosts, fleet and runs in a real browser: usable without a mouse, clean for axe, harmless whatever a host
is called; and what the list of 0.1.0 said wrongly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from fleet_workspace import RETURNING, accuse, fleet_of, make_run
from web_client import (  # noqa: F401
    LONG_MS,
    Looked,
    Site,
    browser,
    look,
    make_job,
    needs_chromium,
    serving,
    workspace_of,
    write_ledger,
)

pytestmark = needs_chromium
pytest.importorskip("duckdb", reason="duckdb is not installed: pip install 'trackwalker[fleet]'")
EVIL = "<img src=x onerror=alert(1)>"
PAGES = (
    "/incidents?state=all",
    "/incidents/6000",
    "/fleet?days=0",
    f"/host?name={RETURNING}",
    "/host?name=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E",
    "/runs?job=5039&job=5027&baseline=auto",
    "/",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = fleet_of(tmp_path_factory.mktemp("fleet") / "outputs")
    accuse(make_run(root, "6000", [EVIL, "r1-n01"], slow_s=14.0), "rdma-degradation", [EVIL], says=EVIL)
    fact = {"host": RETURNING, "attempt": 1, "kind": "check-failed", "what": "network", "line": EVIL}
    write_ledger(root, {"t": time.time() - 3600, "job": "5003", **fact})
    with serving(root, price=2.0) as made:
        assert made.app.state.jobs.wait(120.0)
        yield made


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_clean_for_axe_and_fits(site: Site, look: Callable[..., Looked], path: str) -> None:  # noqa: F811
    """In a wide light window and in a narrow dark one, which is the same page made narrow."""
    name = "".join(c if c.isalnum() else "-" for c in path).strip("-") or "jobs"
    seen = look(site.url + path)
    seen.page.wait_for_selector("main h1", state="attached")
    for width, scheme in ((1440, "light"), (390, "dark")):
        seen.page.set_viewport_size({"width": width, "height": 900})
        seen.page.emulate_media(color_scheme=scheme)
        assert seen.axe() == [], (width, scheme)
        assert seen.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (width, scheme)
        assert seen.page.locator("main img").count() == 0  # the host's name made none
        high = seen.page.evaluate(
            "Math.max(0, ...[...document.querySelectorAll('main button')].map((b) => b.clientHeight))"
        )
        assert high < 44  # no button's word is broken into letters
        seen.screenshot(f"fleet-{name}-{width}-{scheme}")


def test_incidents_are_triaged_by_keyboard_alone(site: Site, look: Callable[..., Looked]) -> None:  # noqa: F811
    page = look(f"{site.url}/incidents").page
    rows = page.locator("tr[data-id]")
    count = rows.count()
    first, second = rows.nth(0).get_attribute("data-id"), rows.nth(1).get_attribute("data-id")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.closest('tr').dataset.id") == first
    page.keyboard.press("a")
    page.wait_for_selector(f"tr[data-id='{first}']", state="detached")
    assert page.locator("#told").inner_text() == f"Incident of job {first}: acknowledged (u takes it back)"
    assert page.locator("#told").is_visible()
    assert page.evaluate("document.activeElement.closest('tr').dataset.id") == second  # the next one, at once
    assert "in open incidents" in page.locator("#sums").inner_text()  # what is acknowledged is not counted there
    page.keyboard.press("u")
    page.wait_for_selector(f"tr[data-id='{first}']")
    page.locator(f"tr[data-id='{first}'] a.subject").focus()
    page.keyboard.press("a")
    page.wait_for_selector(f"tr[data-id='{first}']", state="detached")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("r")
    page.wait_for_selector(f"tr[data-id='{second}']", state="detached")
    assert rows.count() == count - 2
    assert page.locator(".tabs a[data-state=acknowledged] .count").inner_text() == "1"
    assert page.locator(".tabs a[data-state=resolved] .count").inner_text() == "1"
    page.goto(f"{site.url}/incidents?state=resolved")
    page.keyboard.press("j")
    page.keyboard.press("u")
    page.wait_for_selector(f"tr[data-id='{second}']", state="detached")
    page.goto(f"{site.url}/incidents")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.type("rdma")
    page.keyboard.press("Enter")
    page.wait_for_url("**/incidents?q=rdma")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/incidents/{second}")
    page.get_by_label("Owner").fill("mira")
    page.get_by_label("Note").fill(EVIL)
    page.get_by_role("button", name="Keep").click()
    page.wait_for_load_state()
    assert page.get_by_label("Owner").input_value() == "mira"
    assert EVIL in page.locator("main").inner_text() or page.get_by_label("Note").input_value() == EVIL


def test_the_inbox_works_without_a_script(site: Site, look: Callable[..., Looked]) -> None:  # noqa: F811
    page = look(f"{site.url}/incidents?state=all", java_script_enabled=False).page
    row = page.locator("tr[data-id='5009']")
    row.get_by_role("button", name="Resolve").click()
    page.wait_for_url("**/incidents?state=all")
    assert "resolved" in page.locator("tr[data-id='5009'] .state").inner_text()


def test_three_that_cost_most_and_the_host_that_returns_are_found_in_four_looks(
    site: Site,
    look: Callable[..., Looked],  # noqa: F811
) -> None:
    page = look(f"{site.url}/fleet?days=0").page
    assert page.locator("section:has(#hosts) tbody tr th").first.inner_text() == RETURNING
    page.locator("section:has(#hosts) tbody tr a").first.click()
    page.wait_for_url("**/host?**")
    assert page.locator("section:has(#named) tbody tr").count() == 4
    page.goto(f"{site.url}/incidents?state=all")
    assert RETURNING in page.locator(".returning li").first.inner_text()
    assert "4 incidents" in page.locator(".returning li").first.inner_text()
    within = page.evaluate("document.querySelector('.returning').getBoundingClientRect().bottom < innerHeight")
    assert within  # without scrolling
    dearest = [page.locator("tr[data-id]").nth(n).get_attribute("data-id") for n in range(3)]
    assert dearest == ["5039", "5027", "5015"]
