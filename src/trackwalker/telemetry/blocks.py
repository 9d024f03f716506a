"""Prometheus database blocks written directly: what `promtool` needs minutes for takes seconds.

Only what a reader needs is written: chunks, index (symbols, series, postings), meta.json. Times are milliseconds.
"""

from __future__ import annotations

import itertools
import json
from array import array
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from trackwalker.telemetry.xor import SAMPLES_PER_CHUNK, STREAMS_AT_ONCE, Floats, Ints, encode_chunks, uvarint, varint

BLOCK_MS = 2 * 3600 * 1000  # Prometheus cuts its head into blocks of two hours, aligned to the epoch
STALE = np.array([0x7FF0000000000002], np.uint64).view(np.float64)[0]  # written when a series ends on purpose

_CHUNK_MAGIC = bytes.fromhex("85BD40DD01000000")
_INDEX_MAGIC = bytes.fromhex("BAAAD70002")
_XOR = b"\x01"
_SEGMENT_BYTES = 512 << 20
_ULID = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

Labels = tuple[tuple[str, str], ...]  # sorted by name, `__name__` among them


def labels(name: str, /, **pairs: str) -> Labels:
    """A series' labels in the order Prometheus keeps them."""
    return tuple(_pair(*each) for each in sorted({"__name__": name, **pairs}.items()))


@lru_cache(maxsize=1 << 16)
def _pair(name: str, value: str) -> tuple[str, str]:
    """One object for each pair: a large cluster repeats few of them in a million series."""
    return (name, value)


@dataclass
class _Block:
    """One block in the making: its chunk file and, per series, where its chunks lie."""

    start: int
    folder: Path
    segment: int = 0
    size: int = 0
    samples: int = 0
    chunks: int = 0
    first: int | None = None
    last: int = 0
    refs: dict[Labels, array[int]] = field(default_factory=dict)  # mint, maxt, ref of each chunk, one after the other
    _pending: list[bytes] = field(default_factory=list)

    def put(self, series: Labels, mint: int, maxt: int, count: int, data: bytes) -> None:
        body = _XOR + data
        record = uvarint(len(data)) + body + _crc(body)
        if self.segment == 0 or self.size + len(record) > _SEGMENT_BYTES:
            self.flush()  # what waits belongs to the segment before
            self.segment += 1
            self.size = len(_CHUNK_MAGIC)
            self._path().parent.mkdir(parents=True, exist_ok=True)
            self._path().write_bytes(_CHUNK_MAGIC)
        self._pending.append(record)
        self.refs.setdefault(series, array("q")).extend((mint, maxt, (self.segment - 1) << 32 | self.size))
        self.size += len(record)
        self.samples += count
        self.chunks += 1
        self.first = mint if self.first is None else min(self.first, mint)
        self.last = max(self.last, maxt)

    def flush(self) -> None:
        if self.segment:
            with self._path().open("ab") as f:
                f.write(b"".join(self._pending))
            self._pending = []

    def _path(self) -> Path:
        return self.folder / "chunks" / f"{self.segment:06d}"


class BlockWriter:
    """A database under construction; `add` as often as needed, each series' samples in order, then `close`."""

    def __init__(self, folder: Path, seed: int = 0, block_ms: int = BLOCK_MS, chunk: int = SAMPLES_PER_CHUNK) -> None:
        self._folder, self._block_ms, self._chunk = folder, block_ms, chunk
        self._rng = np.random.default_rng(seed)
        self._blocks: dict[int, _Block] = {}
        self._waiting: dict[int, list[tuple[list[Labels], Ints, Floats]]] = {}  # by samples per chunk
        self._rows = 0

    def add(self, series: list[Labels], times: Ints, values: Floats) -> None:
        """Samples of series that were scraped together: `times` (n) in ms, `values` (series, n)."""
        if len(times) == 0:
            return
        for begin, end in _cuts(times, self._block_ms, self._chunk):
            part = (series, times[begin:end], values[:, begin:end])
            self._waiting.setdefault(end - begin, []).append(part)
            self._rows += len(series)
        if self._rows >= STREAMS_AT_ONCE:  # many series at once are encoded at little more cost than one
            self._flush()

    def _flush(self) -> None:
        for parts in self._waiting.values():
            rows = np.concatenate([np.broadcast_to(times, values.shape) for _, times, values in parts])
            chunks = iter(encode_chunks(rows, np.concatenate([values for _, _, values in parts])))
            for series, times, _ in parts:
                block = self._block(int(times[0]))
                for name in series:
                    block.put(name, int(times[0]), int(times[-1]), len(times), next(chunks))
        self._waiting, self._rows = {}, 0
        for block in self._blocks.values():
            block.flush()

    def close(self) -> int:
        """Write the indexes; returns the number of samples."""
        self._flush()
        for block in self._blocks.values():
            (block.folder / "index").write_bytes(_index(block.refs))
            meta = {
                "ulid": block.folder.name,
                "minTime": block.first,
                "maxTime": block.last + 1,
                "stats": {"numSamples": block.samples, "numSeries": len(block.refs), "numChunks": block.chunks},
                "compaction": {"level": 1, "sources": [block.folder.name]},
                "version": 1,
            }
            (block.folder / "meta.json").write_text(json.dumps(meta, indent=1))
        return sum(b.samples for b in self._blocks.values())

    def _block(self, time: int) -> _Block:
        start = time // self._block_ms * self._block_ms
        if start not in self._blocks:
            folder = self._folder / self._ulid(start)
            folder.mkdir(parents=True)
            self._blocks[start] = _Block(start, folder)
        return self._blocks[start]

    def _ulid(self, time: int) -> str:
        """A block's name: its time, then chance."""
        number = time << 80 | int.from_bytes(self._rng.bytes(10), "big")
        return "".join(_ULID[number >> shift & 31] for shift in range(125, -1, -5))


def _cuts(times: Ints, block_ms: int, chunk: int) -> list[tuple[int, int]]:
    """Where chunks begin and end: at most so many samples, never across two blocks."""
    edges = [0, *(np.flatnonzero(np.diff(times // block_ms)) + 1).tolist(), len(times)]
    cuts = []
    for begin, end in itertools.pairwise(edges):
        for at in range(begin, end, chunk):
            cuts.append((at, min(at + chunk, end)))
    return cuts


def _index(refs: dict[Labels, array[int]]) -> bytes:
    ordered = sorted(refs)
    symbols = sorted({text.encode() for series in ordered for pair in series for text in pair} | {b""})
    number = {text: uvarint(i) for i, text in enumerate(symbols)}
    out = bytearray(_INDEX_MAGIC)
    toc = [len(out)]
    out += _table(len(symbols), b"".join(uvarint(len(s)) + s for s in symbols))
    pairs = {pair for series in ordered for pair in series}
    written = {pair: number[pair[0].encode()] + number[pair[1].encode()] for pair in pairs}
    everyone: list[int] = []
    postings: dict[tuple[str, str], list[int]] = {("", ""): everyone, **{pair: [] for pair in pairs}}
    toc.append(len(out))
    for series in ordered:
        out += bytes(-len(out) % 16)
        ref = len(out) // 16
        everyone.append(ref)
        for pair in series:
            postings[pair].append(ref)
        body = uvarint(len(series)) + b"".join([written[pair] for pair in series]) + _chunk_list(refs[series])
        out += uvarint(len(body)) + body + _crc(body)
    toc += [len(out), len(out)]  # label indices: unused by readers since format 2; an empty table stands there
    out += _table(0, b"")
    places, toc_postings = [], len(out)
    for pair in sorted(postings):
        out += bytes(-len(out) % 4)
        places.append((pair, len(out)))
        entries: NDArray[np.uint32] = np.array(postings[pair], dtype=">u4")
        out += _table(len(entries), entries.tobytes())
    toc += [toc_postings, len(out)]
    rows = [b"\x02" + _text(name) + _text(value) + uvarint(at) for (name, value), at in places]
    out += _table(len(rows), b"".join(rows))
    tail = b"".join(at.to_bytes(8, "big") for at in toc)
    return bytes(out + tail + _crc(tail))


def _chunk_list(chunks: array[int]) -> bytes:
    if len(chunks) == 3:
        mint, maxt, ref = chunks
        return b"\x01" + varint(mint) + uvarint(maxt - mint) + uvarint(ref)
    (mint, maxt, ref), *rest = sorted(zip(chunks[0::3], chunks[1::3], chunks[2::3], strict=True))
    out = uvarint(len(rest) + 1) + varint(mint) + uvarint(maxt - mint) + uvarint(ref)
    for next_mint, next_maxt, next_ref in rest:
        out += uvarint(next_mint - maxt) + uvarint(next_maxt - next_mint) + varint(next_ref - ref)
        maxt, ref = next_maxt, next_ref
    return out


def _table(count: int, rows: bytes) -> bytes:
    body = count.to_bytes(4, "big") + rows
    return len(body).to_bytes(4, "big") + body + _crc(body)


def _text(text: str) -> bytes:
    raw = text.encode()
    return uvarint(len(raw)) + raw


def _crc(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(4, "big")
