"""Log lines as the page shows them: harmless, without secrets, in parts when long; and what an address asks for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from trackwalker.agent.workspace import Workspace
from trackwalker.errors import EvidenceError, UsageError
from trackwalker.job.layout import Job
from trackwalker.job.scrub import Scrubber
from trackwalker.logs.scanning.window import LineCounts, OpenLog
from trackwalker.report.text import visible
from trackwalker.web.logs.log_lines import PART, SHOWN, Dress, Row, level, rank_filter
from trackwalker.web.logs.log_place import LINES, Ask, ask_from, find, keep_of
from trackwalker.web.logs.log_search import Needle
from trackwalker.web.logs.log_view import log_files, pick


def rows_of(path: Path, ask: Ask, q: str = "", notes: dict[int, str] | None = None) -> list[Row]:
    counts = LineCounts()
    with OpenLog(path) as log:
        wanted = keep_of(ask, None)
        place = find(log, counts, ask, wanted)
        dress = Dress(Scrubber(), Needle(q), notes or {})
        return dress.rows(log, counts, place.lines, wanted is None, place.current, ask.part)


def text_of(row: Row) -> str:
    return "".join(text for text, _ in row.pieces)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("a\x00b\x08", "a\u2400b\u2408"),
        ("50%\r100%\r", "50%\u240d100%"),
        ("abc\u202edef\u2066", "abc\ufffddef\ufffd"),
        ("\x9b31mred", "red"),
        ("tab\there", "tab\there"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
    ],
    ids=["colour", "title", "controls", "progress-bar", "bidi", "c1", "tab", "markup-is-text"],
)
def test_a_line_shows_what_is_there_and_obeys_none_of_it(raw: str, shown: str) -> None:
    assert visible(raw) == shown


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"3: E0224 19:10:20.000001 77 x.cc:3] bad thing", "error"),
        (b"7: Traceback (most recent call last):", "error"),
        (b"jaxlib.XlaRuntimeError: INTERNAL", "error"),
        (b"2026-02-24 19:10:20 WARNING slow", "warning"),
        (b"W0224 19:10:20.1 77 x.cc:3] hm", "warning"),
        (b"0: completed step: 7, seconds: 1.0", ""),
        (b"[INFO] no ERROR here", ""),
        (b"I0224 19:10:20.1 77 x.cc:3] recovered from ERROR", ""),
        (b"0: Config param on_ERROR: stop", ""),
        (b"\xff\xfe\x00", ""),
    ],
)
def test_how_serious_a_line_calls_itself(raw: bytes, said: str) -> None:
    assert level(raw) == said


@pytest.mark.parametrize("label", [b"3: ", b"  03: ", b"[rank3]: ", b"[default3]:", b"[1,3]<stderr>:", b"Rank 3: "])
def test_the_lines_of_a_rank_are_known_by_every_launchers_label(label: bytes) -> None:
    assert rank_filter(3)(label + b"x")
    assert not rank_filter(33)(label + b"x")
    assert not rank_filter(0)(label + b"x")


def test_secrets_are_stars_on_the_page_too(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("HF_TOKEN=hf_abcdefghijklmnopqrstuvwx\n" + "QUJD" * 16 + "\nplain\n" + "f" * 40 + "\n")
    shown = [text_of(row) for row in rows_of(path, Ask("1"))]
    assert shown == ["HF_TOKEN=***", "***", "plain", "f" * 40]


def test_a_long_line_is_cut_and_can_be_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    long = "".join(f"{n:07d} " for n in range(20_000)) + "ü"
    path.write_text("first\n" + long + "\nlast\n", encoding="utf-8")
    first, cut, last = rows_of(path, Ask("1", line=2))
    assert (first.number, cut.number, last.number) == (1, 2, 3)
    assert cut.cut
    assert cut.current
    assert cut.size == len(long.encode())
    assert text_of(cut) == long[:SHOWN]
    parts = -(-cut.size // PART)
    told = [rows_of(path, Ask("1", line=2, part=n))[1] for n in range(1, parts + 1)]
    assert "".join(text_of(row) for row in told) == long
    assert [row.part for row in told] == [(n, parts) for n in range(1, parts + 1)]
    assert rows_of(path, Ask("1", line=2, part=999))[1].part == (parts, parts)


def test_what_was_searched_for_is_marked_and_what_triage_found_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("a\nBoom and boom\n")
    row = rows_of(path, Ask("1", line=2), "boom", {2: "device-out-of-memory"})[1]
    assert row.pieces == (("", False), ("Boom", True), (" and ", False), ("boom", True), ("", False))
    assert row.note == "device-out-of-memory"


def test_a_line_by_its_number_stands_in_the_window_with_lines_around_it(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("".join(f"{n % 4}: line {n}\n" for n in range(1, 5001)))
    rows = rows_of(path, Ask("1", line=2500))
    assert [row.number for row in rows] == list(range(2450, 2650))
    assert [row.number for row in rows if row.current] == [2500]
    assert [row.number for row in rows_of(path, Ask("1"))] == list(range(4801, 5001))
    assert [row.number for row in rows_of(path, Ask("1", at=0))] == list(range(1, LINES + 1))
    only = rows_of(path, Ask("1", rank=3, line=2500))
    assert {row.number % 4 for row in only if row.number is not None} == {3}
    assert len(only) == LINES


def test_a_number_that_is_not_reached_in_time_says_how_far_counting_is(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"line\n" * 1_000_000)
    with OpenLog(path) as log:
        counts = LineCounts()
        counts.advance = lambda *_, **__: None  # type: ignore[method-assign]
        place = find(log, counts, Ask("1", line=900_000), None)
        assert "not reached yet" in place.says
        assert place.again is not None
        assert place.again.line == 900_000
        counts = LineCounts()
        counts.advance(log, time.monotonic() + 60)
        assert "has 1,000,000 lines, so no line 2,000,000" in find(log, counts, Ask("1", line=2_000_000), None).says


def test_an_address_gives_back_what_it_was_made_of() -> None:
    ask = Ask("8308", "ranks/3.log", 3, line=7, q="a&b=<c>", go="next", at=0)
    query = dict(pair.split("=") for pair in ask.url.partition("?")[2].partition("#")[0].split("&"))
    assert query == {"file": "ranks%2F3.log", "q": "a%26b%3D%3Cc%3E", "go": "next", "rank": "3", "line": "7", "at": "0"}
    assert ask.url.endswith("#L7")
    assert Ask("a b").url == "/job/a%20b/log#log-end-of-it"  # its end, with and without a script


@pytest.mark.parametrize("name", ["line", "rank", "at", "part"])
@pytest.mark.parametrize("value", ["x", "-1", "1e9", "9" * 16, "٣", "0x1"])
def test_what_is_no_number_is_refused_in_words(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is a number"):
        ask_from("1", {name: value})


def test_only_listed_logs_can_be_opened(tmp_path: Path) -> None:
    ws, job = tmp_path / "ws", tmp_path / "ws" / "7-JAX-x"
    (job / "ranks").mkdir(parents=True)
    (job / "ray_logs" / "n1").mkdir(parents=True)
    for path in (ws / "7-JAX-x.log", ws / "7-JAX-x.log.1", job / "ranks/11.log", job / "ray_logs/n1/worker-1.out"):
        path.write_text("x\n")
    (tmp_path / "secret.log").write_text("secret\n")
    (job / "ranks" / "2.log").symlink_to(tmp_path / "secret.log")
    (job / "ranks" / "3.txt").write_text("x")
    files = log_files(Workspace(ws), Job("7", ws / "7-JAX-x.log", job))
    assert [f.name for f in files] == ["7-JAX-x.log", "7-JAX-x.log.1", "ranks/11.log", "ray_logs/n1/worker-1.out"]
    assert pick(files, "", None).name == "7-JAX-x.log"
    assert pick(files, "", 11).name == "ranks/11.log"
    assert pick(files, "", 5).name == "7-JAX-x.log"
    assert pick(files, "worker-1.out", None).name == "ray_logs/n1/worker-1.out"
    for name in ("ranks/2.log", "../../secret.log", "/etc/passwd", "ranks/../../7-JAX-x.log", "ranks\\11.log", "\0"):
        with pytest.raises(EvidenceError, match="has no log"):
            pick(files, name, None)
    with pytest.raises(EvidenceError, match="no log yet"):
        pick([], "", None)
