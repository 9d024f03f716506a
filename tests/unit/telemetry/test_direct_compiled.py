"""Machine code and numpy decode the same bits, and refuse the same chunks."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trackwalker.telemetry.blocks import STALE, BlockWriter, labels
from trackwalker.telemetry.direct import decoding, samples
from trackwalker.telemetry.direct.answers import Direct, Traffic
from trackwalker.telemetry.direct.decoding import (
    BY_NUMPY,
    KERNEL,
    Chunks,
    Decoded,
    by_compiler,
    by_numpy,
    compiled_checksums,
    compiled_series,
    means_for,
)
from trackwalker.telemetry.direct.index import MappedFile
from trackwalker.telemetry.direct.unxor import DamagedError, Place, counts_of
from trackwalker.telemetry.xor import encode_chunks

pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed: pip install -e '.[scale]'")

T0 = 1_700_000_000_000


def chunks_of(raw: list[bytes], series: list[int], split: int = 0) -> Chunks:
    """Chunks in one file, or in two."""
    pieces = []
    for part in (range(split), range(split, len(raw))):
        if part:
            lengths = np.array([len(raw[i]) for i in part])
            data = np.frombuffer(b"".join(raw[i] for i in part), np.uint8)
            pieces.append((Place(data, np.cumsum(lengths) - lengths, lengths), np.array(part)))
    counts = np.concatenate([counts_of(place.data, place.starts) for place, _ in pieces])
    return Chunks(pieces, counts, np.array(series), np.zeros((len(raw), 2), np.int64), max(series) + 2)


def told(decode: Callable[[Chunks], Decoded], chunks: Chunks) -> tuple[list[bytes], list[list[int]]] | None:
    """The bytes of each series' values and the times of each chunk; None where they are refused."""
    try:
        found = decode(chunks)
    except DamagedError:
        return None
    values = [found.values[b : b + n].tobytes() for b, n in zip(found.begins, chunks.sizes, strict=True)]
    rows = zip(found.of_times.tolist(), chunks.counts.tolist(), strict=True)
    return values, [found.times[row, :count].tolist() for row, count in rows]


def any_values(rng: np.random.Generator, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A series of some kind: a constant, a sensor, a counter that begins anew, any bits, ends and no numbers in it."""
    kind = int(rng.integers(6))
    out = np.full(count, float(rng.choice([0.0, -0.0, 3.5, np.nan, np.inf, STALE])))
    if kind == 1:
        out = rng.normal(500, 5, count).round(int(rng.integers(0, 8)))
    elif kind == 2:
        out = np.cumsum(rng.integers(0, 1 << int(rng.integers(1, 40)), count)).astype(float)
        out[count // 2 :] -= out[count // 2]
    elif kind == 3:
        out = rng.integers(0, 2**64, count, np.uint64).view(np.float64)
    elif kind == 4:
        out[rng.random(count) < 0.1] = 1.0
    if kind % 2 and rng.random() < 0.5:
        out[rng.integers(count)] = STALE
    return out


def any_times(rng: np.random.Generator, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Scrapes: regular, jittering a little or a lot, with a hole, far apart."""
    gaps = np.full(count, 10_000, np.int64)
    kind = int(rng.integers(5))
    if kind == 1:
        gaps += rng.integers(-3, 4, count)
    elif kind == 2:
        gaps += rng.integers(-9_000, 200_000, count)
    elif kind == 3:
        gaps[rng.integers(count)] = 10_000_000
    elif kind == 4:
        gaps = rng.integers(1, 1 << 45, count)
    return T0 + int(rng.integers(3)) + np.cumsum(gaps)


@pytest.fixture(scope="module")
def pool() -> list[bytes]:
    """Chunks of many lengths and kinds; half of a length's share their times."""
    rng = np.random.default_rng(1)
    out = []
    for count in (1, 2, 3, 31, 34, 66, 119, 120, 121, 250):
        shared = any_times(rng, count)
        times = [shared if rng.random() < 0.5 else any_times(rng, count) for _ in range(40)]
        out += encode_chunks(np.stack(times), np.stack([any_values(rng, count) for _ in times]))
    return out


def drawn(dice: random.Random, pool: list[bytes]) -> tuple[list[bytes], list[int]]:
    """Some series of one to four chunks, which may be the same; between them series without any."""
    series = [2 * n for n in range(dice.randrange(1, 12)) for _ in range(dice.randrange(1, 5))]
    raw = [dice.choice(pool) for _ in series]
    alike = [i for i, n in enumerate(series) if n % 6 == 0]
    for i in alike:
        raw[i] = raw[alike[0]]
    return raw, series


def test_both_give_the_same_bits(pool: list[bytes]) -> None:
    dice = random.Random(4)
    assert told(by_compiler, everything := chunks_of(pool, list(range(len(pool))))) == told(by_numpy, everything)
    for _ in range(60):
        raw, series = drawn(dice, pool)
        chunks = chunks_of(raw, series, split=dice.randrange(len(raw)))
        found = told(by_compiler, chunks)
        assert found is not None
        assert found == told(by_numpy, chunks)


def test_both_refuse_the_same_chunks(pool: list[bytes]) -> None:
    dice = random.Random(5)
    refused = 0
    for _ in range(150):
        raw, series = [dice.choice(pool) for _ in range(4)], [0, 0, 1, 1]
        spoilt = bytearray(raw[-1])
        for _ in range(dice.randrange(1, 4)):
            spoilt[dice.randrange(2, len(spoilt))] = dice.randrange(256)
        if dice.random() < 0.3:
            spoilt = spoilt[: dice.randrange(3, len(spoilt) + 1)] + bytes(dice.randrange(3))
        chunks = chunks_of([*raw[:-1], bytes(spoilt)], series)
        found = told(by_compiler, chunks)
        assert found == told(by_numpy, chunks)
        refused += found is None
    assert 40 < refused < 150


def test_many_batches_share_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_AT_ONCE", 7)
    times = np.tile(T0 + 10_000 * np.arange(120), (64, 1))
    values = np.random.default_rng(0).normal(size=times.shape)
    values[:20] = 7.0
    chunks = chunks_of(encode_chunks(times, values), list(range(64)))
    found = by_compiler(chunks)
    assert len(found.times) == 1
    assert len(found.values) == 44 * 120 + 120 + 1, "those that never moved share one stretch"
    assert told(by_compiler, chunks) == told(by_numpy, chunks)


def test_questions_have_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = BlockWriter(tmp_path, seed=7)
    times = T0 + 10_000 * np.arange(800, dtype=np.int64)
    rng = np.random.default_rng(2)
    values = np.stack([any_values(rng, 800) for _ in range(40)])
    writer.add([labels("power", host=f"h{i}") for i in range(40)], times, np.where(np.isinf(values), 1.0, values))
    writer.close()
    folders = sorted(tmp_path.iterdir())
    at = T0 + 10_000 * np.arange(0, 800, 60)
    for promql in ("power", "rate(power[10m])", "avg_over_time(power[20m])", "changes(power[2h])", "sum(power)"):
        told = []
        for means in (means_for(1 << 40), BY_NUMPY):
            monkeypatch.setattr(samples, "means_for", lambda size, means=means: means)
            found = Direct(folders, Traffic()).values(promql, at)
            assert found is not None
            told.append((found[0], found[1][found[2]].tobytes(), found[2].tobytes()))
        assert told[0] == told[1], promql


def test_both_read_the_same_entries_of_an_index_and_refuse_the_same() -> None:
    dice, refused = random.Random(6), 0
    for round_ in range(300):
        entries = [entry(dice) for _ in range(dice.randrange(1, 9))]
        if round_ % 3:
            spoilt = bytearray(entries[-1])
            spoilt[dice.randrange(len(spoilt))] = dice.randrange(256)
            entries[-1] = bytes(spoilt)[: dice.randrange(1, len(spoilt) + 1)]
        lengths = np.array([len(e) for e in entries])
        data = np.frombuffer(b"".join(entries) + bytes([255] * 64), np.uint8)
        asked = (data, np.cumsum(lengths) - lengths, np.cumsum(lengths), 300)
        found = []
        for read in (BY_NUMPY.series, compiled_series):
            try:
                found.append([table.tolist() for table in read(*asked)])
            except (DamagedError, IndexError):
                found.append([])
        assert found[0] == found[1]
        assert found[0] or round_ % 3, "a sound entry is refused"
        refused += not found[0]
    assert 60 < refused < 200


def entry(dice: random.Random) -> bytes:
    """A series of an index: some labels, some chunks."""
    numbers = [pairs := dice.randrange(1, 12), *(dice.randrange(300) for _ in range(2 * pairs)), dice.randrange(4)]
    numbers += [dice.randrange(1 << dice.randrange(1, 40)) for _ in range(3 * numbers[-1])]
    return b"".join(map(uvarint, numbers))


def uvarint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def test_checksums_are_those_of_the_library(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    (tmp_path / "file").write_bytes(rng.bytes(5_000))
    file = MappedFile(tmp_path / "file", BY_NUMPY)
    starts = rng.integers(0, 4_000, 300)
    ends = starts + rng.integers(0, 1_000, 300)
    assert np.array_equal(compiled_checksums(file.raw, starts, ends), BY_NUMPY.checksums(file.raw, starts, ends))


def test_without_numba_and_for_few_bytes_numpy_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, KERNEL, raising=False)
    assert means_for(1_000) is BY_NUMPY
    monkeypatch.undo()
    assert means_for(1 << 40).decode is by_compiler
    assert means_for(1_000).decode is by_compiler, "once it is loaded it costs nothing"
    monkeypatch.setitem(sys.modules, KERNEL, None)  # as where numba is missing
    monkeypatch.delattr(KERNEL)
    assert means_for(1 << 40) is BY_NUMPY
