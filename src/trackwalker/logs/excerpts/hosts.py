"""Disks, processors and memory of a host that hold a run up: `iostat`, `vmstat`, `top`, `free`, a process's own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from trackwalker.logs.excerpts.gpus import Shown
from trackwalker.logs.excerpts.tables import Table

_CPU = re.compile(r"^%?\s?Cpu(?P<which>\d*|\(s\))\s*:?\s.*?(?P<idle>[\d.]+)[ %]*id\b")
_AFFINITY = re.compile(r"affinity list: (?P<cpus>[\d,-]+)\s*$")
_WAITS = re.compile(r"(?P<waits>[\d.]+)[ %]*wa\b")
_STOPPED_FOR_DISKS = 30.0  # percent of all processors' time
_FULL_DISK, _LONG_WAIT = 90.0, 20.0  # percent; milliseconds: a fast disk is busy all the time and answers at once
_IDLE, _BUSY = 80.0, 90.0
_CORES = 4
_SAMPLES = 4
_GROWS = 1.5  # times the first
_OF_ALL = 0.25  # of the memory, between the first sample and the last
_RESIDENT = re.compile(
    r"(?i)\b(?:max[ _]?)?(?:rss|(?:cpu|host|system|process)[ _-]?(?:ram|mem(?:ory)?)(?:[ _]us(?:ed|age))?|ram(?:[ _]us(?:ed|age))?)\W{1,4}"  # noqa: E501
    r"(?P<much>\d+(?:\.\d+)?) ?(?P<unit>[KMGT])?i?B?\b"
)
_UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


def busy_hosts(lines: Sequence[str], found: Sequence[Table]) -> Iterator[Shown]:
    """What tables of the host's own tools show."""
    for table in found:
        for row in table.rows:
            waits = [n for c in table.columns if c.endswith("await") and (n := row.number(c)) is not None]
            used = row.number("%util")
            if used is not None and waits and used >= _FULL_DISK and max(waits) >= _LONG_WAIT:
                yield "storage-slow", row.line, row.text.strip()
            share = row.number("%iowait") if "%iowait" in table.columns else None
            if share is None and {"wa", "id", "us"} <= set(table.columns):
                share = row.number("wa")
            if share is not None and share >= _STOPPED_FOR_DISKS:
                yield "storage-slow", row.line, row.text.strip()
    yield from _processors(lines)
    yield from _pinned(lines)
    yield from _memory(lines)


def _processors(lines: Sequence[str]) -> Iterator[Shown]:
    cores: list[tuple[int, float]] = []
    for at, line in enumerate(lines):
        match = _CPU.match(line)
        if match is None:
            continue
        waits = _WAITS.search(line)
        idle = float(match["idle"])
        if waits and float(waits["waits"]) >= _STOPPED_FOR_DISKS:
            yield "storage-slow", at, line.strip()
        elif match["which"].isdigit():
            cores.append((at, idle))
    busy = [at for at, idle in cores if 100 - idle >= _BUSY]
    if len(cores) >= _CORES and len(busy) == 1 and all(idle >= _IDLE for at, idle in cores if at not in busy):
        yield "cpu-throttled", busy[0], lines[busy[0]].strip()


def _pinned(lines: Sequence[str]) -> Iterator[Shown]:
    """Many processes that may only use the same few processors."""
    lists = [(at, m["cpus"]) for at, line in enumerate(lines) if (m := _AFFINITY.search(line))]
    for cpus, count in Counter(cpus for _, cpus in lists).items():
        if "-" not in cpus and count > 2 * (cpus.count(",") + 1):
            at = next(at for at, each in lists if each == cpus)
            yield "cpu-throttled", at, lines[at].strip()


def _memory(lines: Sequence[str]) -> Iterator[Shown]:
    """Used memory that only rises: rows of `free`, or what steps print of their process."""
    free = [(at, line.split()) for at, line in enumerate(lines) if line.startswith("Mem:")]
    samples = [(at, float(w[2]), float(w[1])) for at, w in free if len(w) > 3 and w[1].isdigit() and w[2].isdigit()]
    if _rises([used for _, used, _ in samples]) and samples[-1][1] - samples[0][1] >= _OF_ALL * samples[0][2]:
        yield "memory-leak", samples[-1][0], lines[samples[-1][0]].strip()
    told = [(at, m) for at, line in enumerate(lines) if (m := _RESIDENT.search(line, 0, 400))]
    sizes = [float(m["much"]) * _UNITS.get((m["unit"] or "M").upper(), 1.0) for _, m in told]
    if _rises(sizes) and sizes[-1] >= _GROWS * sizes[0]:
        yield "memory-leak", told[-1][0], lines[told[-1][0]].strip()


def _rises(values: Sequence[float]) -> bool:
    """Whether every value is above the one before and the last step is no smaller than a quarter of the usual one."""
    if len(values) < _SAMPLES or any(b <= a for a, b in pairwise(values)):
        return False
    return values[-1] - values[-2] >= 0.25 * (values[-1] - values[0]) / (len(values) - 1)
