"""One job as `jobs` and `status` show it: how far, how fast, since when; read from the ends of its files."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import statistics
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackwalker.agent.standing_now import UNDECIDED
from trackwalker.errors import EvidenceError, TrackwalkerError
from trackwalker.job.dialects import dialects, read_step
from trackwalker.job.journal import well_formed
from trackwalker.job.layout import Job
from trackwalker.job.run import RunRecord, load_run
from trackwalker.job.shorthand import known_start, started
from trackwalker.job.whole import read_part, read_whole
from trackwalker.launch.job_state import Standing
from trackwalker.logs.formats.dialect import WALL
from trackwalker.record.journal import Done, entry

if TYPE_CHECKING:
    from trackwalker.fleet.examine import Examined
    from trackwalker.record.read import Record

_TAIL = 1 << 16
_SMALL = 8 << 20
_STEPS = re.compile(rb"(?:Config param steps: |[\s\"]steps=)(\d+)")
_NODES = re.compile(rb"^NNODES=(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """What is known of a job without reading it whole; None where it is not known."""

    job: Job
    seen: Standing
    started: float | None
    elapsed: float | None
    model: str
    nodes: int | None
    step: int | None  # steps completed
    steps: int | None
    step_s: float | None
    verdict: str

    @property
    def eta_s(self) -> float | None:
        """Until the last step, at the present speed."""
        if self.seen.ended or self.step is None or self.steps is None or self.step_s is None:
            return None
        return max(0, self.steps - self.step) * self.step_s


def row_of(job: Job, seen: Standing) -> Row:
    """Read the little that a row needs; of a job that is over and small, the figures of its record."""
    record = _record(job)
    step, step_s, last = _from_journal(job.progress) if record else (None, None, None)
    head = tail = b""
    if job.log is not None and (step is None or seen.ended):
        head, tail = read_part(job.log, _TAIL), read_part(job.log, _TAIL, end=True)
    if step is None:
        step, step_s = _from_log(tail)
    steps, nodes = _total(record, head), _nodes(record, head)
    if seen.ended and (whole := _whole(job)) is not None and whole.progress.last_step is not None:
        told = whole.progress
        step = (told.last_step or 0) + 1 - whole.index.steps.first_number
        step_s, steps, nodes = told.step_time_s, told.total_steps or steps, whole.nodes or nodes
    model = record.model if record else job.name.removeprefix("JAX-")
    elapsed = _elapsed(job, seen, last, tail)
    return Row(job, seen, started(job), elapsed, model, nodes, step, steps, step_s, _verdict(job))


def _whole(job: Job) -> Record | None:
    """The record of a job whose log takes no time to read."""
    from trackwalker.record.read import read_record  # reading logs is heavy, and many workspaces need none of it

    with contextlib.suppress(TrackwalkerError, OSError):
        if job.log is not None and job.log.stat().st_size <= _SMALL:
            return read_record(job, "not asked")
    return None


def _record(job: Job) -> RunRecord | None:
    with contextlib.suppress(EvidenceError):
        return load_run(job.run_json)
    return None


def _elapsed(job: Job, seen: Standing, last: float | None, tail: bytes) -> float | None:
    """How long it ran: as its summary says, or from its beginning, where that is known and not guessed from files."""
    if wall := WALL.search(tail.decode("utf-8", "replace")):
        return int(wall[1] or 0) * 3600.0 + int(wall[2] or 0) * 60.0 + int(wall[3])
    begun, ours = known_start(job), job.run_json is not None
    if begun is None or (seen.state in UNDECIDED and not ours):
        return None
    end = time.time() if not seen.ended else last if last is not None else _touched(job.log) if ours else None
    return end - begun if end is not None and end >= begun else None


def _from_journal(path: Path | None) -> tuple[int | None, float | None, float | None]:
    """Steps completed, seconds of a step lately, and the time of the last record."""
    done: dict[int, float] = {}
    for line in (read_part(path, _TAIL, end=True) if path else b"").split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(line)
            if isinstance(said, dict) and well_formed(said) and isinstance(told := entry(said), Done):
                done[told.step] = max(done.get(told.step, 0.0), told.at)
    if not done:
        return None, None, None
    times = [done[step] for step in sorted(done)]
    gaps = [b - a for a, b in itertools.pairwise(times)][-20:]
    return max(done) + 1, statistics.median(gaps) if gaps else None, times[-1]


def _from_log(tail: bytes) -> tuple[int | None, float | None]:
    """Steps completed and the seconds of one lately; the first line of a part may be cut, and the last unfinished."""
    lines = tail.decode("utf-8", "replace").split("\n")[1 if len(tail) == _TAIL else 0 : -1]
    found = [(told, line) for line in lines if (told := read_step(line)) is not None and told.step is not None][-20:]
    if not found:
        return None, None
    seconds = [told.seconds for told, _ in found if math.isfinite(told.seconds)]
    first = next((d.first for d in dialects() if d.read(found[-1][1]) is not None), 0)
    return max(told.step or 0 for told, _ in found) + 1 - first, statistics.median(seconds) if seconds else None


def _total(record: RunRecord | None, head: bytes) -> int | None:
    value = record.config["steps"].value if record and "steps" in record.config else None
    found = _STEPS.search(head)
    text = str(value) if value is not None else found[1].decode() if found else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None


def _nodes(record: RunRecord | None, head: bytes) -> int | None:
    if record is not None and record.ranks:
        return len({place.node for place in record.ranks})
    found = _NODES.search(head)
    return int(found[1]) if found and len(found[1]) < 7 else None


def _touched(path: Path | None) -> float | None:
    try:
        return path.stat().st_mtime if path else None
    except OSError:
        return None


def _verdict(job: Job) -> str:
    """The cause that a verdict names, or its outcome: the one saved with the job, else one that a server kept."""
    with contextlib.suppress(OSError, ValueError, RecursionError, TypeError, AttributeError, KeyError):
        saved = job.dir / "verdict.json" if job.dir else None
        said = json.loads(read_whole(saved)) if saved and saved.exists() else _kept(job)
        roots = [str(cause["cause"]) for cause in said.get("causes", []) if cause.get("role") == "root"]
        return ", ".join(roots[:2]) or str(said.get("outcome", ""))
    return ""


def _kept(job: Job) -> dict[str, Any]:
    """A verdict about this very evidence that `serve` made in the background; empty where there is none."""
    place = job.log or job.dir
    made = _examined(place.parent).verdict(job) if place is not None else None
    return made.model_dump() if made is not None else {}


@lru_cache(maxsize=4)
def _examined(workspace: Path) -> Examined:
    from trackwalker.fleet.examine import Examined  # heavy: only where a job has no verdict of its own

    return Examined(workspace)
