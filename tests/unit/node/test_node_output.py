"""Rank output: no byte lost, none doubled, whatever the writer does and whenever the reader restarts."""

from __future__ import annotations

import multiprocessing
import os
import resource
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trackwalker.node.agent import output
from trackwalker.node.agent.output import RankOutput, Sink, Tail, label, stamp

text = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"\xff\0", "ü".encode(), b"x" * 50])).map(b"".join)


def drain(tail: Tail) -> list[bytes]:
    out: list[bytes] = []
    while part := tail.lines(final=True):
        out += part
    return out


@settings(deadline=None)
@given(pieces=st.lists(text, max_size=6), restarts=st.sets(st.integers(0, 5)), longest=st.sampled_from([20, 1 << 16]))
@example(pieces=[b"no newline"], restarts=set(), longest=1 << 16)
@example(pieces=[b"x" * 50, b"x" * 50 + b"\n"], restarts={0}, longest=20)
def test_a_growing_file_with_restarts_gives_every_byte_once(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], restarts: set[int], longest: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "raw.out"
    path.write_bytes(b"")
    before, output._LONGEST = output._LONGEST, longest
    try:
        tail, seen, whole = Tail(path), [], b"".join(pieces)
        for number, piece in enumerate(pieces):
            with path.open("ab") as f:
                f.write(piece)
            seen += tail.lines()
            if number in restarts:
                tail.close()
                tail = Tail(path, tail.offset)
        seen += drain(tail)
        tail.close()
    finally:
        output._LONGEST = before
    assert tail.offset == len(whole)
    assert b"".join(seen) == whole.replace(b"\n", b"")  # every other byte once, in order
    if longest > len(whole):
        lines = whole.split(b"\n")
        assert seen == (lines if lines[-1] else lines[:-1])


def test_an_unfinished_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "0.out"
    tail = Tail(path)
    assert tail.lines() == []  # not there yet
    path.write_bytes(b"one\ntw")
    assert (tail.lines(), tail.offset) == ([b"one"], 4)
    with path.open("ab") as f:
        f.write(b"o\r\n")
    assert (tail.lines(), tail.offset) == ([b"two\r"], 9)


def test_a_burst_before_the_end_is_drained(tmp_path: Path) -> None:
    """A rank that prints much and exits at once: all of it is there when the last look is taken."""
    path = tmp_path / "0.out"
    lines = [b"%06d %s" % (n, b"x" * (n % 90)) for n in range(60_000)]
    path.write_bytes(b"\n".join(lines))
    tail = Tail(path)
    assert drain(tail) == lines
    assert tail.offset == path.stat().st_size


def test_a_huge_line_passes_in_pieces_of_bounded_size(tmp_path: Path) -> None:
    path = tmp_path / "0.out"
    path.write_bytes(b"y" * 5_000_000 + b"\nnext\n")
    tail = Tail(path)
    seen = drain(tail)
    assert b"".join(seen[:-1]) == b"y" * 5_000_000
    assert seen[-1] == b"next"
    assert max(map(len, seen)) < 2_200_000


def test_pump_writes_both_logs(tmp_path: Path) -> None:
    raw, merged = tmp_path / "2.out", Sink(tmp_path / "job.log")
    raw.write_bytes(b"hello\n\xff\xfe\n\nlast")
    rank = RankOutput(2, 12, raw, tmp_path / "2.log", merged, 0)
    assert rank.pump(0.25) == [b"hello", b"\xff\xfe", b""]
    assert rank.pump(1.0, final=True) == [b"last"]
    rank.close()
    merged.close()
    assert (tmp_path / "job.log").read_bytes() == b" 2: hello\n 2: \xff\xfe\n 2: \n 2: last\n"
    lines = (tmp_path / "2.log").read_bytes().split(b"\n")
    assert lines[0] == b"1970-01-01T00:00:00.250Z hello"
    assert lines[3] == b"1970-01-01T00:00:01.000Z last"


@pytest.mark.parametrize(
    ("rank", "world", "prefix"), [(0, 1, "0: "), (7, 8, "7: "), (3, 24, " 3: "), (10, 128, " 10: ")]
)
def test_labels_are_padded_as_srun_pads(rank: int, world: int, prefix: str) -> None:
    assert label(rank, world) == prefix


def test_stamps_are_utc_milliseconds() -> None:
    assert stamp(1_700_000_000.9996) == b"2023-11-14T22:13:20.999Z "


def _write_past_a_limit(folder: Path) -> None:
    os.close(2)
    os.open("/dev/full", os.O_WRONLY)  # the agent's own log is on the same full disk
    sink = Sink(folder / "job.log")
    sink.write(b"0: first\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (14, hard))
    sink.write(b"0: second, which does not fit\n")
    sink.write(b"0: third\n")
    lost = sink.lost
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    sink.write(b"0: fourth\n")
    os._exit(0 if lost == 2 and sink.lost == 2 else 1)


@pytest.mark.starts_processes
def test_a_full_disk_costs_lines_is_counted_and_can_be_mended(tmp_path: Path) -> None:
    child = multiprocessing.get_context("fork").Process(target=_write_past_a_limit, args=(tmp_path,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert (tmp_path / "job.log").read_bytes() == b"0: first\n0: se\n0: fourth\n"


def test_a_sink_that_cannot_open_only_counts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sink = Sink(tmp_path / "file" / "job.log")
    sink.write(b"x\n")
    assert (sink.lost, sink.size()) == (1, 0)


def test_what_was_written_after_a_save_can_be_taken_back(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "job.log")
    assert sink.size() == 0
    sink.write(b"0: kept\n")
    saved = sink.size()
    sink.write(b"0: again\n0: tor")
    later = Sink(tmp_path / "job.log")
    later.cut_back(saved)
    later.write(b"0: again\n")
    later.cut_back(10_000)  # shorter than that already: nothing to take back
    assert (tmp_path / "job.log").read_bytes() == b"0: kept\n0: again\n"
