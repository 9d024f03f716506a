"""Event files: whole records only, damage passed over and counted, any offset a place to resume, nothing raised."""

from __future__ import annotations

import math
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tb_writer import EventWriter, block, event, record, simple, tensor, varint

from trackwalker.job.tfevents import EventFile, Scalar, decode_event, masked_crc

FLOAT, DOUBLE, INT32, STRING, INT64, BFLOAT16, HALF = 1, 2, 3, 7, 9, 14, 19


def typed(kind: int, *fields: bytes, shape: tuple[int, ...] = ()) -> bytes:
    dims = b"".join(block(2, varint(1 << 3) + varint(size)) for size in shape)
    return varint(1 << 3) + varint(kind) + block(2, dims) + b"".join(fields)


def value_of(item: bytes) -> float | None:
    scalars = decode_event(event(1, 2.0, item))
    assert scalars is not None
    return scalars[0].value if scalars else None


def test_the_checksum_is_the_one_of_event_files() -> None:
    # RFC 3720 gives the CRC-32C of 32 zero bytes; masking is a rotation by 15 and an addition.
    crc = 0x8A9136AA
    assert masked_crc(bytes(32)) == (((crc >> 15 | crc << 17) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (typed(FLOAT, block(4, struct.pack("<f", 1.5))), 1.5),
        (typed(FLOAT, block(5, struct.pack("<f", 1.5)), shape=(1,)), 1.5),
        (typed(FLOAT, varint(5 << 3 | 5) + struct.pack("<f", 1.5)), 1.5),
        (typed(DOUBLE, block(6, struct.pack("<d", 0.1))), 0.1),
        (typed(INT32, block(7, varint(-3))), -3.0),
        (typed(INT64, varint(10 << 3) + varint(1 << 40)), float(1 << 40)),
        (typed(BFLOAT16, block(4, b"\xc0\x3f")), 1.5),
        (typed(BFLOAT16, block(13, varint(0x3FC0))), 1.5),
        (typed(HALF, block(13, varint(0x3E00))), 1.5),
        (typed(FLOAT, block(4, struct.pack("<2f", 1, 2)), shape=(2,)), None),
        (typed(DOUBLE, shape=(0, 3)), None),
        (typed(STRING, block(8, b"text")), None),
    ],
)
def test_scalar_tensors(content: bytes, value: float | None) -> None:
    assert value_of(tensor("t", content)) == value
    assert value_of(tensor("t", content, plugin="text")) is None


def test_what_is_no_scalar_is_left_out() -> None:
    histogram = block(1, b"h") + block(5, b"")
    scalars = decode_event(event(-1, 2.5, simple("a", math.nan), histogram, simple("b", math.inf)))
    assert scalars is not None
    assert [(s.step, s.wall_time, s.tag) for s in scalars] == [(-1, 2.5, "a"), (-1, 2.5, "b")]
    assert math.isnan(scalars[0].value)
    assert scalars[1].value == math.inf
    assert decode_event(event(0, 1.0)) == []
    assert decode_event(event(0, math.nan, simple("a", 1))) is None


def steps(scalars: list[Scalar]) -> list[int]:
    return [s.step for s in scalars]


def test_a_torn_tail_waits_at_every_byte(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    writer.step(1, 1.0, loss=1.0)
    whole = writer.path.read_bytes()
    second = record(event(2, 2.0, simple("loss", 2.0)))
    for cut in range(len(second)):
        writer.path.write_bytes(whole + second[:cut])
        file = EventFile(writer.path, patience=1)
        assert steps(file.read()) == [1]
        assert (file.read(), file.corrupt, file.offset) == ([], 0, len(whole))
        writer.path.write_bytes(whole + second)
        assert steps(file.read()) == [2]


@pytest.mark.parametrize("at", [0, 9, 14, -1])  # in the length, its checksum, the message, its checksum
def test_damage_costs_one_record(tmp_path: Path, at: int) -> None:
    middle = bytearray(record(event(2, 2.0, simple("loss", 2.0))))
    middle[at] ^= 0x10
    writer = EventWriter(tmp_path)
    writer.step(1, 1.0, loss=1.0)
    writer.raw(bytes(middle))
    writer.step(3, 3.0, loss=3.0)
    file = EventFile(writer.path, patience=3)
    assert [steps(file.read()) for _ in range(4)] == [[1], [], [3], []], "it is looked at again before it is given up"
    assert file.corrupt == 1
    assert file.offset == writer.path.stat().st_size


def test_a_hole_that_is_filled_later_loses_nothing(tmp_path: Path) -> None:
    # A network file system may show the new length before the new content.
    first, second = record(event(1, 1.0, simple("loss", 1.0))), record(event(2, 2.0, simple("loss", 2.0)))
    path = tmp_path / "events"
    path.write_bytes(bytes(len(first)) + second)
    file = EventFile(path)
    assert file.read() == []
    path.write_bytes(first + second)
    assert steps(file.read()) == [1, 2]
    assert file.corrupt == 0


def test_large_records_are_stepped_over(tmp_path: Path) -> None:
    image = block(1, b"i") + block(4, bytes(1_500_000))
    writer = EventWriter(tmp_path)
    writer.step(1, 1.0, loss=1.0)
    writer.raw(record(event(1, 1.0, image)) * 2)
    writer.step(2, 2.0, loss=2.0)
    file = EventFile(writer.path, patience=1)
    assert [step for _ in range(5) for step in steps(file.read())] == [1, 2]
    assert file.corrupt == 0


PIECES = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda b: record(b), st.binary(max_size=60)),
    st.builds(lambda n: record(event(n, 1.0, simple("loss", 1.0))), st.integers(0, 99)),
    st.builds(lambda b: record(event(1, 1.0, tensor("t", b))), st.binary(max_size=30)),
    st.just(bytes(50)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=8), st.integers(1, 200))
def test_no_bytes_stop_the_reader(pieces: list[bytes], most: int) -> None:
    """Whatever the file holds, reading ends, never raises, and comes to the end or to an unfinished record."""
    data = b"".join(pieces)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events"
        path.write_bytes(data)
        file = EventFile(path, patience=1)
        for _ in range(2 * len(data) + 5):
            before = file.offset
            file.read(most)
            assert before <= file.offset <= len(data)
            if file.offset == before:
                break
        else:
            pytest.fail("it goes round and round")


def test_what_tensorboardx_writes(tmp_path: Path) -> None:
    board = pytest.importorskip("tensorboardX")
    with board.SummaryWriter(str(tmp_path), flush_secs=1) as writer:
        for step in range(5):
            writer.add_scalar("learning/loss", math.nan if step == 3 else step / 3, step)
        writer.add_text("config", "text", 0)
        writer.add_histogram("weights", [1.0, 2.0, 3.0], 0)
    [path] = tmp_path.iterdir()
    file = EventFile(path)
    found = [s for s in file.read() if s.tag == "learning/loss"]
    assert steps(found) == [0, 1, 2, 3, 4]
    assert math.isnan(found[3].value)
    assert found[2].value == pytest.approx(2 / 3, rel=1e-6)
    assert (file.corrupt, file.offset) == (0, path.stat().st_size)
