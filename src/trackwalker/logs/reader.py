"""One pass over a log of any size: find the lines that matter, decode only those."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO

from trackwalker.errors import EvidenceError
from trackwalker.logs import dialect as d
from trackwalker.logs.facts import (
    FirstFailure,
    Heartbeat,
    LogFacts,
    NodeExit,
    Quote,
    Stage,
    StepLine,
    Summary,
)
from trackwalker.logs.nodelist import hosts_in

_STEP = b"completed step:"
_NEEDLE = re.compile(b"|".join(re.escape(n) for n in d.NEEDLES if n != _STEP))
# The form nearly every step line has, read without decoding; any other goes the long way.
_PLAIN_STEP = re.compile(
    rb" *0*(\d{1,7}): (?:\(\w+ pid=\d+(?:, ip=[\d.]+)?\) )?completed step: (\d{1,15}), seconds: (\d+\.\d+), "
    rb"TFLOP/s/device: [\d.]+(?:, MFU: [\d.]+%)?(?:, Tokens/s/device: (\d+\.\d+))?, total_weights: \d+, "
    rb"loss: (\d+\.\d+)\r?$"
)
_MOST_COMPILES = 10_000
_NODELISTS = (b"JOB_NODELIST=", b"NODELIST_EXPANDED=")
_LONGEST_NODELIST = 1 << 20  # a thousand names fill many kilobytes, and a host that is cut off is never accused
_PIECE = 1 << 25  # bytes read at once, up to the last whole line of them
_LONGEST = 4096  # what we match stands at the front of a line; the rest of a megabyte line is payload


def read_log(path: Path) -> LogFacts:
    """The facts of a log; an empty or unreadable file is one clear error."""
    facts = LogFacts(path)
    try:
        facts.size = path.stat().st_size
        if facts.size == 0:
            raise EvidenceError(f"the log {path} is empty: the job wrote nothing before it ended, or has not started")
        with path.open("rb") as file:
            reader = FactReader(facts)
            for number, raw in _numbered(file, facts):
                reader.take(number, raw)
    except OSError as e:
        raise EvidenceError(f"cannot read the log {path}: {e.strerror}") from e
    facts.hosts = facts.hosts or hosts_in(facts.header)
    return facts


def _numbered(file: BinaryIO, facts: LogFacts) -> Iterator[tuple[int, bytes]]:
    number = 1
    for piece in _pieces(file, facts.size):
        facts.ends_mid_line = not piece.endswith(b"\n")
        number = yield from _lines(piece, number)
    facts.lines = number - (0 if facts.ends_mid_line else 1)


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The file in pieces of whole lines. It is not mapped: a mapped file that is cut meanwhile kills the process."""
    rest = b""
    while size > 0 and (block := file.read(min(_PIECE, size))):
        size -= len(block)
        block = rest + block
        cut = block.rfind(b"\n") + 1
        if cut:
            yield block[:cut]
        rest = block[cut:] if cut else block[:_LONGEST_NODELIST]  # of an endless line its front is enough
    if rest:
        yield rest


def _lines(data: bytes, number: int) -> Generator[tuple[int, bytes], None, int]:
    """(number, bytes) of every line that holds a needle; returns the number of the line behind the last.

    Most of a long log is step lines: they are found by their own words, and only what lies between them is searched
    for all the others.
    """
    at, size = 0, len(data)  # line `number` begins at `at`
    while at < size:
        step = data.find(_STEP, at)
        begin = size if step < 0 else max(at, data.rfind(b"\n", at, step) + 1)
        if begin > at:
            number = yield from _between(data, at, begin, number)
        at = begin
        if step >= 0:
            end = data.find(b"\n", step)
            raw = data[begin : min(size if end < 0 else end, begin + _LONGEST)]
            # Cut in the middle: the last number may lack digits.
            yield number, raw.rpartition(b",")[0] if end < 0 else raw
            at, number = (size, number) if end < 0 else (end + 1, number + 1)
    return number


def _between(data: bytes, begin: int, end: int, number: int) -> Generator[tuple[int, bytes], None, int]:
    """The lines with a needle in a part without step lines; returns the number of the line behind it."""
    counted, done = begin, begin
    for match in _NEEDLE.finditer(data, begin, end):
        if match.start() < done:
            continue  # a second needle on a line already taken
        first = max(begin, data.rfind(b"\n", begin, match.start()) + 1)
        last = data.find(b"\n", match.end(), end)
        last = end if last < 0 else last
        number += data.count(b"\n", counted, first)
        counted, done = first, last
        longest = _LONGEST_NODELIST if match[0] in _NODELISTS else _LONGEST
        yield number, data[first : min(last, first + longest)]
    return number + data.count(b"\n", counted, end)


class FactReader:
    """Sorts one line after the other into the facts."""

    def __init__(self, facts: LogFacts) -> None:
        self._facts = facts
        self._in_summary: int | None = None

    def take(self, number: int, raw: bytes) -> None:
        if plain := _PLAIN_STEP.match(raw):
            rank, step, seconds, tgs, loss = plain.groups()
            line = StepLine(int(rank), int(step), float(seconds), float(tgs) if tgs else None, float(loss), number)
            self._facts.steps.setdefault(line.rank, []).append(line)
            return
        text = d.ANSI.sub("", raw.decode("utf-8", "replace")).rstrip("\r")
        label = d.TASK_LABEL.match(text)
        rank = int(label[1]) if label else None
        body = text[label.end() :] if label else text
        body = d.RAY_LABEL.sub("", body)
        facts, quote = self._facts, Quote(rank, number, text)
        # A container's ranks print the launcher's variables again; only the host list, spelled out, is news.
        if (rank is None or body.startswith("NODELIST_EXPANDED=")) and self._launcher_line(number, body):
            return
        if "completed step:" in body:
            self._step(rank or 0, number, body)
        elif match := d.CONFIG.search(body):
            facts.config.setdefault(match[1], (match[2].strip(), quote))
        elif match := d.NODE_EXIT.search(body):
            facts.exits.append(NodeExit(rank, match[1], int(match[2]), number))
        elif d.KILLED_BY.search(body):
            facts.signals.append(quote)
        elif match := d.SAVED.search(body):
            facts.saves.add(int(match[1]))
        elif d.SAVED_NOW in body:
            if len(facts.save_lines) < _MOST_COMPILES:
                facts.save_lines.append(number)
        elif match := d.RESTORED.search(body):
            facts.restored = int(match[1])
        elif match := d.SLURM_CANCEL.search(body):
            facts.cancel, facts.cancel_time = quote, match[3]
        elif d.TASK_FAILED.match(body):
            if facts.cancel is None:  # who is told to end may end badly
                facts.task_failed = facts.task_failed or quote
        elif d.FINISHED.search(body):
            facts.finished = quote
        elif "Synchronizing hosts before training loop" in body:
            facts.barrier_ranks.add(rank or 0)
        elif "Memstats: After params" in body:
            facts.params_ranks.add(rank or 0)
        elif d.COMPILING.search(body):
            if len(facts.compiles) < _MOST_COMPILES:
                facts.compiles.append(number)
        elif match := d.DEVICE.search(body):
            facts.devices.setdefault(rank or 0, set()).add(int(match[1]))
        elif match := d.MEM_FRACTION.match(body.strip()):
            facts.mem_fraction = float(match[1])
        elif match := d.COREDUMP.search(body):
            facts.coredump_s = max(facts.coredump_s, int(match[1]))
        elif d.TRACEBACK in body:
            facts.tracebacks.append(quote)
        else:
            self._heartbeat(rank, body, quote)

    def _launcher_line(self, number: int, body: str) -> bool:
        facts = self._facts
        if match := d.HEADER.match(body):
            # Local runs print several on one line, two spaces apart, before the header proper.
            facts.header.setdefault(match[1], match[2].split("  JOB_")[0].strip().strip('"'))
        elif d.SUMMARY.match(body):
            facts.summary, self._in_summary = Summary(None, "", None, number), number
        elif self._in_summary and number - self._in_summary < 10 and (match := d.STATUS.search(body)):
            wall = facts.summary.wall_s if facts.summary else None
            facts.summary = Summary(int(match[2]), (match[3] or "").strip(), wall, number)
        elif self._in_summary and number - self._in_summary < 10 and (match := d.WALL.search(body)):
            wall = int(match[1] or 0) * 3600 + int(match[2] or 0) * 60 + int(match[3])
            facts.summary = Summary(None, "", wall, number)
        elif match := d.FIRST_FAILURE.match(body):
            facts.first_failure = FirstFailure(int(match[1]), match[2], int(match[3]), match[4], number)
        elif match := d.STAGE.match(body):
            seconds = int(match["seconds"]) if match["seconds"] and match["what"] != "BEGIN" else None
            code = int(match["exit"]) if match["exit"] else None
            facts.stages.append(Stage(match["name"], match["what"], seconds, code, number))
        else:
            return False
        return True

    def _step(self, rank: int, number: int, body: str) -> None:
        match = d.STEP.search(body)
        if not match:
            return
        steps = self._facts.steps.setdefault(rank, [])
        line = StepLine(
            rank,
            int(match["step"]),
            float(match["seconds"]),
            float(match["tgs"]) if match["tgs"] else None,
            float(match["loss"]) if match["loss"] else None,
            number,
        )
        steps.append(line)

    def _heartbeat(self, rank: int | None, body: str, quote: Quote) -> None:
        facts = self._facts
        own_death = any(text in body for text in d.OWN_DEATH)
        if d.HEARTBEAT in body or (facts.heartbeat and (own_death or "/task:" in body)):
            beat = facts.heartbeat = facts.heartbeat or Heartbeat()
            if d.HEARTBEAT in body and beat.claim is None:
                beat.claim = quote
                if glog := d.GLOG.match(body):
                    beat.clock = (int(glog[1]), int(glog[2]), int(glog[3]), int(glog[4]), float(glog[5]))
            if own_death and rank is not None:
                beat.own_death.setdefault(rank, quote)
            for match in d.ACCUSED.finditer(body):
                if int(match[1]) not in beat.accused:
                    beat.named.append(quote)
                beat.accused.add(int(match[1]))
