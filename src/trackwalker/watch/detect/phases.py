"""A job's course as its own records tell it, and how long each of its phases may take: learned from the job itself.

A compilation of three minutes or a save of twelve is silence, too. So silence is measured against what the ranks say
they are doing; where they say nothing (an upstream job has only its log), against what such a step took before.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trackwalker.node.agent.rank_progress import Ledger, number
from trackwalker.record.masks import WARM_UP_STEPS
from trackwalker.record.stall import FEW_STEPS_S, pause_limit, step_limit
from trackwalker.stats.segments import Floats

_REMEMBERED = 600
DATA_WAIT, DONE = "data_wait", "done"


@dataclass(frozen=True)
class Budget:
    """How long a phase may last: `unseen_s` before the job has ended one, then so many times its longest."""

    unseen_s: float
    times: float
    least_s: float


# A first compilation of a large model takes up to an hour, a first save depends on a file system nobody knows yet.
BUDGETS = {
    "init": Budget(1800.0, 4.0, 900.0),
    "compile": Budget(3600.0, 4.0, 900.0),
    "restore": Budget(3600.0, 4.0, 900.0),
    "checkpoint": Budget(3600.0, 10.0, 600.0),
    "eval": Budget(3600.0, 4.0, 900.0),
}
FIRST_STEP_S = 1800.0  # from the last phase to the first step


@dataclass(frozen=True)
class Quiet:
    """Nothing moves: since when, how long that may be, and what the ranks are at."""

    phase: str
    since: float
    limit: float
    ranks: tuple[int, ...] = ()  # that are in this phase, where not all are


@dataclass
class Rank:
    """One rank, and how long it waits for batches: lately, and as a rule."""

    ledger: Ledger
    wait: float = 0.0
    usual_wait: float = 0.0


@dataclass
class Course:
    """Takes progress records one by one; holds a bounded past."""

    ranks: dict[int, Rank] = field(default_factory=dict)
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))  # of steady steps
    losses: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    longest: dict[str, float] = field(default_factory=dict)  # by phase
    saves: deque[int] = field(default_factory=lambda: deque(maxlen=8))  # steps of complete checkpoints
    last_step: int | None = None
    last_at: float | None = None
    begun: float = 0.0  # of the current attempt: older records are an earlier one's
    bad: tuple[float, int, int, str] | None = None  # since when a value is no number: time, step, rank, tag
    bad_ranks: set[int] = field(default_factory=set)
    periods: tuple[int, ...] = ()  # of saves and evaluations, where only a log speaks: the steps beside them are long
    lag: float = math.inf  # of records behind our clock: their node's clock may be another
    count: int = 0  # steps of this attempt
    _pauses: set[str] = field(default_factory=set)  # what the ranks stopped for since the last step
    _resumed: set[str] = field(default_factory=set)  # and what they have come back from before, in this attempt
    _limit: tuple[int, float] | None = None

    def take(self, record: dict[str, Any], now: float | None = None) -> None:
        """Take in one record; `now` when it has just been written."""
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):  # a foreign record
            at, rank = float(record["t"]), int(record["rank"])
            if not math.isfinite(at) or at < self.begun:
                return
            if now is not None:
                self.lag = min(self.lag, now - at)
            phase, state = record.get("phase"), record.get("state")
            if phase == "init" and state == "begin" and rank in self.ranks and self.ranks[rank].ledger.steps:
                self.restart(at)
            known = self.ranks.get(rank)
            if known is None:
                known = self.ranks[rank] = Rank(Ledger(str(record.get("host", rank))))
            before = known.ledger.step
            if phase == "train" and known.ledger.base == "train" and not known.ledger.open:
                # Nearly every record: its time need not be divided among phases here.
                known.ledger.step, known.ledger.step_at, known.ledger.settled = int(record["step"]), at, at
                known.ledger.steps += 1
            else:
                known.ledger.take(record)
            if phase == "train":
                if before is not None and int(record["step"]) < before:  # the rank itself went back
                    self.restart(at)
                    self.ranks[rank] = known
                self._step(record, rank, known, at)
            elif phase in BUDGETS:
                if not record.get("background"):
                    self._pauses.add(str(phase))
                if state == "end":
                    self._learn(str(phase), record)

    def restart(self, at: float) -> None:
        """Another attempt: its ranks are others; what phases take is still known."""
        self.ranks.clear()
        self.seconds.clear()
        self.losses.clear()
        self.last_step = self.last_at = self.bad = None
        self.bad_ranks.clear()
        self._pauses.clear()
        self._resumed.clear()
        self.begun, self.count = max(self.begun, at), 0

    def budget(self, phase: str) -> float:
        """How long a phase of this job may last."""
        rule = BUDGETS[phase]
        seen = self.longest.get(phase)
        return rule.unseen_s if seen is None else max(rule.times * seen, rule.least_s)

    def step_limit(self) -> float:
        """How long there may be no step while ranks train."""
        if self._limit is None or self._limit[0] != self.count:  # between two steps it is the same
            self._limit = (self.count, self._step_limit())
        # The first step after the first evaluation (or save, …) of an attempt may compile or refill queues, as the
        # very first steps do; from the second on the job's usual steps are the measure.
        return self._limit[1] if self._pauses <= self._resumed else max(self._limit[1], FEW_STEPS_S)

    def _step_limit(self) -> float:
        steady = self.steady()
        limit = step_limit(steady) if len(steady) else FIRST_STEP_S
        if self.last_step is not None and self._beside_pause(self.last_step + 1):
            limit = pause_limit(limit, self.longest.get("checkpoint"))
        return limit

    def steady(self) -> Floats:
        """Durations of the remembered steps without saves, evaluations and warm-up."""
        return np.fromiter(self.seconds, np.float64, len(self.seconds))

    def quiet(self, now: float) -> Quiet | None:
        """What is going on while no step ends; None where there is nothing to wait for."""
        training = {r: k for r, k in self.ranks.items() if k.ledger.phase != DONE}
        if not training:
            return None
        off = [(r, k.ledger) for r, k in training.items() if k.ledger.phase in BUDGETS]
        if off:
            # As long as one of them is within its time, the others may be waiting for it.
            left = [(self.budget(k.phase) - (now - (k.phase_at or now)), r, k) for r, k in off]
            _, _, last = max(left, key=lambda each: each[0])
            same = tuple(sorted(r for r, k in off if k.phase == last.phase))
            return Quiet(last.phase, last.phase_at or now, self.budget(last.phase), same)
        waiting = tuple(sorted(r for r, k in training.items() if DATA_WAIT in k.ledger.open))
        # A step that follows a save begins when the save has ended.
        begun = [k.ledger.phase_at or now for k in training.values() if DATA_WAIT not in k.ledger.open]
        since = max([self.last_at or 0.0, *begun]) or now
        return Quiet(DATA_WAIT if waiting else "train", since, self.step_limit(), waiting)

    def silent(self, quiet: Quiet, now: float) -> float:
        """For how long, by the clock of the node that wrote the records."""
        skew = self.lag if math.isfinite(self.lag) else 0.0
        return now - quiet.since - skew

    def host(self, rank: int) -> str:
        """Where a rank runs."""
        known = self.ranks.get(rank)
        return known.ledger.host if known else ""

    def _step(self, record: dict[str, Any], rank: int, known: Rank, at: float) -> None:
        step = int(record["step"])
        wait = number(record.get("data_wait_s"))
        if wait is not None and math.isfinite(wait):
            known.wait += 0.2 * (wait - known.wait)
            known.usual_wait += 0.01 * (wait - known.usual_wait)
        self._values(record, rank, step, at)
        if self.last_step is not None and step <= self.last_step:
            return
        seconds = number(record.get("seconds"))
        if seconds is None and self.last_at is not None:
            seconds = at - self.last_at
        self.last_step, self.last_at, self.count = step, at, self.count + 1
        beside = self._beside_pause(step)
        if seconds is not None and math.isfinite(seconds) and self.count > WARM_UP_STEPS:
            if not (self._pauses or beside):
                self.seconds.append(seconds)
            elif beside and len(self.seconds) and seconds > 2.0 * self.seconds[-1]:
                self.longest["checkpoint"] = max(self.longest.get("checkpoint", 0.0), seconds)
        self._resumed |= self._pauses
        if self._pauses:  # a rank's own phase may have been open all the while, and be open still
            self._pauses = {k.ledger.phase for k in self.ranks.values() if k.ledger.phase in BUDGETS}

    def _values(self, record: dict[str, Any], rank: int, step: int, at: float) -> None:
        found = {tag: number(record.get(tag)) for tag in ("loss", "grad_norm")}
        wrong = [tag for tag, value in found.items() if value is not None and not math.isfinite(value)]
        if wrong:
            self.bad = self.bad or (at, step, rank, wrong[0])
            self.bad_ranks.add(rank)
        elif found["loss"] is not None and self.bad is not None and step > self.bad[1] + 3 and rank in self.bad_ranks:
            self.bad_ranks.discard(rank)
            self.bad = self.bad if self.bad_ranks else None
        loss = found["loss"]
        if loss is not None and math.isfinite(loss) and (not self.losses or step > self.losses[-1][0]):
            self.losses.append((step, loss))

    def _learn(self, phase: str, record: dict[str, Any]) -> None:
        seconds = number(record.get("seconds"))
        if seconds is not None and math.isfinite(seconds):
            self.longest[phase] = max(self.longest.get(phase, 0.0), seconds)
        step = number(record.get("step"))
        if phase == "checkpoint" and step is not None and (not self.saves or step > self.saves[-1]):
            self.saves.append(int(step))

    def _beside_pause(self, step: int) -> bool:
        return step > 1 and any(step % period in (0, 1) for period in self.periods)
