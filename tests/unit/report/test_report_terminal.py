"""The terminal report: complete, plain without colour, and deaf to escapes in the data."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from test_report_samples import rdma
from test_report_samples_more import SAMPLES, healthy, nasty

from trackwalker.diagnose.verdict import Verdict
from trackwalker.report.markdown import markdown
from trackwalker.report.terminal import render
from trackwalker.report.words import OUTCOMES


def shown(
    verdict: Verdict, width: int = 90, terminal: bool = False, encoding: str = "utf-8", verbose: bool = False
) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    colours = "standard" if terminal else None
    render(
        verdict,
        Console(file=file, width=width, force_terminal=terminal, color_system=colours),  # type: ignore[arg-type]
        verbose=verbose,
    )
    file.flush()
    return raw.getvalue().decode(encoding)


def test_first_line_and_order() -> None:
    text = shown(rdma()[0])
    assert text.splitlines()[0].rstrip() == "INCIDENT  job 8308 (running), 24 nodes, 192 GPUs"
    parts = [
        "Two hosts lose",
        "Where ",
        "DO NEXT",
        "2 ROOT CAUSES",
        "ALSO WRONG",
        "RULED OUT",
        "COULD NOT BE TESTED",
        "PROGRESS",
        "DATA QUALITY",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_it_can_be_acted_on() -> None:
    text = shown(rdma()[0])
    for fact in (
        "chi2822/ionic_3",
        "2026-02-24 19:06:34 UTC ± 20 s, step 97",
        "tokens/s/device 3,293 → 2,620 (-20.4 %)",
        "confidence 97 %",
        "1. Exclude nodes chi2822, chi2827  [needs approval]",
        "2. Run fabric test chi2822, chi2827",
        "     trackwalker changed 8308\n",
        "sum by (host) (increase(hw_rdma_tx_retx_pkts_total[2m]))",
        "Input stall (input-stall): not measured: dataloader wait time",
        "scrape gaps (chi2815)",
        "2 d 9 h",
    ):
        assert fact in text
    assert "ghost-data" not in text  # passed checks are not news


def test_healthy_names_no_cause() -> None:
    text = shown(healthy()[0])
    assert text.startswith("HEALTHY  job ")
    assert "(completed)" in text.splitlines()[0]
    assert "ROOT CAUSE" not in text
    assert "Nothing is recommended." in text
    assert "trackwalker perf " in text


@pytest.mark.parametrize("name", SAMPLES)
def test_the_first_screen_says_what_where_and_what_to_type(name: str) -> None:
    verdict = SAMPLES[name]()[0]
    screen = shown(verdict, 80).splitlines()[:24]
    assert screen[0].startswith(OUTCOMES[verdict.outcome].upper())
    assert verdict.outcome == "healthy" or any(line.startswith("Where ") for line in screen)
    assert any(line.strip().startswith("trackwalker ") for line in screen)


def test_why_something_was_ruled_out_is_said_on_request() -> None:
    verdict = rdma()[0]
    said = verdict.ruled_out[0].cause
    assert f"({said}): " not in shown(verdict)
    assert f"({said}): " in shown(verdict, verbose=True)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("page", ["terminal", "verbose", "markdown"])
def test_no_id_of_a_cause_stands_alone(name: str, page: str) -> None:
    verdict = SAMPLES[name]()[0]
    text = markdown(verdict) if page == "markdown" else shown(verdict, 200, verbose=page == "verbose")
    for cause in {c.cause for part in (verdict.causes, verdict.ruled_out, verdict.untestable) for c in part}:  # type: ignore[attr-defined]
        alone = re.findall(rf"(?<![\w(-]){re.escape(cause)}(?![\w-])", text) if "-" in cause else []
        assert alone == [], cause


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_too_wide(name: str, width: int) -> None:
    lines = shown(SAMPLES[name]()[0], width).splitlines()
    text = [line for line in lines if not line.startswith("     trackwalker ")]  # a command to copy is never broken
    assert max(len(line) for line in text) <= min(width, 100)


def test_colour_only_on_a_terminal() -> None:
    plain, coloured = shown(rdma()[0]), shown(rdma()[0], terminal=True)
    assert "\x1b" not in plain
    assert "\x1b[1;31mINCIDENT" in coloured

    def words(text: str) -> list[str]:
        return re.sub(r"\x1b\[[0-9;]*m", "", text).split()

    assert words(coloured) == words(plain)


def test_data_is_never_markup_or_escape() -> None:
    text = shown(nasty()[0])
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert "[bold red]markup[/]" in text
    assert not any(line.startswith("HEALTHY") for line in text.splitlines())
    coloured = shown(nasty()[0], terminal=True)
    assert set(re.findall("\x1b.", coloured)) == {"\x1b["}
    assert "\x1b]" not in coloured
    assert "\x1b[2J" not in coloured
    assert len(text) < 15_000  # the endless line is cut


def test_an_old_locale_is_no_crash() -> None:
    text = shown(rdma()[0], encoding="ascii")
    assert "3,293 -> 2,620" in text
    assert "+/- 20 s" in text


def test_same_verdict_same_bytes() -> None:
    assert shown(rdma()[0]) == shown(rdma()[0])
