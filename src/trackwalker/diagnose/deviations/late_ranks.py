"""Whose steps end late: where no metric deviates, the moments at which the ranks end the same steps may."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trackwalker.diagnose.accounts.accounts import MOST
from trackwalker.diagnose.case import Case
from trackwalker.diagnose.episodes.symptoms import Symptoms
from trackwalker.record.timeline import Floats
from trackwalker.stats.segments import robust_sigma
from trackwalker.telemetry.client import Telemetry, host_of

_STEP, ENDED = "train_step", "train_last_step_timestamp_seconds"
_MOST_RANKS = 512  # whose moments are read one by one
_FEW = 16  # ranks
_FEWEST_STEPS = 8  # that several ranks were seen to end, slow and at full speed
_SURE = 4.0  # standard errors
Moments = Mapping[int, float]  # of a rank: when each step that was seen ended


@dataclass(frozen=True)
class Late:
    """A rank that ends its steps late since the run is slow, and what that rests on."""

    host: str
    rank: str
    before_s: float  # behind the others, at full speed
    during_s: float
    others_s: float  # the most by which any other rank fell back
    steps: int
    since: float

    @property
    def says(self) -> str:
        """The finding in a sentence of its own numbers."""
        return (
            f"rank {self.rank} on {self.host} ends its steps {self.during_s:.3g} s behind the others while slow, "
            f"{self.before_s:.3g} s at full speed; no other rank fell back by more than {self.others_s:.3g} s"
        )


def late_rank(case: Case, symptoms: Symptoms) -> Late | None:
    """The one rank that ends its steps late by as much as the steps became longer; None where there is none."""
    telemetry, slow = case.telemetry, symptoms.slow
    if telemetry is None or not slow or not {_STEP, ENDED} <= telemetry.metrics():
        return None
    ranks = _moments(case, telemetry)
    if not 3 <= len(ranks) <= _MOST_RANKS:
        return None
    seen = sorted({step for moments in ranks.values() for step in moments})
    # Looks at different moments show different steps: between two that were seen the ends lie on a line.
    steps = np.array(seen)
    ends = np.array([np.interp(steps, list(m), list(m.values()), np.nan, np.nan) for m in ranks.values()])
    told = np.isfinite(ends).all(axis=0)
    if not told.any():
        return None
    own = np.array([[step in m for step in seen] for m in ranks.values()])
    middle = np.median(ends, axis=0)  # which one of few moves along with itself
    others = [np.median(np.delete(ends, i, 0), axis=0) for i in range(len(ends))] if len(ends) <= _FEW else middle
    behind = np.where(own, ends - others, np.nan)[:, told]
    steps = steps[told]
    worst = max(slow, key=lambda p: (p.end - p.start) * (1.0 - symptoms.full / p.seconds))
    inside = (steps >= worst.first_step) & (steps <= worst.last_step)
    fast = np.any([(steps >= p.first_step) & (steps <= p.last_step) for p in symptoms.phases if not p.slow], axis=0)
    before, during = behind[:, fast], behind[:, inside]
    fewest = np.minimum(np.isfinite(before).sum(axis=1), np.isfinite(during).sum(axis=1))
    known = np.flatnonzero(fewest >= _FEWEST_STEPS)
    if len(known) < 3:
        return None
    was, came = (np.nanmedian(x[known], axis=1) for x in (before, during))  # clocks differ: only changes count
    fell, error = came - was, np.array([_error(before[i]) + _error(during[i]) for i in known])
    order = np.argsort(-fell)
    first, second = int(order[0]), float(fell[order[1]])
    lost = worst.seconds - symptoms.full
    if fell[first] < MOST * lost or second > MOST * fell[first] or fell[first] < _SURE * error[first]:
        return None
    host, rank = list(ranks)[known[first]]
    count = int(fewest[known[first]])
    return Late(host, rank, float(was[first]), float(came[first]), max(second, 0.0), count, worst.start)


def _error(values: Floats) -> float:
    own = values[np.isfinite(values)]
    return robust_sigma(own) / float(np.sqrt(len(own)))


def _moments(case: Case, telemetry: Telemetry) -> dict[tuple[str, str], dict[int, float]]:
    """By host and rank: when the steps ended that looks at both gauges showed."""
    begin, end = telemetry.range()
    shown: dict[str, dict[tuple[str, str], tuple[Floats, Floats]]] = {_STEP: {}, ENDED: {}}
    for metric, rows in shown.items():
        for labels, times, values in telemetry.raw(metric, begin, end):
            host = host_of(labels)
            if host in case.trusted or not case.hosts:
                rows[str(host), labels.get("rank", "")] = (times, values)
    out: dict[tuple[str, str], dict[int, float]] = {}
    for who in shown[_STEP].keys() & shown[ENDED].keys():
        (times, steps), (at, ends) = shown[_STEP][who], shown[ENDED][who]
        _, mine, theirs = np.intersect1d(np.round(times, 3), np.round(at, 3), return_indices=True)
        told = zip(steps[mine].astype(int).tolist(), ends[theirs].tolist(), strict=True)
        out[who] = dict(sorted(told))
    return dict(sorted(out.items()))
