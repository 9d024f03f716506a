"""The log viewer: its end is the end, hits are counted, repeats fold, long lines wrap or not, and it can be kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from triage_logs import NCCL, ending, header, steps
from web_client import Site, browser, look, make_job, needs_chromium, serving  # noqa: F401

pytestmark = [needs_chromium]

LAST = "0: the very last words"
SECRET = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567"
TEXT = (
    header(2, steps=900)
    + steps(399, 2)
    + "".join(f"0: NCCL INFO Channel {n:02d}/32 : 0[{n}] -> 1[{n}] via NET/IB/0\n" for n in range(40))
    + NCCL.format(rank=1)
    + f"0: token is {SECRET} and more\n"
    + ending(1)
    + f"0: {'wide ' * 300}\n{LAST}\n"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("ways")
    folder = make_job(root, "77", "toy")
    (root / f"{folder.name}.log").write_text(TEXT)
    with serving(root) as found:
        yield found


def in_sight(page: Any, text: str) -> bool:
    box = page.locator(".log-row", has_text=text).last.bounding_box()
    return bool(box["y"] > 0 and box["y"] + box["height"] <= page.viewport_size["height"])


def test_a_log_opens_at_its_end_and_end_leads_there(site: Site, look: Any) -> None:  # noqa: F811
    page = look(f"{site.url}/job/77/log").page
    page.wait_for_timeout(600)  # earlier lines come in above, and must not push the end away
    assert in_sight(page, LAST)
    page.keyboard.press("Home")
    page.get_by_role("link", name="Top").click()
    page.wait_for_url("**at=0*")
    page.get_by_role("link", name="End", exact=True).click()
    page.wait_for_selector("#log[data-end]")
    page.wait_for_timeout(600)
    assert in_sight(page, LAST)
    assert LAST in page.evaluate("document.activeElement.innerText")


def test_the_end_is_in_sight_without_a_script_too(site: Site, look: Any) -> None:  # noqa: F811
    page = look(f"{site.url}/job/77/log?line=3", java_script_enabled=False).page
    page.get_by_role("link", name="End", exact=True).click()
    page.wait_for_url("**#log-end-of-it")
    assert in_sight(page, LAST)


def test_hits_are_counted(site: Site, look: Any) -> None:  # noqa: F811
    page = look(f"{site.url}/job/77/log?line=1").page
    page.get_by_label("Find").fill("nccl info channel")
    page.keyboard.press("Enter")
    page.wait_for_selector("#log-hits")
    assert page.inner_text("#log-hits") == "1 of 40"
    page.keyboard.press("n")
    page.wait_for_url("**at=*")
    page.wait_for_selector("#log-hits")
    assert page.inner_text("#log-hits") == "2 of 40"


def test_lines_that_say_the_same_fold(site: Site, look: Any) -> None:  # noqa: F811
    first = TEXT[: TEXT.index("NCCL INFO Channel")].count("\n") + 1
    page = look(f"{site.url}/job/77/log?line={first - 5}").page
    page.get_by_role("link", name="Fold repeats").click()
    page.wait_for_url("**fold=1*")
    fold = page.locator(".log-fold", has_text="more lines say the same").last
    assert "39 more" in fold.inner_text()
    hidden = page.locator(f"#L{first + 10}")
    assert not hidden.is_visible()
    fold.locator("summary").click()
    assert hidden.is_visible()
    assert page.locator(".log-row.is-error").first.is_visible(), "what matters is never folded"


def test_long_lines_wrap_or_scroll(site: Site, look: Any) -> None:  # noqa: F811
    page = look(f"{site.url}/job/77/log").page
    row = page.locator(".log-row", has_text="wide wide").last
    assert row.bounding_box()["height"] > 40
    page.get_by_role("link", name="No wrap").click()
    page.wait_for_url("**long=1*")
    assert row.bounding_box()["height"] < 30
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page itself does not scroll"


def test_the_log_can_be_kept_without_its_secrets(site: Site, look: Any) -> None:  # noqa: F811
    page = look(f"{site.url}/job/77/log").page
    with page.expect_download() as kept:
        page.get_by_role("link", name="Download").click()
    text = Path(kept.value.path()).read_text()
    assert text.count("\n") == TEXT.count("\n")
    assert LAST in text
    assert SECRET not in text


def test_the_number_before_a_line_is_called_a_task(site: Site, look: Any) -> None:  # noqa: F811
    page = look(f"{site.url}/job/77/log").page
    field = page.get_by_role("textbox", name="Task")
    field.fill("1")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**rank=1*")
    assert "not for each GPU" in page.locator("label[title]", has_text="Task").get_attribute("title")


def test_a_phone_and_a_small_window_hold_the_viewer(site: Site, look: Any) -> None:  # noqa: F811
    for width in (390, 1024):
        looked = look(f"{site.url}/job/77/log?fold=1", width=width)
        assert looked.page.evaluate("document.documentElement.scrollWidth") <= width
    assert looked.axe() == []
