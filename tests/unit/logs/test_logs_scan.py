"""The scanner's hard cases: floods, lines of many megabytes, step lines read as a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import step_line
from hypothesis import given
from hypothesis import strategies as st

from trackwalker.job.dialects import by_name
from trackwalker.logs.scanning.chunk import CHUNK, Buffers
from trackwalker.logs.scanning.index import index_logs
from trackwalker.logs.scanning.needles import _FLOOD, Needles
from trackwalker.logs.scanning.scan import Line, read_lines
from trackwalker.logs.scanning.steptable import read_table

MAXTEXT = by_name("maxtext")
assert MAXTEXT is not None


def found(path: Path, needles: Needles) -> tuple[list[Line], int]:
    lines: list[Line] = []
    return lines, read_lines(path, needles, lines.append).skipped


def test_a_flood_neither_hides_other_needles_nor_is_uncounted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    flood = b"rank 3: the Flooding warning\n" * 5000
    path.write_bytes(flood + b"the rare one\n" + flood + b"a fact\n" * 3000 + b"the rare one, Flooding warning")
    lines, skipped = found(path, Needles([b"flooding warning", b"rare one", b"a fact\n"], plenty=frozenset({2})))
    assert [line.number for line in lines if 1 in line.needles] == [5001, 13002]
    assert sum(2 in line.needles for line in lines) == 3000
    seen = sum(0 in line.needles for line in lines)
    assert 0 < seen < _FLOOD
    assert seen + skipped == 10_001


def test_payload_and_errors_deep_inside_a_long_line(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    filler = "x" * 3_000_000  # longer than a piece: where its line begins is known from the pieces before
    path.write_text(
        f'7: {{"text": "{filler} CUDA out of memory {filler}"}}\n'
        f"8: {filler} torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB {filler}\n"
    )
    hits = index_logs(path).hits
    assert {(h.signature.id, h.rank, h.line) for h in hits} == {("oom-gpu", 8, 2)}


numbers = st.tuples(
    st.integers(0, 10**15 - 1), *[st.decimals(0, 99_999_999, allow_nan=False, places=p) for p in (3, 3, 9)]
)


@given(st.lists(numbers, min_size=1, max_size=30), st.booleans())
def test_a_table_of_step_lines_reads_as_each_line_would(
    rows: list[tuple[int, object, object, object]], mfu: bool
) -> None:
    lines = [
        f"0: completed step: {step}, seconds: {seconds:f}, TFLOP/s/device: 1.5{', MFU: 2.5%' * mfu}, "
        f"Tokens/s/device: {tgs:f}, total_weights: 12, loss: {loss:f}".encode()
        for step, seconds, tgs, loss in rows
    ]
    table = read_table(lines * 9, MAXTEXT)
    assert table is not None
    assert table.tolist() == [[float(str(n)) for n in row] for row in rows] * 9
    assert read_table([*lines, step_line(1, loss="nan").encode()], MAXTEXT) is None


@pytest.mark.parametrize("often", [0.0, 0.005, 0.05, 0.5, 1.0])
def test_line_ends_are_all_found(often: float) -> None:
    """Long lines, short ones and empty ones; a shorter piece is not told of the lines of the one before it."""
    rng = np.random.default_rng(1)
    buffers = Buffers()
    for size in (len(buffers.data), CHUNK, 600_001, 33, 32, 31, 1):
        buffers.data[:size] = np.where(rng.random(size) < often, 10, 42)
        assert np.array_equal(buffers.newlines(size), np.flatnonzero(buffers.data[:size] == 10))
