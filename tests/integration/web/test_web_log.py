"""The log viewer in a real browser: jump, keys, search, scrolling, following, and all of it without JavaScript."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from triage_logs import NCCL, ending, header, steps
from web_client import Site, browser, look, make_job, needs_chromium, serving  # noqa: F401

pytestmark = [needs_chromium]

FRONT = header(2, steps=900) + steps(799, 2)
TEXT = FRONT + NCCL.format(rank=1) + "0: WARNING late\n" + ending(1)
SHORT = header(2, steps=260) + steps(259, 2) + ending(0)  # three answers of 200 lines; drawing more takes seconds
FAILED = FRONT.count("\n") + 1  # the line of the failure
SPARSE = 1 << 30  # bytes of a log that is longer than memory would like


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Path]]:
    root = tmp_path_factory.mktemp("logs")
    folder = make_job(root, "77", "toy")
    (root / f"{folder.name}.log").write_text(TEXT)
    (folder / "ranks").mkdir()
    (folder / "ranks" / "1.log").write_text("2026-06-01T08:00:00 only of rank 1\n")
    short = make_job(root, "76", "short")
    (root / f"{short.name}.log").write_text(SHORT)
    make_job(root, "78", "growing")
    huge = make_job(root, "79", "huge")
    with (root / f"{huge.name}.log").open("wb") as log:
        log.write(FRONT.encode())
        log.seek(SPARSE)  # a hole: one endless line of zeros that costs no disk
        log.write(b"\n0: the last line\n")
    with serving(root) as site:
        yield site, root


def focused(page: Any) -> str:
    return str(page.evaluate("document.activeElement?.id"))


def test_evidence_leads_to_its_line_and_keys_lead_on(logs: tuple[Site, Path], look: Any) -> None:  # noqa: F811
    site, _ = logs
    looked = look(f"{site.url}/job/77/log?line={FAILED}")
    page = looked.page
    row = page.locator(f"#L{FAILED}")
    assert "DistBackendError" in row.inner_text()
    assert focused(page) == f"L{FAILED}"
    assert 0 < row.bounding_box()["y"] < 900
    page.keyboard.press("j")
    assert focused(page) == f"L{FAILED + 1}"
    page.keyboard.press("k")
    page.keyboard.press("k")
    assert focused(page) == f"L{FAILED - 1}"
    page.keyboard.press("g")
    assert focused(page) == "log-line"
    page.keyboard.type("12")
    page.keyboard.press("Enter")
    page.wait_for_url("**line=12*")
    assert focused(page) == "L12"
    assert looked.axe() == []
    looked.screenshot("log")


def test_the_job_page_leads_to_the_line_of_its_evidence(logs: tuple[Site, Path], look: Any) -> None:  # noqa: F811
    site, _ = logs
    page = look(f"{site.url}/job/77").page
    evidence = page.locator("a[href*='/log?'][href*='line=']").first
    evidence.wait_for()
    evidence.click()
    page.wait_for_url("**/job/77/log?*line=*")
    assert focused(page) == f"L{page.url.partition('line=')[2].partition('&')[0].partition('#')[0]}"
    assert "DistBackendError" in page.evaluate("document.activeElement.innerText")


def test_findings_of_triage_stand_beside_the_log_and_jump(logs: tuple[Site, Path], look: Any) -> None:  # noqa: F811
    site, _ = logs
    looked = look(f"{site.url}/job/77/log", scheme="dark")
    page = looked.page
    found = page.locator(".log-jumps li.is-primary")
    assert "first cause" in found.inner_text()
    found.locator("a").click()
    page.wait_for_url(f"**#L{FAILED}")
    assert page.locator(".is-current .log-note").inner_text()
    assert page.locator(".is-current .log-sign").inner_text() == "E"
    assert looked.axe() == []


def test_a_text_is_found_forwards_and_backwards(logs: tuple[Site, Path], look: Any) -> None:  # noqa: F811
    site, _ = logs
    page = look(f"{site.url}/job/77/log?line=1").page
    page.keyboard.press("/")
    page.keyboard.type("completed step: 79,")
    page.keyboard.press("Enter")
    page.locator(".is-current mark").wait_for()
    first = focused(page)
    page.keyboard.press("n")
    page.wait_for_function("id => document.activeElement?.id && document.activeElement.id !== id", arg=first)
    assert focused(page) == f"L{int(first[1:]) + 1}"
    page.keyboard.press("p")
    page.wait_for_function("id => document.activeElement?.id === id", arg=first)
    page.goto(f"{site.url}/job/77/log?q=nowhere&go=next")
    assert "“nowhere” does not occur in this log." in page.locator("[role=status]").first.inner_text()


def test_scrolling_brings_more_lines_and_leaves_the_page_small(logs: tuple[Site, Path], look: Any) -> None:  # noqa: F811
    site, _ = logs
    page = look(f"{site.url}/job/77/log?at=0&go=later").page
    deadline = time.monotonic() + 60
    while page.locator("#log-later").count() and time.monotonic() < deadline:
        page.evaluate("window.scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_timeout(100)
    page.wait_for_function("n => document.querySelectorAll('.log-row').length === n", arg=TEXT.count("\n"))
    numbers = page.evaluate("[...document.querySelectorAll('.log-row')].map(r => +r.id.slice(1))")
    assert numbers == list(range(1, TEXT.count("\n") + 1))


def test_all_lines_come_where_the_end_never_leaves_the_window(logs: tuple[Site, Path], look: Any) -> None:  # noqa: F811
    site, _ = logs
    page = look(f"{site.url}/job/76/log?at=0&go=later", height=20_000).page
    page.wait_for_function("n => document.querySelectorAll('.log-row').length === n", arg=SHORT.count("\n"))


def test_a_growing_log_is_followed(logs: tuple[Site, Path], look: Any) -> None:  # noqa: F811
    site, root = logs
    log = root / "78-JAX-growing.log"
    page = look(f"{site.url}/job/78/log").page
    page.keyboard.press("f")
    page.get_by_text("Following;").wait_for()
    with log.open("a") as file:
        file.write("0: half a ")
        file.flush()
        page.locator(".log-row", has_text="half a").wait_for()
        file.write("line is whole <b>now</b>\n1: and one more\n")
        file.flush()
        page.locator(".log-row", has_text="and one more").wait_for()
    assert (
        page.locator(".log-row", has_text="half a").all_inner_texts()[0].endswith("0: half a line is whole <b>now</b>")
    )
    assert page.locator(".log-row", has_text="half a").count() == 1


def test_without_javascript_links_do_the_same(logs: tuple[Site, Path], look: Any) -> None:  # noqa: F811
    site, _ = logs
    page = look(f"{site.url}/job/77/log?line={FAILED}", java_script_enabled=False).page
    assert "DistBackendError" in page.locator(f"#L{FAILED}").inner_text()
    page.get_by_role("link", name="Earlier lines").click()
    assert page.locator(".log-row").count() == 200
    page.get_by_role("link", name="Top").click()
    assert page.locator("#L1").count() == 1
    page.get_by_role("link", name="Later lines").click()
    assert page.locator("#L201").count() == 1
    page.get_by_label("Find").fill("WARNING")
    page.get_by_role("button", name="Find").click()
    assert page.locator(".is-current mark").inner_text() == "WARNING"
    page.get_by_role("textbox", name="Task").fill("1")
    page.get_by_label("File").select_option("77-JAX-toy.log")
    page.get_by_role("button", name="Show").click()
    assert all(" 1: " in f" {text}" or "1: " in text for text in page.locator(".log-row code").all_inner_texts())
    page.get_by_label("File").select_option("ranks/1.log")
    page.get_by_role("button", name="Show").click()
    assert page.locator(".log-row code").all_inner_texts() == ["2026-06-01T08:00:00 only of rank 1"]


def test_a_log_of_gigabytes_opens_at_its_end_and_in_its_middle(logs: tuple[Site, Path]) -> None:
    site, _ = logs
    answers = []
    for path in (
        "/job/79/log",
        "/job/79/log?line=900",
        "/job/79/log?at=2000000000",
        "/job/79/log?q=last%20line&go=next",
    ):
        began = time.monotonic()
        answer = site.get(path, headers={"accept": "text/html"})
        answers.append((path, answer.status_code, len(answer.content), round(time.monotonic() - began, 2)))
        assert answer.status_code == 200, path
        assert len(answer.content) < 400_000
    print(answers)
    assert "the last line" in site.get("/job/79/log", headers={"accept": "text/html"}).text
