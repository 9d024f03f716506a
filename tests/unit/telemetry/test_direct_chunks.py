"""Chunks and indexes read side by side: what a plain decoder reads, and no answer at all from damaged bytes."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xor_decoder import decode as decode_plainly

from trackwalker.telemetry.blocks import STALE, BlockWriter, labels
from trackwalker.telemetry.direct.answers import Direct, Traffic
from trackwalker.telemetry.direct.promql import parse
from trackwalker.telemetry.direct.samples import UnsupportedError
from trackwalker.telemetry.direct.unxor import DamagedError, Place, counts_of, decode
from trackwalker.telemetry.xor import encode_chunks

T0 = 1_700_000_000_000
FLOATS = st.one_of(
    st.floats(),
    st.integers(-(2**53), 2**53).map(float),
    st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf"), 5e-324]),
)
GAPS = st.one_of(st.integers(1, 20_000), st.integers(1, 2**40), st.just(15_000))


def together(chunks: list[bytes]) -> Place:
    lengths = np.array([len(c) for c in chunks])
    return Place(np.frombuffer(b"".join(chunks), np.uint8), np.cumsum(lengths) - lengths, lengths)


def decoded(*places: Place) -> tuple[list[list[int]], list[bytes]]:
    """Times and the bytes of the values, chunk by chunk."""
    counts = np.concatenate([counts_of(p.data, p.starts) for p in places])
    begins = np.cumsum(counts) - counts
    out = np.zeros(int(counts.sum()))
    rows, whose = decode(places, out, begins)
    times = [rows[w, :n].tolist() for w, n in zip(whose, counts, strict=True)]
    return times, [out[b : b + n].tobytes() for b, n in zip(begins, counts, strict=True)]


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(-(2**41), 2**41))
def test_chunks_of_all_lengths_together_are_what_each_is_alone(data: st.DataObject, start: int) -> None:
    chunks = []
    for count in data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=5)):
        gaps = data.draw(st.lists(GAPS, min_size=count - 1, max_size=count - 1))
        values = data.draw(st.lists(FLOATS, min_size=count, max_size=count))
        chunks += encode_chunks(np.cumsum([[start, *gaps]], axis=1), np.array([values]))
    half = len(chunks) // 2
    times, values = decoded(*(together(part) for part in (chunks[:half], chunks[half:]) if part))
    for row, chunk in enumerate(chunks):
        plain = decode_plainly(chunk)
        assert times[row] == [t for t, _ in plain]
        assert values[row] == np.array([v for _, v in plain]).tobytes()


def test_series_that_are_scraped_together_share_their_times() -> None:
    times = np.tile(T0 + 10_000 * np.arange(120), (16, 1))
    values = np.random.default_rng(0).normal(size=times.shape)
    values[:4] = 7.0
    rows, whose = decode([together(encode_chunks(times, values))], np.zeros(values.size), 120 * np.arange(16))
    assert len(rows) == 2, "those that are constant and those that are not"
    assert set(whose.tolist()) == {0, 1}


def test_damaged_chunks_are_refused_or_numbers_but_nothing_else() -> None:
    rng = random.Random(3)
    times = np.cumsum(np.full((8, 60), 15_000), axis=1) + T0
    whole = together(encode_chunks(times, np.random.default_rng(1).normal(size=times.shape)))
    refused = 0
    for _ in range(100):
        bad = whole.data.copy()
        for _ in range(rng.randrange(1, 6)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        try:
            decode([Place(bad, whole.starts, whole.lengths)], np.zeros(times.size), 60 * np.arange(8))
        except DamagedError:
            refused += 1
    assert refused > 20


def database(folder: Path) -> list[Path]:
    writer = BlockWriter(folder, seed=7)
    times = T0 + 10_000 * np.arange(800, dtype=np.int64)
    names = [labels("power", host=f"h{i}", gpu=str(g)) for i in range(3) for g in range(2)]
    values = np.random.default_rng(2).normal(500, 5, (len(names), len(times))).round(1)
    values[0, -1] = STALE
    writer.add(names, times, values)
    writer.close()
    return sorted(folder.iterdir())


def answer(folders: list[Path], promql: str, at: int) -> dict[str, float] | None:
    found = Direct(folders, Traffic()).values(promql, np.array([at]))
    return None if found is None else {"/".join(k.values()): v for k, v in zip(found[0], found[1][:, 0], strict=True)}


def test_a_question_is_answered_across_blocks(tmp_path: Path) -> None:
    folders = database(tmp_path)
    end = T0 + 799 * 10_000
    assert len(folders) > 1
    assert answer(folders, "count(power)", end) == {"": 5.0}, "one series has ended"
    assert answer(folders, "count by (host) (count_over_time(power[3h]) == 800)", end) == {"h0": 1, "h1": 2, "h2": 2}
    direct = Direct(folders, Traffic())
    rows = direct.raw('power{host="h0"}', T0, end)
    assert rows is not None
    assert [(r[0]["gpu"], len(r[1])) for r in rows] == [("0", 799), ("1", 800)]
    assert direct.newest(end / 1000) == end / 1000


@pytest.mark.parametrize("part", ["index", "chunks/000001"])
def test_damage_is_met_by_no_answer_and_no_error(tmp_path: Path, part: str) -> None:
    folders = database(tmp_path)
    path = folders[0] / part
    whole = path.read_bytes()
    rng = random.Random(part)
    for _ in range(40):
        bad = bytearray(whole)
        if rng.random() < 0.3:
            del bad[rng.randrange(len(bad)) :]
        else:
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(bad))
        try:
            found = answer(folders, "sum(count_over_time(power[3h]))", T0 + 799 * 10_000)
        except DamagedError:
            continue  # at the opening
        assert found in (None, {"": 4799.0}), "a flipped bit where nobody looks, or none"


@pytest.mark.parametrize(
    "promql",
    ["", "power[", "sum(", "topk(3, power)", "power{host=~'x'}", "power offset -5m", "1 +", "rate(power)", "power ^ 2",
     "histogram_quantile(0.9, power)", "power @ start()", "sum(power) by (host) by (gpu)", "a b", "power # why"],
)  # fmt: skip
def test_what_is_not_understood_is_left_to_prometheus(tmp_path: Path, promql: str) -> None:
    assert answer(database(tmp_path), promql, T0 + 60_000) is None


def test_operators_bind_as_in_promql() -> None:
    assert parse("a - b - c") == parse("(a - b) - c")
    assert parse("a or b unless c + d * e > 1") == parse("a or (b unless ((c + (d * e)) > 1))")
    with pytest.raises(UnsupportedError):
        parse("a )")
