"""Reduces every rank's trace where it lies, and brings only the small tables together: in processes, or on Ray."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import trackwalker
from trackwalker.errors import EvidenceError, MissingToolError, TrackwalkerError, UnreachableError
from trackwalker.job.advance import advance
from trackwalker.perf.analysis.classes import Engine, classify
from trackwalker.perf.analysis.step_buckets import timeline
from trackwalker.perf.analysis.steps import distinct, find_steps, main_program
from trackwalker.perf.formats.model import NONE, Buckets, Device, Gap, HostThread, Int64, Kernels, Step, Trace
from trackwalker.perf.formats.reader import open_trace
from trackwalker.perf.formats.xplane import completeness
from trackwalker.perf.hlo.collectives import Collective, by_name, program_collectives
from trackwalker.perf.hlo.proto import read_proto
from trackwalker.perf.ranks.calls import Calls, find_calls, last_steps

_CONNECT_S = 5.0
_KERNELS = 200  # names kept of each rank
MOST_CALLS = 20_000  # executions of collectives kept of each rank
_SMALL = 32 << 20  # bytes of all files together: not worth a process


# What travels from a rank's trace to the place where ranks are compared: kilobytes of a gigabyte.
@dataclass
class KernelSum:
    """All executions of one kernel name on one device."""

    name: str
    kind: str  # its class
    count: int
    ps: int


@dataclass
class RankTable:
    """One device of one trace file, reduced: steps, buckets, collectives, the kernels that cost most."""

    path: str  # of the trace file
    device: int
    kind: str  # "gpu", "cpu"
    origin_ns: int | None  # of the file's clock
    steps: list[Step]
    buckets: list[Buckets]  # of each step
    ops: list[str]  # names of the collectives
    calls: Calls
    kernels: list[KernelSum]
    planned: dict[str, Collective] = field(default_factory=dict)  # by name, where the trace carries the program
    participants: tuple[int, ...] = ()  # global devices of the program, in its own order
    gaps: list[Gap] = field(default_factory=list)

    @property
    def label(self) -> str:
        """How a person finds it: the name of the file is the host's, with the process where there are several."""
        stem = Path(self.path).name.removesuffix(".gz")
        for ending in (".pb", ".json", ".xplane", ".trace", ".pt"):
            stem = stem.removesuffix(ending)
        return f"{stem} {self.kind} {self.device}"


def gather(
    paths: Sequence[Path], workers: int | None = None, ray: str | None = None
) -> tuple[list[RankTable], list[Gap]]:
    """The tables of all ranks, hosts and devices in order, and what could not be read."""
    ordered = sorted(paths, key=_natural)
    answers = _on_ray(ordered, ray) if ray is not None else _in_processes(ordered, workers)
    tables: list[RankTable] = []
    gaps: list[Gap] = []
    for path, (found, trouble) in zip(ordered, answers, strict=True):
        tables += found
        if trouble:
            gaps.append(Gap(f"the ranks of {path.name}", trouble, "copy the trace again, or trace again"))
    _unite_groups(tables)
    if len({table.device for table in tables}) == len(tables):
        tables.sort(key=lambda table: table.device)  # the job's own numbers say more than the files' names
    return tables, gaps


def _unite_groups(tables: list[RankTable]) -> None:
    """A program knows all groups of a collective; without one each rank knows its own, and together they know all."""
    for op in {op for table in tables for op in table.planned}:
        planned = [table.planned[op] for table in tables if op in table.planned]
        groups = {group for one in planned for group in one.groups}
        members = [member for group in groups for member in group]
        if any(set(one.groups) != groups for one in planned) and len(set(members)) == len(members):
            for table in tables:
                if op in table.planned:
                    table.planned[op] = replace(table.planned[op], groups=tuple(sorted(groups)))


def reduce_file(path: Path) -> list[RankTable]:
    """One trace file, device by device, so that memory follows the largest device and not the file."""
    file = open_trace(path)
    trace = file.trace
    launches = _Launches()
    # Of the host only launches and step markers matter here; a thread is let go before the next is read.
    trace.threads = [launches.taken(thread) for thread in file.threads()]
    programs = _Programs(trace)
    tables = []
    # While one device is reduced the next is read: two cores are used, and two devices are held at most.
    with ThreadPoolExecutor(1) as pool:
        pending: Future[RankTable] | None = None
        for device in file.devices():
            if pending:
                tables.append(pending.result())
            pending = pool.submit(_reduce, trace, device, launches, programs)
        if pending:
            tables.append(pending.result())
    if not tables:
        tables = [_reduce(trace, device, launches, programs) for device in file.cpu_devices()]
    if not tables:  # there is no table that could carry what the file lacks
        raise EvidenceError("; ".join(gap.why for gap in [*trace.gaps, *completeness(trace)]))
    return tables


def _reduce(trace: Trace, device: Device, launches: _Launches, programs: _Programs) -> RankTable:
    kernels = device.kernels
    launch = launches.of(kernels)
    classes = classify(kernels, trace.strings)
    steps = find_steps(trace, device, launch)
    line = timeline(kernels, classes.engine, launch, steps[0].start if steps else None)
    ops, calls = find_calls(kernels, trace.strings, classes.engine == Engine.COLLECTIVE, line, steps)
    calls = last_steps(calls, MOST_CALLS)
    planned, participants = programs.of(kernels)
    return RankTable(
        path=str(trace.path),
        device=device.id,
        kind=device.kind,
        origin_ns=trace.origin_ns,
        steps=steps,
        buckets=line.buckets(steps),
        ops=ops,
        calls=calls,
        kernels=list(_sums(kernels, classes.names, classes.number, trace)),
        planned={op: planned[op] for op in ops if op in planned},
        participants=participants,
        gaps=list(trace.gaps),
    )


class _Launches:
    """When the host began to launch each kernel; put in order once for all devices of a file."""

    def __init__(self) -> None:
        self._numbers, self._starts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]

    def taken(self, thread: HostThread) -> HostThread:
        """Takes the launches of one thread; gives the thread with its step markers only."""
        events, rows = thread.events, thread.events.correlation > 0
        self._numbers.append(events.correlation[rows])
        self._starts.append(events.start[rows])
        return HostThread(thread.id, thread.name, events.take(np.flatnonzero(events.step >= 0)))

    def of(self, kernels: Kernels) -> Int64:
        """For each kernel, NONE where no launch carries its number."""
        number, start = self._sorted
        if not len(number):
            return np.full(len(kernels), NONE, np.int64)
        # Numbers are given in a row: usually a number's place is how far it is from the first.
        place = (kernels.correlation - number[0]).clip(0, len(number) - 1)
        if not (number[place] == kernels.correlation).all():
            place = np.searchsorted(number, kernels.correlation).clip(max=len(number) - 1)
        known = (number[place] == kernels.correlation) & (kernels.correlation > 0)
        return np.where(known, start[place], NONE)

    @cached_property
    def _sorted(self) -> tuple[Int64, Int64]:
        number, start = np.concatenate(self._numbers), np.concatenate(self._starts)
        self._numbers, self._starts = [], []
        order = np.argsort(number, kind="stable")
        return number[order], start[order]


class _Programs:
    """The programs of a file, each read when a device is found to run it."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._known: dict[int, tuple[dict[str, Collective], tuple[int, ...]]] = {}

    def of(self, kernels: Kernels) -> tuple[dict[str, Collective], tuple[int, ...]]:
        """Collectives by name and devices of the program that takes most of a device's time."""
        if not self._trace.compiled:
            return self._trace.collectives, self._trace.participants
        rows = np.flatnonzero(main_program(kernels))
        if not len(rows):
            return {}, ()
        number = int(kernels.program[rows[0]])
        if number not in self._known:
            self._known[number] = self._read(number)
        return self._known[number]

    def _read(self, number: int) -> tuple[dict[str, Collective], tuple[int, ...]]:
        raw = self._trace.programs.get(number)
        if raw is None:
            why = "the trace carries no HLO of its main program"
            self._trace.gaps.append(Gap("bytes and groups of collectives", why, "trace with enable_hlo_proto on"))
            return {}, ()
        try:
            program = read_proto(raw, number)
        except TrackwalkerError as error:
            self._trace.gaps.append(Gap("bytes and groups of collectives", str(error)))
            return {}, ()
        return by_name(program_collectives(program)), program.devices


def _sums(kernels: Kernels, names: tuple[str, ...], number: Int64, trace: Trace) -> Iterator[KernelSum]:
    """The kernels that cost most, by name."""
    found = distinct(kernels.name)
    spent = np.bincount(found.index, kernels.end - kernels.start, len(found.values))
    for i in np.argsort(-spent)[:_KERNELS]:
        kind = names[int(number[found.first[i]])]
        yield KernelSum(trace.strings[int(found.values[i])], kind, int(found.count[i]), int(spent[i]))


def _natural(path: Path) -> list[list[tuple[int, str]]]:
    """host2 before host10, whatever folders they are in; the folder decides between files of one name."""
    names = (path.name, str(path.parent))
    return [[(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", name)] for name in names]


Answer = tuple[list[RankTable], str]


def _attempt(path: Path) -> Answer:
    """One bad file must not cost the others."""
    try:
        return reduce_file(path), ""
    except (TrackwalkerError, OSError) as error:
        return [], str(error)


def _in_processes(paths: Sequence[Path], workers: int | None) -> list[Answer]:
    workers = min(workers or os.cpu_count() or 1, len(paths))
    size = sum(path.stat().st_size for path in paths if path.exists())
    if workers < 2 or size < _SMALL:
        return list(_counted(map(_attempt, paths), len(paths)))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(_counted(pool.map(_attempt, paths), len(paths)))


def _counted(answers: Iterable[Answer], of: int) -> Iterator[Answer]:
    for done, answer in enumerate(answers, 1):
        advance(done, of, "traces read")
        yield answer


def _answers(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if not port.isdigit():
        return  # "auto": Ray knows where to look
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except OSError as error:
        raise UnreachableError(
            f"no Ray cluster answers at {address} ({error}); `ray status` there says more"
        ) from error


def _on_ray(paths: Sequence[Path], address: str) -> list[Answer]:
    """The files must be readable under the same path on the Ray nodes; our code travels there with the task."""
    try:
        import ray
    except ImportError as error:
        raise MissingToolError('Ray is not installed here; pip install "trackwalker[ray]"') from error
    _answers(address)
    package = str(Path(trackwalker.__file__).parent)
    try:
        ray.init(address=address, runtime_env={"py_modules": [package]}, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UnreachableError(
            f"no Ray cluster answers at {address} ({error}); `ray status` there says more"
        ) from error
    try:
        task: Any = ray.remote(num_cpus=1)(_attempt)
        return list(ray.get([task.remote(path.resolve()) for path in paths]))
    finally:
        ray.shutdown()
