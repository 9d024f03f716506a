"""The evidence capsules of a job: what its nodes wrote down of their ranks at one moment, and whom that names."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from trackwalker.errors import EvidenceError
from trackwalker.job.whole import read_part
from trackwalker.logs.formats.flight_recorder import behind, load, stragglers
from trackwalker.logs.formats.stacks import Frame, Group, Odd, RankStack, group, main_thread, odd_ones, parse

STACKS, DONE = "stacks", "done.json"  # as node/evidence/capsule.py writes them
_MOST_TEXT = 8 << 20
_PLAIN = ("py-spy.txt", "faulthandler.txt")
_THREAD = re.compile(r"(?<=hread )(?:0x[0-9a-fA-F]+|\d{3,})")


@dataclass(frozen=True)
class Capsule:
    """One moment of a job, as far as its nodes answered."""

    incident: str
    folder: Path
    time: float
    attempt: int
    why: str
    stacks: tuple[RankStack, ...]
    nodes: tuple[str, ...]  # that answered
    missing: tuple[str, ...] = ()  # that did not
    pids: tuple[tuple[int, int], ...] = ()  # process, rank

    @cached_property
    def groups(self) -> list[Group]:
        """Ranks that stand in the same place, the most first."""
        return group(self.stacks)

    @cached_property
    def odd(self) -> list[Odd]:
        """Who keeps the others waiting: by process states and stacks, else by the collectives that were entered."""
        return odd_ones(self.stacks) or self._by_flight_recorder() or self._by_ras()

    @property
    def everybody_waits(self) -> bool | None:
        """Whether all ranks but the odd ones wait for others; None when too few could be read to say so."""
        odd = {one.rank for one in self.odd}
        rest = [s for s in self.stacks if s.rank not in odd]
        read = [s for s in rest if s.frames]
        if not read or 2 * len(read) < len(rest):
            return None
        return all(s.waits for s in read)

    def summary(self) -> str:
        """One sentence: who is odd, and where the others stand."""
        if not self.stacks:
            return f"no node answered ({', '.join(self.missing) or 'none is known'})"
        told = [f"rank {one.rank} ({one.host}): {one.why}" for one in self.odd[:4]]
        odd = {one.rank for one in self.odd}
        for one in self.groups[:3]:
            ranks = [rank for rank in one.ranks if rank not in odd]
            if ranks:
                told.append(f"{_ranks(ranks)} {'wait' if one.waits else 'stand'} in {one.place}")
        unread = [s.rank for s in self.stacks if not s.frames and s.rank not in odd]
        told += [f"{_ranks(unread)}: no stack could be read"] if unread else []
        told += [f"no answer from {', '.join(self.missing)}"] if self.missing else []
        return "; ".join(told)

    def _by_flight_recorder(self) -> list[Odd]:
        dumps = {}
        for path in sorted(self.folder.glob("*/flight-recorder/*")):
            if path.name.isdigit():
                try:
                    dumps[int(path.name)] = load(path.read_bytes())
                except (OSError, EvidenceError):
                    continue  # a damaged dump is no reason to lose the others
        hosts = {s.rank: s.host for s in self.stacks}
        return [Odd(rank, hosts.get(rank, ""), why, "flight-recorder") for rank, why in behind(dumps).items()]

    def _by_ras(self) -> list[Odd]:
        ranks = Counter(pid for pid, _ in self.pids)
        known = {pid: rank for pid, rank in self.pids if ranks[pid] == 1}  # two nodes may have used one number
        hosts = {s.rank: s.host for s in self.stacks}
        for path in sorted(self.folder.glob("*/nccl-ras.txt")):
            mine = [(known[s.pid], s.why) for s in stragglers(_text(path)) if s.pid in known]
            if mine and 2 * len(mine) < len(self.stacks):
                return [Odd(rank, hosts.get(rank, ""), why, str(path.relative_to(self.folder))) for rank, why in mine]
        return []


def read_capsules(job_dir: Path | None) -> list[Capsule]:
    """Every capsule of a job, the oldest first."""
    folders = [path for path in (job_dir / STACKS).glob("*") if path.is_dir()] if job_dir is not None else []
    found = [capsule for folder in folders if (capsule := read_capsule(folder)) is not None]
    return sorted(found, key=lambda c: (c.time, c.incident))


def read_capsule(folder: Path, expected: tuple[str, ...] = ()) -> Capsule | None:
    """One capsule with what is there of it; None while no node has finished. `expected` are the nodes of the job."""
    told = [answer for path in sorted(folder.glob(f"*/{DONE}")) if (answer := _done(path)) is not None]
    if not told:
        return None
    stacks, pids = list[RankStack](), list[tuple[int, int]]()
    for path, said in told:
        for entry in said["ranks"]:
            stacks.append(_stack(path.parent, entry))
            pids.append((int(entry["pid"]), int(entry["rank"])))
    nodes = tuple(str(said["node"]) for _, said in told)
    first = told[0][1]
    return Capsule(
        folder.name, folder, min(float(said["t"]) for _, said in told), int(first.get("attempt", 0)),
        str(first.get("why", "")), tuple(sorted(stacks, key=lambda s: s.rank)), nodes,
        tuple(node for node in expected if node not in nodes), tuple(pids),
    )  # fmt: skip


def _done(path: Path) -> tuple[Path, dict[str, Any]] | None:
    try:
        said = json.loads(_text(path))
        whole = all({"rank", "pid", "host"} <= entry.keys() for entry in said["ranks"])
        whole = whole and isinstance(said["node"], str) and isinstance(said["t"], int | float)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # foreign or torn
    return (path, said) if whole else None


def _stack(folder: Path, entry: dict[str, Any]) -> RankStack:
    now, later = entry.get("now") or {}, entry.get("later") or {}
    number = int(entry["rank"])
    found = RankStack(
        number, str(entry["host"]), str(now.get("state", "")), later=later.get("state"), wchan=str(now.get("wchan", ""))
    )
    place = folder.parent.parent
    for ending in _PLAIN:
        path = folder / f"rank-{number}.{ending}"
        if frames := _main_frames(_text(path)):
            found = replace(found, frames=frames, source=str(path.relative_to(place)))
            break
    later, native = (_main_frames(_text(folder / f"rank-{number}.{kind}.txt")) for kind in ("py-spy-later", "native"))
    return replace(found, later_frames=later, native=native)


def _main_frames(text: str) -> tuple[Frame, ...]:
    # A thousand ranks that wait are a thousand times the same text but for the threads' numbers: it is parsed once.
    return _parsed(_THREAD.sub("0", text))


@lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[Frame, ...]:
    thread = main_thread(parse(text))
    return thread.frames if thread is not None else ()


def _text(path: Path) -> str:
    return read_part(path, _MOST_TEXT).decode("utf-8", "replace")


def _ranks(numbers: list[int]) -> str:
    told = ", ".join(str(n) for n in numbers[:8]) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {told}"
