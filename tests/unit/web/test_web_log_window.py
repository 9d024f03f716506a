"""Windows into logs of any size: by number, by place, by text; cut, growing and binary logs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackwalker.errors import EvidenceError
from trackwalker.logs.scanning import window
from trackwalker.logs.scanning.window import LineCounts, OpenLog, around
from trackwalker.web.logs.log_lines import rank_filter
from trackwalker.web.logs.log_search import Needle, search


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def texts(found: window.Window) -> list[bytes]:
    return [line.raw for line in found.lines]


def counted(log: OpenLog) -> LineCounts:
    counts = LineCounts()
    counts.advance(log, time.monotonic() + 60)
    return counts


@given(data=st.lists(st.sampled_from([b"a", b"bb\n", b"\n", b"c" * 30, b"\r\n", b"\x00\xff\n"]), max_size=40))
@settings(max_examples=60, deadline=None)
def test_every_line_has_one_place_and_one_number_whatever_the_block_size(
    data: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = b"".join(data)
    path = written(tmp_path_factory.mktemp("log") / "x.log", text)
    lines = text.split(b"\n")
    lines = lines[:-1] if lines[-1] == b"" else lines
    before = window.BLOCK, window.LONGEST
    window.BLOCK, window.LONGEST = 16, 8  # so that lines lie across blocks
    try:
        with OpenLog(path) as log:
            counts = counted(log)
            found = log.forward(0, 1000).lines
            assert [text[line.start : line.end] for line in found] == lines
            assert [line.raw for line in found] == [line[:8] for line in lines]
            assert log.backward(log.size, 1000).lines == found
            assert (counts.lines(log) or 0) == len(lines)
            for number, line in enumerate(found, 1):
                assert counts.start_of(log, number) == line.start
                assert counts.number_at(log, line.start) == number
                assert log.line_at(line.start) == line
                assert log.backward(line.start, 1).lines == found[max(0, number - 2) : number - 1]
            assert counts.start_of(log, len(lines) + 1) is None or not lines
    finally:
        window.BLOCK, window.LONGEST = before


def test_a_ten_megabyte_line_costs_its_beginning_only(tmp_path: Path) -> None:
    path = written(tmp_path / "x.log", b"first\n" + b"x" * 10_000_000 + b"\nlast\n")
    with OpenLog(path) as log:
        found = log.forward(0, 10)
        assert [line.size for line in found.lines] == [5, 10_000_000, 4]
        assert len(found.lines[1].raw) == window.LONGEST
        assert log.backward(log.size, 2).lines == found.lines[1:]
        counts = counted(log)
        assert counts.number_at(log, found.lines[2].start) == 3
        assert counts.start_of(log, 3) == found.lines[2].start


def test_counting_stops_when_its_time_is_over_and_goes_on_later(tmp_path: Path) -> None:
    path = written(tmp_path / "x.log", b"line\n" * 1_000_000)
    counts = LineCounts()
    with OpenLog(path) as log:
        counts.advance(log, time.monotonic() - 1)
        assert counts.counted == 0
        assert counts.lines(log) is None
        assert counts.start_of(log, 900_000) is None
        counts.advance(log, time.monotonic() + 60, line=300_000)
        assert 0 < counts.counted < log.size // 2
        counts.advance(log, time.monotonic() + 60)
        assert counts.lines(log) == 1_000_000
        assert counts.start_of(log, 900_000) == 5 * 899_999


def test_counts_follow_a_log_that_grows_and_begin_anew_with_another_text(tmp_path: Path) -> None:
    path = written(tmp_path / "x.log", b"line\n" * 300_000)
    with OpenLog(path) as log:
        counts = counted(log)
    with path.open("ab") as file:
        file.write(b"more\n" * 300_000)
    with OpenLog(path) as log:
        kept = counts.counted
        counts.advance(log, time.monotonic() - 1)
        assert counts.counted == kept > 0
        counts.advance(log, time.monotonic() + 60)
        assert counts.lines(log) == 600_000
    path.write_bytes(b"ab\n" * 600_000)  # the same file, another text
    with OpenLog(path) as log:
        counts.advance(log, time.monotonic() + 60)
        assert counts.lines(log) == 600_000
        assert counts.start_of(log, 400_000) == 3 * 399_999


def test_a_log_that_is_cut_while_it_is_read_ends_the_window(tmp_path: Path) -> None:
    path = written(tmp_path / "x.log", b"line\n" * 1_000_000)
    with OpenLog(path) as log:
        counts = counted(log)
        os.truncate(path, 12)
        assert texts(log.forward(0, 1000)) == [b"line", b"line", b"li"]
        assert log.backward(log.size, 10).lines == []
        assert log.forward(4_000_000, 5).lines == []
        assert counts.start_of(log, 900_000) is None
        assert search(log, Needle("zzz"), 0, back=False, seconds=5).line is None


def test_a_folder_or_a_pipe_in_place_of_a_log_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"cannot read gone\.log: No such file"):
        OpenLog(tmp_path / "gone.log")
    os.mkfifo(tmp_path / "pipe.log")
    with OpenLog(tmp_path / "pipe.log") as log:
        log.size = 10
        with pytest.raises(EvidenceError, match=r"cannot read pipe\.log"):
            log.read(0, 10)


@pytest.mark.parametrize(
    ("text", "back", "at", "line"),
    [
        ("needle", False, 0, b"the Needle one"),
        ("Needle", False, 0, b"the Needle one"),
        ("NEEDLE", False, 0, b"NEEDLE two"),
        ("needle", True, 10_000_000, b"NEEDLE two"),
        ("Needle", True, 10_000_000, b"the Needle one"),
        ("ü", False, 0, "für".encode()),
    ],
    ids=["any-case", "as-written", "capitals", "backwards", "backwards-as-written", "beyond-ascii"],
)
def test_small_letters_find_any_case_and_large_ones_only_themselves(
    tmp_path: Path, text: str, back: bool, at: int, line: bytes
) -> None:
    path = written(tmp_path / "x.log", b"a\nthe Needle one\nf\xc3\xbcr\n" + b"-\n" * 700_000 + b"NEEDLE two\nz\n")
    with OpenLog(path) as log:
        hit = search(log, Needle(text), at, back, seconds=60)
        assert hit.line is not None
        assert hit.line.raw == line


def test_a_text_across_two_blocks_is_found_and_every_hit_is_found_once(tmp_path: Path) -> None:
    data = b"x" * (window.BLOCK - 3) + b"needle" + b"\n" + b"y" * window.BLOCK + b"needle\n"
    with OpenLog(written(tmp_path / "x.log", data)) as log:
        places, at = [], 0
        while (hit := search(log, Needle("needle"), at, back=False, seconds=60)).line is not None:
            places.append(hit.at)
            at = hit.at + 1
        assert places == [window.BLOCK - 3, 2 * window.BLOCK + 4]
        back, at = [], log.size
        while (hit := search(log, Needle("needle"), at, back=True, seconds=60)).line is not None:
            back.append(hit.at)
            at = hit.at
        assert back == places[::-1]
        assert not hit.stopped


def test_a_search_tells_how_far_it_came_when_its_time_is_over(tmp_path: Path) -> None:
    with OpenLog(written(tmp_path / "x.log", b"-" * (3 * window.BLOCK))) as log:
        hit = search(log, Needle("needle"), 0, back=False, seconds=-1)
        assert (hit.at, hit.line, hit.stopped) == (window.BLOCK, None, True)
        hit = search(log, Needle("needle"), log.size, back=True, seconds=-1)
        assert (hit.at, hit.line, hit.stopped) == (2 * window.BLOCK, None, True)


def test_a_search_skips_lines_of_other_ranks(tmp_path: Path) -> None:
    path = written(tmp_path / "x.log", b"0: boom\n1: fine\n1: boom\n0: boom\n")
    with OpenLog(path) as log:
        hit = search(log, Needle("boom"), 0, back=False, seconds=60, wanted=rank_filter(1))
        assert hit.line is not None
        assert hit.line.raw == b"1: boom"


@pytest.mark.parametrize("block", [16, 64, 1 << 20])
def test_the_lines_of_a_rank_are_the_same_from_both_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    lines = [b"%d: line %d of 3: x" % (n % 5, n) for n in range(60)] + [
        b"3: " + b"y" * 200,
        b"no label 3: z",
        b"3: end",
    ]
    path = written(tmp_path / "x.log", b"\n".join(lines))
    monkeypatch.setattr(window, "BLOCK", block)
    wanted = [line for line in lines if line.startswith(b"3: ")]
    with OpenLog(path) as log:
        for found in (log.forward(0, 99, rank_filter(3)), log.backward(log.size, 99, rank_filter(3))):
            assert [log.read(line.start, line.size) for line in found.lines] == wanted
        half = log.forward(0, 5, rank_filter(3))
        rest = log.forward(half.at, 99, rank_filter(3))
        assert len(half.lines) + len(rest.lines) == len(wanted)
        late = log.backward(log.size, 5, rank_filter(3))
        both = log.backward(late.at, 99, rank_filter(3)).lines + late.lines
        assert [line.start for line in both] == [line.start for line in half.lines + rest.lines]
        assert log.forward(0, 99, rank_filter(9)).lines == []


def test_lines_around_a_number_stop_at_the_ends_of_the_log(tmp_path: Path) -> None:
    path = written(tmp_path / "x.log", b"".join(b"l%d\n" % n for n in range(1, 10)))
    assert [(n, line.raw) for n, line in around(path, 2, 3, 1)] == [(1, b"l1"), (2, b"l2"), (3, b"l3")]
    assert [n for n, _ in around(path, 9, 1, 5)] == [8, 9]
    assert around(path, 40, 1, 1) == []
