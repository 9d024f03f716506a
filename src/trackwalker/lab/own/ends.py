"""How the ranks of a simulated run ended, in the agent's own terms; its own code then says what the log says."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.node.agent.outcome import TIMED_OUT, Course, Outcome, RankEnd, describe_exit, first_failure, judge
from trackwalker.node.agent.spec import AgentSpec
from trackwalker.node.stages.order import STAGES

CANCELLED = ("cancelled", "walltime", "preempted")
_LAST_S = 8.0  # from the first failure to the end of the run: words of the others, their ends, the summary
_ORDERED = (128 + signal.SIGTERM, 128 + signal.SIGINT)  # how a rank ends that was told to


@dataclass(frozen=True)
class Ending:
    """The end of the run as the first node knows it; None where nobody was left to say anything."""

    outcome: Outcome
    ends: list[RankEnd]
    missing: list[str]
    stop_at: float | None  # when the others were told to end
    stage: str = ""  # the stage before training that ended it


def ending_of(log: JobLog, sheet: Sheet, job_dir: Path) -> Ending | None:
    """Judge a played run with the agent's own rules."""
    run = log.run
    if run.spec.ending in ("silent", "cut") or not log.summary:
        return None
    stage = failed_stage(log)
    if stage is not None and stage != "train":
        return _stage_ending(log, stage)
    missing = [host for host in run.hosts if host in sheet.gone_at]
    ends = _rank_ends(log, sheet, missing)
    bad = min((e for e in ends if e.exit and e.exit not in _ORDERED), key=lambda e: (e.ended, e.rank), default=None)
    timed_out = "TIMEOUT" in log.reason
    stopped = signal.SIGTERM if run.spec.ending in CANCELLED else None
    seconds = int(run.end - run.training_begin)
    course = Course(
        ends=ends,
        first_bad=bad,
        stopped_by=int(stopped) if stopped is not None else None,
        warned=run.spec.ending == "walltime",
        timed_out=timed_out,
        missing=missing,
        seconds=seconds,
        last_step=run.first + len(run.ends) - 1 if len(run.ends) else None,
    )
    outcome = judge(agent_spec(log, job_dir, float(seconds) if timed_out else None), course)
    guilty = first_failure(course)
    stop_at = guilty.ended + 0.3 if guilty is not None else run.end - 4.0 if stopped or timed_out else None
    return Ending(outcome, ends, missing, stop_at)


def end_at_first_failure(log: JobLog, sheet: Sheet) -> bool:
    """Our agent ends the ranks as soon as one has failed: whatever the others would have waited for never comes."""
    run = log.run
    if log.no_training and log.stages:  # the job ends with the stage that failed, not when training would have begun
        run.spec.init_s = 0.0
    failed = [sheet.idle_after(run.hosts[r]) for r, code in log.exits.items() if code and code not in _ORDERED]
    first = min(failed, default=np.inf)
    if log.no_training or run.spec.ending in ("silent", "cut") or first + _LAST_S >= run.end:
        return False
    run.silent_s = float(first) + _LAST_S - run.work_end
    run.spec.ending = "crash"
    return True


def killed_by_kernel(end: RankEnd, sheet: Sheet) -> bool:
    """Whether the kernel killed this rank for want of memory: its host's counter says so."""
    kills = sheet.overlays("hw_oom_kills_total", end.host, {})
    return end.exit == 128 + signal.SIGKILL and any(overlay.what == "jump" for overlay in kills)


def failed_stage(log: JobLog) -> str | None:
    """The stage whose failure a fault told of, by its key."""
    named = [key for key, title in STAGES.items() if log.reason.startswith(title)]
    return named[0] if named and log.no_training else None


def agent_spec(log: JobLog, job_dir: Path, limit_s: float | None = None) -> AgentSpec:
    """The first node's share of the job, as far as its words depend on it."""
    run = log.run
    return AgentSpec(
        job_id=run.job_id,
        job_name=f"JAX-{run.spec.model}",
        model=run.spec.model,
        node=run.hosts[0],
        job_dir=job_dir,
        log=None,
        ranks=[],
        world=len(run.hosts),
        limit_s=limit_s,
        steps=run.spec.total,
        nodes=len(run.hosts),
    )


def _rank_ends(log: JobLog, sheet: Sheet, missing: list[str]) -> list[RankEnd]:
    """A rank whose process a fault ended did so at that moment; the rest follow at the end of the run."""
    run, rng = log.run, np.random.default_rng([int(log.run.job_id), 7])
    default = {"completed": 0, "heartbeat": 134}.get(run.spec.ending, 143)
    ends = []
    for rank, host in enumerate(run.hosts):
        if host in missing:
            continue
        code = log.exits.get(rank, default)
        told = run.end - (3.5 if rank in log.exits or rank in log.accused else 3.0) + float(rng.uniform(0, 0.3))
        ended = min(sheet.idle_after(host), told)
        ends.append(RankEnd(rank, host, code, round(ended, 3), describe_exit(code)))
    return ends


def _stage_ending(log: JobLog, stage: str) -> Ending:
    timed_out = "TIMEOUT" in log.reason
    code = TIMED_OUT if timed_out else 1
    reason = log.reason if timed_out else f"{STAGES[stage]} FAILED (exit={code})"
    ends = [
        RankEnd(rank, log.run.hosts[rank], exit, log.run.end - 3.0, describe_exit(exit))
        for rank, exit in sorted(log.exits.items())
        if exit
    ]
    return Ending(Outcome(code, reason, ""), ends, [], None, stage)
