"""Read a block through once, so that a bad spot in it costs its own series and not every query that passes by."""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trackwalker.job.shards import databases
from trackwalker.observe.tsdb import Block, list_parts, read_block
from trackwalker.telemetry.client import Api, QueryError

# Reading everything takes about a second for ten million samples; beyond that only the files' structure is checked,
# and a flipped bit in a large database shows as the error of the query that meets it.
MOST_SAMPLES = 10_000_000
# Prometheus' time goes with series times questions, that of the blocks with samples: on two idle cores 3,300 series
# over 24 h took 4.8 s by Prometheus and 6.7 s from the blocks, 35,000 over 2 h 13.3 s and 5.9 s.
MANY_SERIES = 10_000
_FILE_HEADER = 8
_BATCH = 200
_CHUNK_EXTRA = 5  # encoding byte before and checksum after the data
_NO_DELETIONS = 9  # bytes: a head and its checksum


def suspicious(block: Block, folder: Path, total: int) -> bool:
    """Whether a block has to be read through: it is cheap, or its chunk files are cut."""
    return total <= MOST_SAMPLES or count_chunks(folder / "chunks") != block.chunks


def count_chunks(folder: Path) -> int:
    """How many whole chunks the files hold, -1 where a file does not end at the end of a chunk."""
    count = 0
    for path in sorted(folder.iterdir()):
        size = path.stat().st_size
        if size < _FILE_HEADER:
            return -1
        with path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at = _FILE_HEADER
            while at < size:
                length = shift = 0
                while at < size:
                    byte = data[at]
                    at += 1
                    length |= (byte & 0x7F) << shift
                    shift += 7
                    if byte < 0x80:
                        break
                at += length + _CHUNK_EXTRA
                count += 1
        if at != size:
            return -1
    return count


def readable(api: Api, block: Block, matcher: str = '{__name__!=""}') -> str | None:
    """Make Prometheus read all matching samples of a block; None when it could, else what it said."""
    span = max(1, block.end - block.first)
    query = f"count(last_over_time({matcher}[{span}ms]))"
    try:
        api.call("/api/v1/query", {"query": query, "time": f"{(block.end - 1) / 1000:.3f}"})
    except QueryError as e:
        return str(e)
    return None


def hide_unreadable(api: Api, block: Block) -> tuple[list[str], set[str]]:
    """Delete from the view (never the source) the series that cannot be read in this block.

    Returns them, and the metrics that have series which cannot even be deleted, as the index entry itself is bad.
    """
    span = {"start": f"{block.first / 1000:.3f}", "end": f"{block.end / 1000:.3f}"}
    hidden: list[str] = []
    hopeless: set[str] = set()
    for name in api.call("/api/v1/label/__name__/values", span, "GET"):
        whole = _matcher({"__name__": name})
        if readable(api, block, whole) is None:
            continue
        try:
            series = [_matcher(labels) for labels in api.call("/api/v1/series", {**span, "match[]": whole})]
            bad = [matcher for matcher in series if readable(api, block, matcher) is not None]
            for i in range(0, len(bad), _BATCH):
                api.call("/api/v1/admin/tsdb/delete_series", {**span, "match[]": bad[i : i + _BATCH]})
        except QueryError:
            hopeless.add(name)
            continue
        hidden += bad
        if readable(api, block, whole) is not None:
            hopeless.add(name)
    return hidden, hopeless


def _matcher(labels: Mapping[str, Any]) -> str:
    # JSON's string escapes are those of PromQL.
    return "{" + ", ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in sorted(labels.items())) + "}"


def has_deletions(tombstones: Path) -> bool:
    """Whether a block's file of deletions holds any."""
    return tombstones.exists() and tombstones.stat().st_size > _NO_DELETIONS


def last_error(said: str) -> str:
    """The error in Prometheus' log, without our temporary paths."""
    lines = said.strip().splitlines()
    errors = [line for line in lines if re.search(r"level=error|level=ERROR|^panic", line)]
    line = (errors or lines or ["Prometheus said nothing"])[-1]
    match = re.search(r'err="((?:[^"\\]|\\.)*)"', line)
    return re.sub(r"\S*/data/", "", (match[1] if match else line).replace('\\"', '"'))


def about(name: str, said: str) -> str:
    """The part of an error message that concerns one block."""
    match = re.search(rf"corrupted block {name}: ([^;]*)", said)
    return match[1].strip() if match else said


def is_large(db_dir: Path) -> bool:
    """Whether a database is one that is read from its blocks, as far as these tell; nothing of it is opened."""
    blocks: list[Block] = []
    for part in databases(db_dir):
        with suppress(OSError, ValueError):
            blocks += [read_block(part / name) for name in list_parts(part).blocks]
    return at_once(blocks) > MANY_SERIES and sum(b.samples for b in blocks) > MOST_SAMPLES


def at_once(blocks: list[Block]) -> int:
    """The most series of one moment: blocks of recorders side by side add up, blocks one after the other do not."""
    return max((sum(b.series for b in blocks if b.first <= a.first < b.end) for a in blocks), default=0)
