"""How a run stands or how it ended: the stall rule, the status table, the phase (spec 2.2, 2.6 to 2.8)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trackwalker.diagnose.accounting import Accounting
from trackwalker.diagnose.interruptions import Interruptions
from trackwalker.diagnose.projection import Progress
from trackwalker.diagnose.sources import EVENT_LAG_S, JOURNAL, StepRecord
from trackwalker.logs.findings import Stall
from trackwalker.logs.index import LogIndex
from trackwalker.logs.roles import Roles
from trackwalker.stats.stall import STALL_STEPS, stall_limit

_CANCELS = (130, 143)
_START_UP_S = 900.0  # collective set-up, compile and restore leave no time in most logs
_SAVE_S = 900.0  # a synchronous save may hold the next step this long
_INIT_BUDGET_S = 2700.0  # set-up of the collectives, restore and a compilation of the largest models, together


@dataclass(frozen=True)
class Clock:
    """What is known of the run's time: whether it lives, now, and when its work ended."""

    live: bool
    now: float | None = None  # only for a live run
    end_of_work: float | None = None  # a stop, a failure, an end, as our journal or the scheduler dates it
    ended: float | None = None  # when everything was over
    elapsed_s: float | None = None  # wall time of this attempt so far


def stall_of(
    index: LogIndex, record: StepRecord, slow: Interruptions, progress: Progress, clock: Clock, attempt_s: float
) -> Stall | None:
    """Time without a step that neither the run's own step times nor a save nor start-up explain."""
    if progress.all_done:
        return None
    if not len(record) or progress.step_time_s is None:
        return _never_started(index, progress, clock) if progress.last_step is None else None
    seconds = record.seconds[np.isfinite(record.seconds)]
    limit = max(300.0, STALL_STEPS * float(np.quantile(seconds, 0.99)))
    limit = _with_save(limit, record, slow, progress)
    until = clock.now if clock.live else clock.end_of_work
    if until is not None and record.last_end is not None:
        exact = record.used == JOURNAL
        allowed = _with_save(stall_limit(seconds), record, slow, progress) if exact else limit + EVENT_LAG_S
        silent = until - record.last_end - index.facts.coredump_s
        if silent > allowed:
            return Stall(silent, f"no step for {silent / 60:.0f} minutes")
        return None  # the time of the last step is known: no need to reckon
    gap = None if clock.elapsed_s is None else clock.elapsed_s - attempt_s - (progress.setup_s or 0.0)
    gap = None if gap is None else gap - index.facts.coredump_s
    if gap is not None and gap > limit + _START_UP_S:
        return Stall(gap, f"{gap / 60:.0f} minutes of wall time are not accounted for by steps or set-up")
    silent_s = index.silent_s
    if silent_s is not None and silent_s > max(1800.0, limit):
        return Stall(silent_s, f"the log goes on for {silent_s / 60:.0f} minutes without a step")
    return None


def _with_save(limit: float, record: StepRecord, slow: Interruptions, progress: Progress) -> float:
    """A run that stands at a save may be silent as long as its saves take; 900 s where none was seen."""
    period, last = progress.checkpoint_period, progress.last_step
    if not period or last is None or not (last % period <= 1 or (last + 1) % period == 0):
        return limit
    seen = record.seconds[slow.save]
    return max(limit, float(np.nanmax(seen)) * 2.0 if np.isfinite(seen).any() else _SAVE_S, _SAVE_S)


def _never_started(index: LogIndex, progress: Progress, clock: Clock) -> Stall | None:
    """No step at all after more time than any start-up takes (ST-11 against ST-12)."""
    facts = index.facts
    if clock.elapsed_s is None or not (facts.header or facts.config):
        return None  # not a log we know the beginning of: its steps may look like nothing we know
    waited = clock.elapsed_s - (progress.setup_s or 0.0)
    if waited <= _INIT_BUDGET_S:
        return None
    reached = "barrier" if facts.barrier_ranks else "params" if facts.params_ranks else "init"
    return Stall(waited, f"no first step in {waited / 60:.0f} minutes of the training stage", reached)


def status_of(index: LogIndex, progress: Progress, roles: Roles, clock: Clock, stalled: bool, said: Accounting) -> str:
    """The status table of spec 2.2; a file's age is never taken for progress."""
    summary, done = index.facts.summary, progress.all_done
    codes = [e.code for e in index.facts.exits]
    if summary is not None:
        if summary.exit is None:
            return "completed" if done else "indeterminate"
        if summary.exit == 0:
            return "completed" if done or progress.total_steps is None else "completed-short"
        if done:
            return "soft-success"
        if said.failure_class in ("node-failure", "oom-host"):
            return "failed"  # the SIGTERM was the scheduler's, for a reason
        only_terminated = bool(codes) and all(c == 143 for c in codes) and "exit=143" in summary.reason
        return "cancelled" if summary.exit in _CANCELS or only_terminated else "failed"
    if clock.live:
        if progress.last_step is None:
            return "hanging" if stalled else "initialising"
        return "hanging" if stalled else "running"
    if done:
        return "completed"
    primary = roles.primary
    if said.ended:
        return _ended(progress, roles, said)
    if primary is None:
        return "unknown-death" if index.facts.ends_mid_line and index.facts.header else "indeterminate"
    if primary.id == "hang":
        return "hanging"
    if primary.cause == "loss-divergence" and not codes and index.facts.task_failed is None:
        return "indeterminate"  # a bad loss ends nothing by itself
    return "cancelled" if primary.tier == 5 else "failed"


def _ended(progress: Progress, roles: Roles, said: Accounting) -> str:
    """No summary, but the scheduler says that it is over (ST-13)."""
    if said.state == "COMPLETED":
        return "completed" if progress.total_steps is None else "completed-short"
    if said.failure_class in ("cancelled", "walltime", "preempted"):
        return "cancelled"
    if said.failure_class is None and (roles.primary is None or roles.primary.id == "hang"):
        return "unknown-death"
    return "failed"


def phase_of(index: LogIndex, progress: Progress) -> str:
    """Where in its life the run is or ended."""
    facts = index.facts
    if progress.last_step is not None:
        return "training" if not progress.all_done else "teardown"
    if facts.barrier_ranks:
        return "before the first step (first collective or compile)"
    if facts.params_ranks:
        return "compile"
    begun = [s.name for s in facts.stages if s.what == "BEGIN"]
    ended = {s.name for s in facts.stages if s.what == "END"}
    open_stages = [name for name in begun if name not in ended]
    return open_stages[-1].lower() if open_stages else "unknown"
