"""Journals are readable after any crash and written by many at once."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackwalker.job.journal import Journal, encode, has_ended, read
from trackwalker.watch.detect.live import Follower

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def strict(line: bytes) -> object:
    """JSON as the standard has it: NaN and Infinity are not numbers."""
    return json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_round_trip(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "events.jsonl")
    records = [{"t": 1.5, "kind": "a", "data": {"x": [1, None]}}, {"t": 2.0, "text": 'line\nbreak "ü" \U0001f600'}]
    for record in records:
        journal.append(record)
    journal.close()
    journal.close()
    back = read(tmp_path / "deep" / "events.jsonl")
    assert back.items == [{"v": 1, **r} for r in records]
    assert (back.damaged, back.torn_tail) == (0, False)


@given(st.dictionaries(st.text().filter(lambda k: k != "v"), values, max_size=4))
def test_any_record_is_one_line_of_strict_json(record: dict[str, object]) -> None:
    line = encode(record)
    assert line.count(b"\n") == 1
    assert isinstance(strict(line), dict)


@pytest.mark.parametrize(("value", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_non_finite_numbers_travel_as_words(value: float, text: str) -> None:
    nested = {"loss": value, "data": {"peak": value, "list": [1.0, value], "pair": (value,)}}
    back = strict(encode(nested))
    assert back == {"v": 1, "loss": text, "data": {"peak": text, "list": [1.0, text], "pair": [text]}}
    assert str(float(text)) == str(value)


def test_missing_file_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl").items == []


def test_torn_tail_is_mended_when_reopened(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(encode({"n": 1}) + b'{"v":1,"n":2,"da')
    assert read(path).torn_tail
    journal = Journal(path)
    journal.append({"n": 3})
    journal.close()
    back = read(path)
    assert [r["n"] for r in back.items] == [1, 3]
    assert (back.damaged, back.torn_tail) == (1, False)


@pytest.mark.parametrize(
    "line",
    [
        b"hello",
        b"[1,2]",
        b'"text"',
        b'{"n":1}',
        b'{"v":2,"n":1}',
        b'{"v":"1"}',
        b"\xff\xfe{",
        b"{" * 5000,
        b"[" * 200_000,
    ],
)
def test_foreign_lines_are_counted_not_raised(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(encode({"n": 1}) + line + b"\n\n" + encode({"n": 2}))
    back = read(path)
    assert [r["n"] for r in back.items] == [1, 2]
    assert back.damaged == 1
    assert [r["n"] for r in Follower(path).new() if r.get("v") == 1] == [1, 2]


@given(
    st.binary(max_size=300)
    | st.lists(st.sampled_from([b"{", b"}", b'"v":1', b"\n", b"\xff", b"\0", b"[", b"1"])).map(b"".join)
)
def test_arbitrary_bytes_never_raise(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "junk.jsonl"
    path.write_bytes(junk)
    back = read(path)
    lines = [line for line in junk.split(b"\n") if line.strip()]
    assert len(back.items) + back.damaged == len(lines)
    assert back.torn_tail == (bool(junk) and not junk.endswith(b"\n"))
    Follower(path).new()


def _append_many(path: Path, who: int) -> None:
    journal = Journal(path)
    for n in range(200):
        journal.append({"who": who, "n": n, "pad": "x" * (37 * (n % 50))})


@pytest.mark.starts_processes
def test_concurrent_writers_do_not_tear_lines(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append_many, args=(path, who)) for who in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    back = read(path)
    assert (back.damaged, back.torn_tail) == (0, False)
    for who in range(6):
        assert [r["n"] for r in back.items if r["who"] == who] == list(range(200))


def _append_on_a_full_disk(path: Path) -> None:
    journal = Journal(path)
    journal.append({"n": 1})
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    failures = 0
    for _ in range(2):
        try:
            journal.append({"n": 2})
        except OSError:
            failures += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.append({"n": 3})
    os._exit(0 if failures == 2 else 1)


@pytest.mark.starts_processes
def test_a_disk_that_fills_up_costs_only_the_records_that_did_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    child = multiprocessing.get_context("fork").Process(target=_append_on_a_full_disk, args=(path,))
    child.start()
    child.join()
    assert child.exitcode == 0, "a record that did not fit must raise OSError"
    assert [r["n"] for r in read(path).items] == [1, 3]


@pytest.mark.parametrize(
    ("kinds", "over"),
    [
        ([], False),
        (["attempt-begin", "rank-start"], False),
        (["attempt-begin", "run-end"], True),
        (["run-end"], True),  # a run on one machine has one attempt and does not say so
        (["attempt-begin", "run-end", "attempt-begin", "rank-start"], False),
    ],
)
def test_only_the_end_of_the_last_attempt_counts(kinds: list[str], over: bool) -> None:
    assert has_ended([{"kind": kind} for kind in kinds]) is over
