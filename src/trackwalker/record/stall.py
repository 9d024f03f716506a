"""How long a run may be silent before that is a stall: the one rule for a diagnosis, a triage and a watcher.

The run's own steps are the measure. A save or an evaluation is silence, too, and so is a start; what the clock of the
last step is worth (the ranks' own, an event file's, one that was only reckoned) decides how much is allowed for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trackwalker.logs.facts import LogFacts
from trackwalker.record.masks import Masks, save_period, stands_for
from trackwalker.record.steps import EVENT_LAG_S, Floats
from trackwalker.record.timeline import Timeline
from trackwalker.stats.medians import quantile

STALL_STEPS = 6.0  # how many of its own slow steps a run may be silent
_SLACK_STEPS, _SLACK_S = 3.0, 40.0  # of long steps fewer: a third missed one is called within a minute
_FLOOR_S = 8.0  # sub-second steps: scheduling hiccups last seconds and are not hangs
KNOWN = 15  # steady steps that make a measure
_FEW_TIMES, FEW_STEPS_S = 10.0, 120.0  # of fewer: times the longest, and at least so long
UNSEEN_PAUSE_S = 900.0  # a synchronous save may hold the next step this long; how long this run's take is not known yet
START_UP_S = 900.0  # collective set-up, compile and restore leave no time in most logs
_RECKONED_S = 300.0  # whatever the steps take: what ends a run (exits, core files, a summary) leaves no time either
START_BUDGET_S = 2700.0  # a cold start of a large mixture of experts compiles for half an hour
_LOG_SILENT_S = 1800.0  # a log that goes on without a step: its lines come from anybody


@dataclass(frozen=True)
class Stall:
    """No step from `since` until `until`, far longer than the run's own steps explain."""

    seconds: float
    limit_s: float
    says: str
    step: int | None = None  # the last one that was completed; None where the run never began
    since: float | None = None  # None where only the length of the silence is known
    until: float | None = None
    before_first: str = ""  # no step at all: how far it came (init, params, barrier)


@dataclass(frozen=True)
class Silence:
    """What is known of the time after the last step."""

    until: float | None = None  # now, or when something began to end the run
    last_end: float | None = None  # when the last step ended, where that is known
    lag_s: float = 0.0  # by how much that time may be too early
    unaccounted_s: float | None = None  # wall time that neither steps nor set-up account for
    log_goes_on_s: float | None = None  # how long the log goes on after its last step line
    waited_s: float | None = None  # for the first step, where there is none


def step_limit(steady: Floats) -> float:
    """Seconds of silence that these steady step times do not explain."""
    if not len(steady):
        return START_BUDGET_S
    if len(steady) < KNOWN:
        return max(_FEW_TIMES * float(np.max(steady)), FEW_STEPS_S)
    slow = quantile(steady, 0.99)
    return max(min(STALL_STEPS * slow, _SLACK_STEPS * slow + _SLACK_S), _FLOOR_S)


def pause_limit(limit: float, longest: float | None) -> float:
    """The same where the run stands at a save or an evaluation, of which the longest so far is known or none is."""
    return max(limit, UNSEEN_PAUSE_S) if longest is None else limit + 2.0 * longest


def limit_of(timeline: Timeline, masks: Masks, facts: LogFacts) -> float:
    """How long this run may be silent after the last step it told of."""
    limit, took = step_limit(timeline.seconds[masks.undisturbed(timeline.seconds)]), timeline.seconds
    if timeline.exact:  # many trainers count a save as a part of no step: it lies between two of them
        took = np.fmax(took, np.diff(timeline.ends, prepend=np.nan))
    for reason in pauses_due(timeline, facts):
        seen = took[masks.of(reason)]
        limit = max(limit, pause_limit(limit, float(np.nanmax(seen)) if np.isfinite(seen).any() else None))
    return limit


def pauses_due(timeline: Timeline, facts: LogFacts) -> list[str]:
    """Whether the run stands where a save or an evaluation is due: devices rest there, too."""
    last, saves = int(timeline.steps[-1]), sorted(facts.saves)
    period, since = save_period(facts), 0
    if period is None and len(saves) > 1:  # no setting tells how often it saves: its saves do, where they keep time
        period, since = int(np.min(np.diff(saves))), saves[-1]
        period = None if (np.diff(saves) % period).any() else period
    told = (("checkpoint", period, since), ("eval", facts.number("eval_interval"), 0))
    # A step is told of when the next one or two have begun, and stands for those before it that nobody told of.
    ahead = range(-1, int(stands_for(timeline.steps)[-1]) + 2)
    return [r for r, p, first in told if p and p > 1 and any((last + n - first) % p == 0 for n in ahead)]


def find_stall(
    timeline: Timeline | None, masks: Masks, facts: LogFacts, silence: Silence, all_done: bool
) -> Stall | None:
    """Time without a step that neither the run's own step times nor a save nor its start explain."""
    if all_done:
        return None
    if timeline is None or len(timeline) < 2:
        return _never_started(facts, silence) if timeline is None or not len(timeline) else None
    limit, step = limit_of(timeline, masks, facts), int(timeline.steps[-1])
    if silence.until is not None and silence.last_end is not None:
        silent, limit = silence.until - silence.last_end - facts.coredump_s, limit + silence.lag_s
        says = f"no step for {silent / 60:.0f} minutes" if silent >= 90 else f"no step for {silent:.0f} s"
        found = Stall(silent, limit, says, step, silence.last_end, silence.until)
        return found if silent > limit else None  # the time of the last step is known: no need to reckon
    gap = silence.unaccounted_s
    reckoned = max(limit, _RECKONED_S) + START_UP_S
    if gap is not None and gap > reckoned:
        says = f"{gap / 60:.0f} minutes of wall time are not accounted for by steps or set-up"
        return Stall(gap, reckoned, says, step)
    quiet = silence.log_goes_on_s
    if quiet is not None and quiet > max(_LOG_SILENT_S, limit):
        says = f"the log goes on for {quiet / 60:.0f} minutes without a step"
        return Stall(quiet, max(_LOG_SILENT_S, limit), says, step)
    return None


def lag_of(timeline: Timeline | None, clock_is_event_file: bool) -> float:
    """What the time of the last step is worth: recorded, told by an event file, or reckoned from the job's start."""
    if timeline is not None and timeline.exact:
        return 0.0
    return EVENT_LAG_S if clock_is_event_file else START_UP_S


def _never_started(facts: LogFacts, silence: Silence) -> Stall | None:
    """No step at all after more time than any start-up takes (ST-11 against ST-12)."""
    waited = silence.waited_s
    if waited is None or waited <= START_BUDGET_S or not (facts.header or facts.config):
        return None  # not a log we know the beginning of: its steps may look like nothing we know
    reached = "barrier" if facts.barrier_ranks else "params" if facts.params_ranks else "init"
    says = f"no first step in {waited / 60:.0f} minutes of the training stage"
    return Stall(waited, START_BUDGET_S, says, before_first=reached)
