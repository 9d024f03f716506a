"""The index of one Prometheus block: which series it has, with which labels, and where their chunks lie.

All entries are read side by side, once; then a metric's series are a stretch of two tables.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trackwalker.telemetry.direct.decoding import BY_NUMPY, Means
from trackwalker.telemetry.direct.unxor import Bytes, DamagedError, Place, uvarints
from trackwalker.telemetry.xor import Ints

_MAGIC = bytes.fromhex("BAAAD70002")
_CHUNK_MAGIC = bytes.fromhex("85BD40DD01")
_TOC_BYTES = 6 * 8 + 4
_CRC_BYTES = 4
_LONGEST_ENTRY = 1 << 20
_XOR = 1


class MappedFile:
    """A file of a block, in memory only as far as it is looked at; checksums are of what is used."""

    def __init__(self, path: Path, means: Means) -> None:
        self._checksums = means.checksums
        with path.open("rb") as f:
            try:
                self.raw = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as e:  # an empty file cannot be mapped
                raise DamagedError(f"{path.name}: {e}") from e
        self.data: Bytes = np.frombuffer(self.raw, np.uint8)
        self.name = path.name

    def check(self, starts: Ints, ends: Ints) -> None:
        """Refuse stretches that are not what the checksum behind them says."""
        outside = len(starts) and (int(starts.min()) < 0 or int(ends.max()) + _CRC_BYTES > len(self.data))
        if outside or (ends < starts).any():
            raise DamagedError(f"{self.name}: cut off")
        noted = self.data[ends[:, None] + np.arange(_CRC_BYTES)].view(">u4")[:, 0]
        if not np.array_equal(noted, self._checksums(self.raw, starts, ends)):
            raise DamagedError(f"{self.name}: a checksum does not fit")

    def section(self, at: int) -> tuple[int, int]:
        """Where the content of a section begins and ends, which says its length before and its checksum behind."""
        if not 0 < at <= len(self.data) - 8:
            raise DamagedError(f"{self.name}: a section outside of the file")
        end = at + 4 + int.from_bytes(self.raw[at : at + 4], "big")
        self.check(np.array([at + 4]), np.array([end]))
        return at + 4, end


@dataclass(frozen=True)
class Entries:
    """The series of one metric in one block: labels by number, and their chunks in the order of series and time."""

    names: tuple[str, ...]  # of the labels, columns of `labels`; the metric's own name is not among them
    labels: Ints  # (series, names): the label's value as a number of this block's symbols, -1 where it has none
    chunks: Ints  # (chunks, 4): series, first time, last time, reference


class BlockIndex:
    """One block's index, and the files that hold its chunks."""

    def __init__(self, folder: Path, means: Means = BY_NUMPY) -> None:
        self._means = means
        self._file = MappedFile(folder / "index", means)
        raw = self._file.raw
        if raw[:5] != _MAGIC or len(raw) < len(_MAGIC) + _TOC_BYTES:
            raise DamagedError("index: no index of version 2")
        toc = np.array([len(raw) - _TOC_BYTES])
        self._file.check(toc, toc + _TOC_BYTES - _CRC_BYTES)
        places = [int.from_bytes(raw[at : at + 8], "big") for at in range(int(toc[0]), len(raw) - 4, 8)]
        self.metrics: dict[str, tuple[int, int]] = {}  # and which rows their series are
        self.symbols = self._read_symbols(places[0])
        self._read_series(self._all_series(places[5]))
        self.bytes_read = 0  # of chunks
        self._segments: dict[int, MappedFile] = {}
        self._chunk_files = sorted((folder / "chunks").iterdir())

    def _read_symbols(self, at: int) -> list[str]:
        begin, end = self._file.section(at)
        raw = self._file.raw[begin:end]
        out, at = [], 4
        try:
            for _ in range(int.from_bytes(raw[:4], "big")):
                size, at = _uvarint(raw, at)
                out.append(raw[at : at + size].decode())
                at += size
        except (IndexError, UnicodeDecodeError):
            raise DamagedError("index: symbols that are none") from None
        return out

    def _all_series(self, at: int) -> Ints:
        """Where every series' entry lies: the list of the pair without a name, which is the first of all lists."""
        begin, end = self._file.section(at)
        raw = self._file.raw[begin : min(end, begin + 32)]
        if raw[4:7] != b"\x02\x00\x00":
            raise DamagedError("index: a table that is none")
        begin, end = self._file.section(_uvarint(raw, 7)[0])
        return np.frombuffer(self._file.raw[begin + 4 : end], ">u4").astype(np.int64) * 16

    def _read_series(self, places: Ints) -> None:
        try:
            names, labels, chunks = self._entries(places)
        except IndexError:
            raise DamagedError("index: series outside of the file") from None
        if "__name__" not in names and len(places):
            raise DamagedError("index: series without a name")
        metric = labels[:, names.index("__name__")] if len(places) else np.zeros(0, np.int64)
        if (np.diff(metric) < 0).any():  # else they lie as they are wanted: an index is sorted by labels
            order = np.argsort(metric, kind="stable")
            place = np.empty(len(order), np.int64)
            place[order] = np.arange(len(order))
            chunks[:, 0] = place[chunks[:, 0]]
            chunks, labels, metric = chunks[np.argsort(chunks[:, 0], kind="stable")], labels[order], metric[order]
        self._chunk_table, self._names, self._labels = chunks, names, labels
        codes, first = np.unique(metric, return_index=True)
        stretches = zip(first.tolist(), [*first.tolist()[1:], len(metric)], strict=True)
        self.metrics = {self.symbols[code]: rows for code, rows in zip(codes.tolist(), stretches, strict=True)}

    def ends(self) -> dict[str, int]:
        """By metric, the end of its latest chunk."""
        names = list(self.metrics)
        first = np.searchsorted(self._chunk_table[:, 0], [self.metrics[name][0] for name in names])
        if not len(self._chunk_table) or (np.diff(first, append=len(self._chunk_table)) <= 0).any():
            return {name: int(entries.chunks[:, 2].max(initial=0)) for name in names if (entries := self.entries(name))}
        return dict(zip(names, np.maximum.reduceat(self._chunk_table[:, 2], first).tolist(), strict=True))

    def entries(self, metric: str) -> Entries | None:
        """The series of a metric; None where the block has none."""
        if metric not in self.metrics:
            return None
        begin, end = self.metrics[metric]
        labels = self._labels[begin:end]
        used = [i for i, name in enumerate(self._names) if name != "__name__" and (labels[:, i] >= 0).any()]
        lo, hi = np.searchsorted(self._chunk_table[:, 0], [begin, end])
        chunks = self._chunk_table[lo:hi].copy()
        chunks[:, 0] -= begin
        return Entries(tuple(self._names[i] for i in used), labels[:, used], chunks)

    def _entries(self, places: Ints) -> tuple[list[str], Ints, Ints]:
        """Of series whose entries lie at these places: names of labels, labels, chunks."""
        sizes, starts = uvarints(self._file.data, places)
        if sizes.max(initial=0) > _LONGEST_ENTRY:
            raise DamagedError("index: an endless series")
        lengths = sizes.astype(np.int64)
        self._file.check(starts, starts + lengths)
        # Where they lie: to copy them byte by byte takes as long as all else.
        names, labels, chunks = self._means.series(self._file.data, starts, starts + lengths, len(self.symbols))
        return [self.symbols[i] for i in names.tolist()], labels, chunks

    def chunk_file(self, number: int) -> MappedFile:
        """One of the files that hold the chunks."""
        if number not in self._segments:
            if not 0 <= number < len(self._chunk_files):
                raise DamagedError(f"chunks: file {number + 1} is missing")
            file = MappedFile(self._chunk_files[number], self._means)
            if file.raw[:5] != _CHUNK_MAGIC:
                raise DamagedError(f"{file.name}: no chunks of version 1")
            self._segments[number] = file
        return self._segments[number]

    def places(self, refs: Ints) -> list[tuple[Place, Ints]]:
        """Chunks by file, and which they are; their checksums are right."""
        out = []
        for number in np.unique(refs >> 32).tolist():
            file = self.chunk_file(number)
            which = np.flatnonzero(refs >> 32 == number)
            try:
                sizes, at = uvarints(file.data, refs[which] & 0xFFFFFFFF)
                if (file.data[at] != _XOR).any():
                    raise DamagedError(f"{file.name}: a chunk of another encoding")
            except IndexError:
                raise DamagedError(f"{file.name}: cut off") from None
            if sizes.max(initial=0) > _LONGEST_ENTRY:
                raise DamagedError(f"{file.name}: an endless chunk")
            lengths = sizes.view(np.int64)
            file.check(at, at + 1 + lengths)
            self.bytes_read += int(lengths.sum())
            out.append((Place(file.data, at + 1, lengths), which))
        return out


def _uvarint(raw: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
