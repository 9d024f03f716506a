"""The HTML report: self-contained, escaped, accessible, small, and the same bytes every time."""

from __future__ import annotations

import html
import math
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_report_samples import T0, hang, rdma
from test_report_samples_more import NASTY_HOST, SAMPLES, nasty

from trackwalker.diagnose.verdict import Verdict
from trackwalker.diagnose.views.story import Lane, Mark, Phase, StepPoint, Story
from trackwalker.report.html import render_html

VOID = {"meta", "link", "br", "img", "hr", "input"}
IMPLIED = {"td", "tr"}  # the long step table leaves these end tags out, as HTML allows


class Page(HTMLParser):
    """Collects what a test asks about, and fails on a tag that closes nothing."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] != tag and self.open[-1] in IMPLIED:
            self.open.pop()
        assert self.open.pop() == tag

    def values(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.tags if name in attrs]

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


@pytest.mark.parametrize("name", SAMPLES)
def test_page_is_self_contained_and_accessible(name: str) -> None:
    text = render_html(*SAMPLES[name]())
    page = Page(text)
    assert page.count("script") == page.count("img") == page.count("iframe") == 0
    assert not [key for _, attrs in page.tags for key in attrs if key.startswith("on") or key == "style"]
    assert page.values("src") == []
    assert all(link.startswith(("#", "data:,", "data:image/png;base64,")) for link in page.values("href"))
    assert "url(http" not in text
    assert "@import" not in text
    assert "default-src 'none'; style-src 'sha256-" in html.unescape(text)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in page.values("href") if link.startswith("#")} <= set(ids)
    assert {ref for refs in page.values("aria-labelledby") for ref in refs.split()} <= set(ids)
    assert page.count("main") == page.count("header") == page.count("h1") == 1
    assert ("html", {"lang": "en"}) in page.tags
    assert page.count("table") >= 2
    assert len(text.encode()) < 1_000_000
    assert text.startswith("<!doctype html>")


def test_first_screen_answers_what_where_now() -> None:
    text = html.unescape(render_html(*rdma()))
    first = text[text.index("<main>") : text.index('id="timeline"')]
    for fact in (
        "Incident",
        "running",
        "Two hosts lose RDMA",
        "chi2822",
        "chi2827",
        "exclude-nodes",
        "needs approval",
        "confidence 97 %",
    ):
        assert fact in first


def test_evidence_is_cited_by_anchor() -> None:
    text = render_html(*rdma())
    for key in ("e3", "e7", "e4", "e9"):
        assert f'id="{key}"' in text
        assert f'href="#{key}"' in text
    assert "e44 (not in this verdict)" in render_html(*SAMPLES["killed"]())


def test_untrusted_text_is_only_text() -> None:
    verdict, story = nasty()
    text = render_html(verdict, story)
    for raw in (NASTY_HOST, "<script", "<svg onload", "\x1b", "\u202e", "\x9b", "\ud800", "&lt;/script&gt;<"):
        assert raw not in text
    assert html.escape(NASTY_HOST) in text
    assert "{{ 7*7 }}" in text
    assert "x" * 10_000 in text  # in full, behind "Full text"
    assert "\\u202e" in text  # the raw verdict keeps what it held, as an escape
    text.encode("utf-8")


def test_page_ids_cannot_be_taken_by_evidence() -> None:
    data = hang()[0].model_dump(by_alias=True)
    for item, key in zip(data["evidence"], ("verdict", "h-causes", "cause-1", "evidence-5", "a b"), strict=True):
        item["id"] = key
    data["evidence"].append(data["evidence"][0] | {"id": "verdict"})
    ids = Page(render_html(Verdict.model_validate(data), Story())).values("id")
    assert len(ids) == len(set(ids))


def test_accused_are_marked_by_word_and_symbol() -> None:
    text = render_html(*hang())
    assert text.count('<g class="lane accused">') == 1
    assert '<text class="word"' in text
    assert '<path class="sign"' in text


@pytest.mark.parametrize(
    "story",
    [
        Story(),
        Story(start=T0, end=T0),
        Story(steps=(StepPoint(3, T0, 1.0),)),
        Story(steps=(StepPoint(3, T0, 1.0), StepPoint(4, T0 + 9, math.nan)), lanes=(Lane("a", True),)),
        Story(steps=tuple(StepPoint(i, T0 + i, 1.0, math.nan) for i in range(3)), marks=(Mark(math.nan, "end", ""),)),
        Story(
            phases=(Phase(0, 1, math.nan, math.inf, math.nan, True),),
            lanes=(Lane("a", False, (T0, T0 + 9), (None, math.inf)),),
        ),
        Story(
            lanes=(Lane("a", False, (T0, T0 + 900), (1.0, 1.0)), Lane("a", True, (T0,), (0.0, 2.0))),
            start=T0,
            end=T0 + 900,
        ),
        Story(start=T0 + 60, end=T0),
    ],
)
def test_thin_stories_still_make_a_page(story: Story) -> None:
    data = hang()[0].model_dump(by_alias=True) | {
        "causes": [],
        "evidence": [],
        "actions": [],
        "outcome": "insufficient-evidence",
        "ruled_out": [],
    }
    text = render_html(Verdict.model_validate(data), story)
    Page(text)
    assert "Insufficient evidence" in text
    assert "nan" not in text[text.index("<main>") : text.index('id="raw"')]
    assert 'class="empty"' in text or 'class="plot"' in text


def test_a_huge_job_stays_below_one_megabyte() -> None:
    steps = tuple(StepPoint(i, T0 + 5 * i, 2.0 + (i % 7) / 100, 900.0) for i in range(12_000))
    end = T0 + 60_000
    times = tuple(T0 + 300 * i for i in range(200))
    lanes = tuple(
        Lane(
            f"node{n:04d}", n % 4 == 0, times, tuple(None if i % 2 and n % 3 else float(i * n % 17) for i in range(200))
        )
        for n in range(150)
    )
    marks = tuple(
        Mark(T0 + 60 * i, kind, "<&>" * 30, f"node{i:04d}")
        for i in range(1000)
        for kind in ("checkpoint", "exit", "onset")
    )
    phases = tuple(Phase(i, i, T0 + 15 * i, T0 + 15 * i + 15, 2.0, bool(i % 2)) for i in range(4_000))
    data = hang()[0].model_dump(by_alias=True)
    data["evidence"] += [
        data["evidence"][1] | {"id": f"x{i}", "says": "<" * 10_000, "values": {f"h{k}": k for k in range(50)}}
        for i in range(300)
    ]
    text = render_html(Verdict.model_validate(data), Story(steps, phases, marks, lanes, "m", T0, end))
    assert len(text.encode()) < 1_000_000
    assert "more items are in the verdict and not on this page" in text


@pytest.mark.starts_processes
def test_same_input_same_bytes_in_any_process() -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_report_samples_more import SAMPLES\n"
        "from trackwalker.report.html import render_html\n"
        "sys.stdout.buffer.write(render_html(*SAMPLES['nasty']()).encode())\n"
    )
    paths = [str(Path(__file__).parent), *sys.path]
    other = subprocess.run(
        [sys.executable, "-c", code, *paths], env={"PYTHONHASHSEED": "1"}, capture_output=True, check=True
    )
    assert other.stdout == render_html(*nasty()).encode()


@pytest.mark.starts_processes
def test_importing_the_room_is_light() -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; import trackwalker.report\n"
        "print('jinja2' in sys.modules, 'rich' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code, *sys.path], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]
