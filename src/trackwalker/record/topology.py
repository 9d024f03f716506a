"""Who owns what in a job: ranks, the lanes they report as, their machines, the GPUs of each rank, and how many in all.

A series belongs to its most specific subject. On a machine that ranks share, its GPUs report under the machine's name
(`box`) and ranks under their lanes' (`box-r2`): a GPU is its lane's where it is known whose it is, and what belongs to
nobody in particular (disk, memory, pressure, the kernel's log) is the machine's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

_GPU_SELECTOR = re.compile(r'"(?:[^"\\]|\\.)*"|\b(hw_gpu_\w+)(\{)?')  # text in quotation marks is passed over
_OF_ALL = re.compile(r"\bscalar\(")  # compares with everybody: what stands in it is not narrowed down
_MACHINE_WIDE = frozenset({"hw_gpu_user_processes"})  # these count the machine, not one of its GPUs


SCHEDULER, BANNER, RECORDING = "sacct", "the memory banner of the log", "the recorded GPUs"


class Held(NamedTuple):
    """How many GPUs a run held, and who says so; None where nobody does."""

    gpus: int | None = None
    source: str = ""


def gpus_held(allocated: int | None, told: int | None, recorded: int | None) -> Held:
    """What the scheduler allocated, else the most that the ranks told of in the log or that a recording saw.

    Either may be a part: a log may hold one process's banner, a recording some of the hosts. Never a guess.
    """
    if allocated:
        return Held(allocated, SCHEDULER)
    if recorded and recorded > (told or 0):
        return Held(recorded, RECORDING)
    return Held(told, BANNER) if told else Held()


class RankSeat(Protocol):
    """One rank as the run's record has it."""

    rank: int
    host: str
    node: str


@dataclass(frozen=True)
class Seat:
    """Where one rank runs: the name it reports as, and its machine."""

    rank: int
    host: str
    node: str


@dataclass(frozen=True)
class Topology:
    """The ranks of a job, their machines, and which rank uses which GPU."""

    seats: tuple[Seat, ...] = ()
    owners: Mapping[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)  # (machine, gpu) -> ranks

    @cached_property
    def machines(self) -> tuple[str, ...]:
        """Machines that ranks share as lanes: their own series carry none of the ranks' names."""
        hosts = {seat.host for seat in self.seats}
        return tuple(sorted({seat.node for seat in self.seats} - hosts))

    def lane_of(self, machine: str, gpu: str) -> str:
        """The lane whose GPU it is; the machine's own name where several ranks use it or nobody is known to."""
        hosts = {seat.host for seat in self.seats if seat.rank in self.owners.get((machine, gpu), ())}
        if not hosts and machine in self.machines:
            hosts = {seat.host for seat in self.seats if seat.node == machine}  # the only rank has them all
        return hosts.pop() if len(hosts) == 1 else machine

    def gpus_of(self, host: str) -> list[str]:
        """The GPUs that are known to be of a lane or host."""
        ranks = {seat.rank for seat in self.seats if seat.host == host}
        return sorted(gpu for (_, gpu), owners in self.owners.items() if ranks & set(owners))

    def ranks_of(self, host: str, gpu: str) -> tuple[int, ...]:
        """The ranks that use a GPU, by the name under which a verdict tells of it."""
        machine = next((seat.node for seat in self.seats if seat.host == host), host)
        return self.owners.get((machine, gpu), ())

    def gpu_name(self, subject: str) -> str:
        """`host/gpu` as a reader finds the card: by its machine, and on the only machine by its number alone."""
        host, _, gpu = subject.rpartition("/")
        machine = next((seat.node for seat in self.seats if seat.host == host), host)
        if machine not in self.machines:
            return subject
        return gpu if len({seat.node for seat in self.seats}) == 1 else f"{machine}/{gpu}"

    def by_owner(self, query: str) -> str:
        """A query over GPUs such that each answer carries the lane's name whose GPUs they are."""
        used = {m[1] for m in _GPU_SELECTOR.finditer(query) if m[1]}
        if not used or not self.machines or (used & _MACHINE_WIDE and len(self.seats) > 1):
            return query
        parts = [
            f'label_replace({_narrowed(query, machine, gpus)}, "host", {json.dumps(lane)}, "", "")'
            for machine in self.machines
            for lane, gpus in sorted(self._gpus_by_lane(machine).items())
        ]
        return " or ".join(parts) if parts else query

    def _gpus_by_lane(self, machine: str) -> dict[str, list[str] | None]:
        """The GPUs of each lane of a machine; None: all that the machine has."""
        lanes = sorted({seat.host for seat in self.seats if seat.node == machine})
        if len(lanes) == 1:
            return {lanes[0]: None}
        found: dict[str, list[str] | None] = {}
        for (where, gpu), _ in sorted(self.owners.items()):
            if where == machine:
                mine = found.setdefault(self.lane_of(machine, gpu), [])
                if mine is not None:
                    mine.append(gpu)
        return found or {machine: None}


def make_topology(
    ranks: Iterable[RankSeat],
    hosts: Iterable[str],
    rank_info: Iterable[Mapping[str, str]],
    gpu_rank_info: Iterable[Mapping[str, str]],
) -> Topology:
    """The topology by the run's record, else by the hosts the log names; the recording says which rank has which GPU.

    `rank_info` and `gpu_rank_info` are the labels of `hw_rank_info` and `hw_gpu_rank_info`. A lane is a host where the
    run calls it one: where it knows the machine alone, a rank's place is its machine, whatever its series are labelled.
    """
    known = frozenset(hosts := list(hosts))
    seats = {seat.rank: Seat(seat.rank, seat.host, seat.node) for seat in ranks}
    if not seats:
        told = [(_number(x), x["host"], x.get("node") or x["host"]) for x in rank_info if "host" in x]
        seats = {
            rank: Seat(rank, node if node in known and host not in known else host, node)
            for rank, host, node in told
            if rank is not None
        }
    if not seats:
        seats = {rank: Seat(rank, host, host) for rank, host in enumerate(hosts)}
    owners: dict[tuple[str, str], set[int]] = {}
    for labels in gpu_rank_info:
        rank = _number(labels)
        if rank is not None and "host" in labels and "gpu" in labels:
            owners.setdefault((labels["host"], labels["gpu"]), set()).add(rank)
    return Topology(
        tuple(seats[r] for r in sorted(seats)), {key: tuple(sorted(r)) for key, r in sorted(owners.items())}
    )


def _number(labels: Mapping[str, str]) -> int | None:
    text = labels.get("rank", "")
    return int(text) if text.isdecimal() else None


def _narrowed(query: str, machine: str, gpus: list[str] | None) -> str:
    """The query with every selector of GPU metrics kept to these GPUs, but for what compares with everybody."""
    words = f"host={json.dumps(machine)}" + ("" if gpus is None else f',gpu=~"{"|".join(gpus)}"')
    kept = [(m.start(), _closing(query, m.end())) for m in _OF_ALL.finditer(query)]

    def narrow(match: re.Match[str]) -> str:
        if match[1] is None or any(begin <= match.start() < end for begin, end in kept):
            return match[0]
        if match[1] in _MACHINE_WIDE:
            return f"{match[1]}{{{words.partition(',')[0]}{',' if match[2] else '}'}"
        return f"{match[1]}{{{words}," if match[2] else f"{match[1]}{{{words}}}"

    return _GPU_SELECTOR.sub(narrow, query)


def _closing(text: str, at: int) -> int:
    """Where the parenthesis closes that was opened just before `at`."""
    depth = 1
    while at < len(text) and depth:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at
