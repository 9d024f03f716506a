"""Untrusted text and numbers in words."""

from __future__ import annotations

import json
import math
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackwalker.diagnose.verdict import Magnitude, Onset, Progress
from trackwalker.report import words
from trackwalker.report.text import clean, clip, clip_middle, json_visible, one_line


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]8;;http://evil\x07link\x1b]8;;\x1b\\ end", "link end"),
        ("\x1b]0;title without end", "0;title without end"),  # a stray escape hides nothing
        ("a\x07\x08\x00b\x7f\x85c", "abc"),
        ("\u202egnp.exe\u2066\u200b\ufeff", "gnp.exe"),
        ("tag\U000e0041\U000e0042", "tag"),
        ("broken \ud800 half", "broken \ufffd half"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("e" + "\u0301" * 50, "e" + "\u0301" * 3),
        ("日本語 ünïcödé 42 °C", "日本語 ünïcödé 42 °C"),
    ],
)
def test_clean(raw: str, shown: str) -> None:
    assert clean(raw) == shown


@given(st.text(alphabet=st.characters(codec=None), max_size=200))
@settings(max_examples=150, deadline=None)
def test_clean_leaves_no_control_and_is_stable(raw: str) -> None:
    shown = clean(raw)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f")
    assert clean(shown) == shown
    assert "\n" not in one_line(raw)
    shown.encode("utf-8")


def test_clean_is_linear() -> None:
    assert len(clean("\x1b]" * 200_000)) < 200_000
    assert clean("\x9d" * 200_000) == ""


def test_clip() -> None:
    assert clip("abcdef", 6) == "abcdef"
    assert clip("abcdefg", 4) == "abc…"
    assert clip_middle("gpu-node-000123", 9) == "gpu-…0123"
    assert len(clip_middle("x" * 50, 2)) == 2


def test_json_visible_stays_the_same_json() -> None:
    value = {"a": "\u202egnp\x85 \U000e0041 ok"}
    document = json.dumps(value, ensure_ascii=False)
    visible = json_visible(document)
    assert json.loads(visible) == value
    assert "\u202e" not in visible
    assert "\\u202e" in visible


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3293, "3,293"),
        (39.04, "39.0"),
        (0.01234, "0.0123"),
        (1e-9, "1e-09"),
        (math.nan, "not a number"),
        (math.inf, "infinite"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (5, "5 s"),
        (0.02, "20 ms"),
        (59.7, "1 min"),
        (1070, "17 min 50 s"),
        (184860, "2 d 3 h"),
        (86400, "1 d"),
        (math.nan, "unknown"),
    ],
)
def test_duration(value: float, text: str) -> None:
    assert words.duration(value) == text


def test_only_certainty_reads_as_certain() -> None:
    assert words.confidence(0.97) == "confidence 97 %"
    assert words.confidence(0.999) == "confidence above 99 %"
    assert words.confidence(1.0) == "confidence 100 %"
    assert words.confidence(math.nan) == "confidence unknown"


def test_times_are_utc() -> None:
    assert words.utc(1771960220.9) == "2026-02-24 19:10:20"
    assert words.utc_iso("2026-02-24T20:10:20+01:00") == "2026-02-24 19:10:20 UTC"
    assert words.utc_iso("2026-02-24T19:10:20Z") == "2026-02-24 19:10:20 UTC"
    assert words.utc_iso("yesterday\x1b[2J") == "yesterday"
    assert words.utc(math.inf) == "unknown time"


def test_facts_leave_out_what_is_unknown() -> None:
    assert words.onset(Onset()) == "not known"
    assert words.onset(Onset(step=97, uncertainty_s=20)) == "step 97, ± 20 s"
    assert words.progress_facts(Progress()) == []
    assert words.progress_facts(Progress(total_steps=10)) == [("last step", "none of 10")]
    magnitude = Magnitude(of="tgs", from_=3293, to=2620, change=-0.204)
    assert words.magnitude(magnitude) == "tokens/s/device 3,293 → 2,620 (-20.4 %)"
    assert words.names([f"h{i}" for i in range(15)], 2) == "h0, h1 and 13 more"
