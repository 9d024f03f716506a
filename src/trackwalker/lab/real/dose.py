"""Dose and response: the same real fault at many strengths, from invisible to ruinous, each in a real run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.verdict import Verdict
from trackwalker.job import journal
from trackwalker.job.processes import short_hostname
from trackwalker.job.resolve import resolve
from trackwalker.lab.real import network, stage
from trackwalker.lab.real.cgroups import limit_writes
from trackwalker.lab.real.demo import Follower, Say, end_run
from trackwalker.lab.real.inject import find_victim, starve, take_cpus
from trackwalker.lab.real.stage import Stage
from trackwalker.lab.real.undo import Undo, note_for
from trackwalker.lab.real.victim import Victim
from trackwalker.launch.plan import How, plan_local
from trackwalker.launch.request.words import ModelSpec, Passthrough
from trackwalker.launch.schedulers.local import LocalRun

PROCS = 2
_VICTIM = 1
_FROM_STEP = 600  # where faults begin that the trainer makes itself: full speed has to be there to be told
_WARM_UP = 10  # steps that are no measure of full speed
_BASELINE_S = 20.0  # some samples of every collector
_FAULT_S = 40.0  # a seventh of it is more than the 5 s from which on a slow phase is no dip
_FAULT_STEPS = 20
_LONGEST_S = 90.0
_START_LIMIT_S = 180.0

# Steps of some hundredths of a second: what a scheduler does in milliseconds counts for less than the fault.
_SMALL = {
    "base_emb_dim": "128",
    "base_num_decoder_layers": "2",
    "base_mlp_dim": "512",
    "per_device_batch_size": "2",
    "max_target_length": "128",
}

Live = Callable[[Victim, Undo], None]
Grade = Literal["named", "located", "unplaced", "not seen", "other load", "wrong"]


@dataclass(frozen=True)
class Setup:
    """How a strength of a fault is made: the trainer's settings, what is arranged before, what is done to the run."""

    config: Mapping[str, str] = field(default_factory=dict)
    stage: Stage | None = None
    live: Live | None = None


@dataclass(frozen=True)
class DoseFault:
    """One kind of fault with its strengths, weakest first, and the right answer."""

    name: str
    about: str
    unit: str
    strengths: tuple[float, ...]
    cause: str
    rank: int | None  # whom a right verdict may accuse; None: nobody
    setup: Callable[[float], Setup]


class DoseRun(BaseModel):
    """One run: what was done, what it cost, what was said of it."""

    model_config = ConfigDict(extra="forbid")

    fault: str
    strength: float
    unit: str
    lost: float | None  # share of the speed
    before_s: float | None
    after_s: float | None
    outcome: str
    roots: dict[str, list[str]]
    accounts: list[dict[str, float]]
    grade: Grade
    load: float  # of the machine when it began: others were at work on it
    seconds: float
    job: str  # its directory
    from_step: int  # where the fault began


class DoseResults(BaseModel):
    """All runs so far, with the command that goes on with them."""

    model_config = ConfigDict(extra="forbid")

    command: str
    cpus: int
    runs: list[DoseRun] = []

    def has(self, fault: str, strength: float) -> bool:
        """Whether that run was made already."""
        return any(r.fault == fault and r.strength == strength for r in self.runs)


def _late(rank: int) -> Callable[[float], Setup]:
    def setup(seconds: float) -> Setup:
        settings = {"data_slow_from_step": _FROM_STEP, "data_slow_rank": rank, "data_slow_seconds": seconds}
        return Setup({k: str(v) for k, v in settings.items()})

    return setup


def _slow_saves(seconds: float) -> Setup:
    settings = {"checkpoint_period": 10, "checkpoint_write_seconds": seconds, "checkpoint_slow_from_step": _FROM_STEP}
    return Setup({k: str(v) for k, v in settings.items()})


def _slow_disk(kib_per_s: float) -> Setup:
    def live(victim: Victim, undo: Undo) -> None:
        group = f"trackwalker-{victim.job_dir.name}-dose"
        limit_writes(find_victim(victim.job_dir, 0).pid, victim.job_dir, int(kib_per_s * 1024), group, undo)

    return Setup({"checkpoint_period": "10"}, live=live)


def _lost_packets(share: float) -> Setup:
    def live(victim: Victim, undo: Undo) -> None:
        network.impair(victim.pid, undo, loss=share)

    return Setup(stage=stage.own_network, live=live)


def _late_packets(ms: float) -> Setup:
    def live(victim: Victim, undo: Undo) -> None:
        network.impair(victim.pid, undo, delay_s=ms / 1000.0)

    return Setup(stage=stage.own_network, live=live)


def _busy_loops(loops: float) -> Setup:
    return Setup(live=lambda victim, undo: take_cpus(int(loops), undo))


def _starved(nice: float) -> Setup:
    return Setup(live=lambda victim, undo: starve(victim, undo, int(nice)))


def _leak(mb_per_s: float) -> Setup:
    return Setup(stage=stage.leaking("10", mb_per_s))


_DATA_S = (0.01, 0.02, 0.03, 0.05, 0.08, 0.15, 0.4, 1.5)
FAULTS = {
    f.name: f
    for f in (
        DoseFault("slow-data-one", "one rank's batches take so long", "s", _DATA_S, "input-stall", 1, _late(_VICTIM)),
        DoseFault("slow-data-all", "every rank's batches take so long", "s", _DATA_S, "input-stall", None, _late(-1)),
        DoseFault(
            "cpu-taken", "other processes' busy loops", "loops", (1, 2, 3, 4, 6, 8, 12, 16), "cpu-contention", None,
            _busy_loops,
        ),
        DoseFault(
            "rank-slowed", "one rank at this priority among busy loops", "nice", (1, 3, 5, 7, 9, 12, 15, 19),
            "cpu-contention", 1, _starved,
        ),
        DoseFault(
            "memory-leak", "one rank leaks", "MB/s", (0.25, 0.5, 1, 2, 4, 8, 16, 32), "host-memory-leak", 1, _leak
        ),
        DoseFault(
            "saves-slowed", "a save takes so long", "s", (0.02, 0.05, 0.1, 0.25, 0.5, 1, 3, 10),
            "storage-degradation", None, _slow_saves,
        ),
        DoseFault(
            "disk-slow", "the disk takes rank 0's writes at", "KiB/s",
            (65536, 32768, 16384, 8192, 4096, 2048, 1024, 512), "storage-degradation", None, _slow_disk,
        ),
        DoseFault(
            "packets-lost", "one rank's link loses this share of its frames", "",
            (0.001, 0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.3), "network-degradation", 1, _lost_packets,
        ),
        DoseFault(
            "packets-late", "one rank's link delays by", "ms", (0.5, 1, 2, 5, 10, 20, 40, 80), "network-degradation",
            None, _late_packets,
        ),
    )
}  # fmt: skip


def run_dose(fault: DoseFault, strength: float, workspace: Path, say: Say) -> DoseRun:
    """Train, let the fault be there for a while, end the run, ask for a verdict, compare."""
    began, load = time.monotonic(), os.getloadavg()[0]
    setup = fault.setup(strength)
    config = {"steps": "100000", "jax_distributed_heartbeat_timeout_seconds": "14400", **_SMALL, **setup.config}
    how = How("local", ["lab", "dose", fault.name], PROCS, observe=True)
    plan = plan_local(ModelSpec("tiny", tag=fault.name), Passthrough(config), workspace, how)
    staged = note_for(plan.agent.job_dir, "stage")
    with ExitStack() as faults, ExitStack() as stack:
        faults.callback(staged.run)
        if setup.stage is not None:
            plan.agent.job_dir.parent.mkdir(parents=True, exist_ok=True)
            plan = setup.stage(plan, _VICTIM, staged, faults)
        run = LocalRun.start(plan)
        stack.callback(end_run, run, say)
        follow = Follower(run, lambda watch: None)
        follow.until(lambda n: follow.steady(_FROM_STEP, _BASELINE_S), _START_LIMIT_S)
        first = follow.last_step or 0
        since = time.monotonic()
        if setup.live is not None:
            note = note_for(plan.agent.job_dir, fault.name)
            faults.callback(note.run)
            setup.live(find_victim(run.job_dir, _VICTIM), note)
        first = _FROM_STEP if not setup.live and setup.config else first

        def lasted(_: object) -> bool:
            shown = (follow.last_step or 0) - first >= _FAULT_STEPS
            return shown and time.monotonic() - since >= _FAULT_S

        follow.until(lasted, _LONGEST_S)
    return judge(fault, strength, run.job_dir, first, round(load, 1), round(time.monotonic() - began, 1))


def judge(fault: DoseFault, strength: float, job_dir: Path, first: int, load: float, seconds: float) -> DoseRun:
    """Ask for a verdict on the recording of a run, and compare it with what was done."""
    verdict = diagnose(resolve(str(job_dir), job_dir.parent)).verdict
    before, after = _pace(job_dir, first)
    return DoseRun(
        fault=fault.name,
        strength=strength,
        unit=fault.unit,
        lost=None if before is None or after is None else round(1.0 - before / after, 4),
        before_s=before,
        after_s=after,
        outcome=verdict.outcome,
        roots={c.cause: c.hosts for c in verdict.roots},
        accounts=[a.shares for a in verdict.accounts],
        grade=grade(fault, verdict),
        load=load,
        seconds=seconds,
        job=job_dir.name,
        from_step=first,
    )


def grade(fault: DoseFault, verdict: Verdict) -> Grade:
    """Whether a verdict names the fault, only its place, nothing, or something else.

    A machine that others use is waited for, too: cpu-contention that accuses nobody may be as true as the fault.
    """
    mine = [f"{short_hostname()}-r{fault.rank}"] if fault.rank is not None else []
    roots = {c.cause: c.hosts for c in verdict.roots if c.cause != "user-cancel"}  # we end every run ourselves
    beside = {c: h for c, h in roots.items() if c == "cpu-contention" and not h and fault.cause != c}
    told = {c: h for c, h in roots.items() if c not in beside}
    if not told:
        return "other load" if beside else "not seen"
    if told == {fault.cause: mine}:
        return "named"
    if told == {fault.cause: []}:
        return "unplaced"
    if set(told) == {"unclassified"} and told["unclassified"] == mine:
        return "located"
    return "wrong"


def _pace(job_dir: Path, first: int) -> tuple[float | None, float | None]:
    """Wall time of a step before and after the fault began, saves and all."""
    ends: dict[int, float] = {}
    for record in journal.read(job_dir / "progress.jsonl").items:
        if record.get("phase") == "train":
            step = int(record["step"])
            ends[step] = max(ends.get(step, 0.0), float(record["t"]))
    apart = {b: ends[b] - ends[a] for a, b in pairwise(sorted(ends))}
    before = [s for step, s in apart.items() if _WARM_UP < step < first]
    after = [s for step, s in apart.items() if step > first + 2]
    if len(before) < _WARM_UP or not after:
        return None, None
    return round(float(np.mean(before)), 4), round(float(np.mean(after)), 4)
