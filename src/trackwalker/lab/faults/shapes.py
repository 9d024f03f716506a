"""How faults grow, come and go: what several of them share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np

from trackwalker.lab.faults.base import Place
from trackwalker.lab.joblog import glog
from trackwalker.lab.sheet.overlays import Shape
from trackwalker.lab.world import Floats, Run


def grown_by_step(run: Run, first: int, last: int, power: float) -> Floats:
    """Per step: how far something has grown, 0 before `first`, 1 at `last`."""
    index = np.arange(run.spec.steps) + run.first
    return np.clip((index - first + 1) / max(1, last - first), 0.0, 1.0) ** power


def grown_in_time(since: float, until: float, power: float) -> Shape:
    """The same growth in time."""
    return lambda t: np.clip((t - since) / max(until - since, 1.0), 0.0, 1.0) ** power


def filled(run: Run, text: str, host: str, time: float) -> str:
    """A line as this host writes it: with its own clock, its task and the rank of its fourth GPU."""
    rank, clock = run.hosts.index(host), time + run.spec.clock_skew_s.get(host, 0.0)
    moment = datetime.fromtimestamp(clock, UTC)
    names = {
        "host": host,
        "rank": str(rank),
        "grank": str(rank * run.spec.gpus + 3),
        "ip": f"10.4.7.{rank % 250 + 4}",
        "job": run.job_id,
        "step": str(run.first + len(run.ends)),
        "glog": glog(clock),
        "iso": moment.strftime("%Y-%m-%d %H:%M:%S,%f")[:-3],
        "sys": moment.strftime("%b %d %H:%M:%S"),
    }
    for name, value in names.items():
        text = text.replace("{" + name + "}", value)
    return text.rstrip("\n")


def cooler_when_waiting(run: Run) -> float:
    """Degrees that a GPU would be cooler if it did nothing but wait."""
    p = run.profile
    return (p.active_w - p.spin_w) / (p.active_w - p.idle_w) * (p.hot_c - 38.0)


def lost_since(run: Run, begin: int) -> Callable[[Floats], Floats]:
    """By time: the share of a step that is lost against full speed."""
    lost = 1.0 - 1.0 / run.factor[: max(1, len(run.ends))]
    since = run.time_of(begin)
    return lambda t: np.where(t >= since, lost[np.clip(np.searchsorted(run.ends, t), 0, len(lost) - 1)], 0.0)


def slows_over(run: Run, begin: Place, over: float, factor: float) -> int:
    """Steps become slower from `begin` on over a share of the run and stay so."""
    first, n = run.at(begin), run.spec.steps
    index = np.arange(n) + run.first
    grown = 1.0 + (factor - 1.0) * np.clip((index - first + 1) / max(1.0, over * n), 0.0, 1.0)
    run.factor = np.maximum(run.factor, np.where(index >= first, grown, 1.0))
    return first


def grown_factors(run: Run, first: int, last: int, factor: float, over: float) -> Floats:
    """Factors of steps [first, last): from 1 to `factor` within a share `over` of the run, then level."""
    steps = np.arange(max(0, last - first)) + 1.0
    grown: Floats = 1.0 + (factor - 1.0) * np.clip(steps / max(1.0, over * run.spec.steps), 0.0, 1.0)
    return grown


def steps_running(run: Run) -> Callable[[Floats], Floats]:
    """1 while steps run, 0 while all wait for a save."""

    def shape(t: Floats) -> Floats:
        busy = ((t >= run.steps_from) & (t < run.work_end)).astype(float)
        for start, end, _ in run.saves:
            busy[(t >= start) & (t < end)] = 0.0
        return busy

    return shape


def lost_while_computing(run: Run) -> Callable[[Floats], Floats]:
    """The share of a step that is lost against full speed, by time; nothing while a save is written."""
    lost, computing = 1.0 - 1.0 / run.factor[: max(1, len(run.ends))], steps_running(run)
    return lambda t: computing(t) * lost[np.clip(np.searchsorted(run.ends, t), 0, len(lost) - 1)]


def window_starts(run: Run, begin: Place, end: Place, times: int, steps: int) -> list[int]:
    """Where some windows of steps begin, evenly over a part of the run."""
    places = np.linspace(run.at(begin), max(run.at(begin), run.at(end) - steps - 1), times)
    return [int(p) for p in places]


def slows_until(run: Run, begin: Place, over: float, factor: float) -> tuple[int, int]:
    """Steps become slower from `begin` on, over a share of the run, and stay so."""
    first = run.at(begin)
    full = min(run.at(1.0), first + max(1, round(over * run.spec.steps)))
    index = np.arange(run.spec.steps) + run.first
    grown = np.clip((index - first + 1) / (full - first), 0.0, 1.0)
    run.factor = np.maximum(run.factor, np.where(index >= first, 1.0 + (factor - 1.0) * grown, 1.0))
    return first, full


def sway(period_s: float, phase: float) -> Shape:
    def shape(t: Floats) -> Floats:
        return np.sin(2 * np.pi * t / period_s + phase)

    return shape


def at_work(run: Run, since: float) -> list[tuple[float, float]]:
    """The stretches after a moment in which the GPUs compute: what lies between the saves."""
    parts, begin = [], since
    for start, end, _ in run.saves:
        if end > begin:
            parts.append((begin, max(begin, start)))
            begin = max(begin, end)
    return [(a, b) for a, b in [*parts, (begin, run.work_end)] if b > a]
