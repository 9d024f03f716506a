"""What is wrong with a job now: pure functions of its course, its alerts and its standing; nothing reads or waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from trackwalker.job.ending import of_events, of_log, tail_of
from trackwalker.job.slurm.states import JobState
from trackwalker.launch.job_state import Standing
from trackwalker.logs.failures.step_numbers import sustained_jump
from trackwalker.stats.segments import Floats
from trackwalker.watch.detect.phases import BUDGETS, DATA_WAIT, Course, Quiet
from trackwalker.watch.incident import Condition, Incident
from trackwalker.watch.notify.message import Severity

_SHORT_S, _SHORT_STEPS, _SHORT_BASE, _SHORT_RATIO = 20.0, 8, 30, 1.25
_LONG_S, _LONG_STEPS, _LONG_BASE, _LONG_RATIO = 600.0, 60, 120, 1.05
_BACK = 1.1  # a slow job is well again below this many times its earlier step time
_DIVERGED_STEPS = 10  # a loss that left its level must stay away so long
_SAVES_MISSED = 3
# The watcher calls these itself, from the same facts, with a second signal.
_OWN_ALERTS = frozenset(
    ["TrainingStalled", "CollectiveHung", "RankStopped", "LossNotFinite", "CheckpointTooOld", "CheckpointStuck"]
)
_TELEMETRY_ALERTS = frozenset(["HostGone", "CollectorWedged", "CollectorStale"])


# Whether a job that its scheduler calls failed ran out of memory: as the kernel told the agent, or Slurm the log.
def told_apart(seen: Standing, events: list[dict[str, Any]], log: Path | None) -> Standing:
    """The same end, as `oom` where that is what it was; `events` are those of the last attempt."""
    if seen.state != "failed" or not (of_events(events).memory or (log is not None and of_log(tail_of(log)).memory)):
        return seen
    known = JobState("", "oom")
    return replace(seen, state=known.state, exit=known.exit, meaning=known.meaning)


def killed_ranks(events: list[dict[str, Any]]) -> set[Any]:
    """Ranks that the kernel killed for want of memory, as their agents saw it."""
    return {event.get("rank") for event in events if event.get("kind") == "kernel-kill"}


@dataclass(frozen=True)
class Alert:
    """One firing alert of the job's own Prometheus."""

    name: str
    severity: Severity
    host: str
    summary: str
    since: float


@dataclass
class Signs:
    """Everything the detectors look at, for one job."""

    course: Course
    events: list[dict[str, Any]] = field(default_factory=list)  # of the current attempt, the telling ones
    attempt: int = 0
    alerts: list[Alert] = field(default_factory=list)
    metrics_gone_since: float | None = None  # Prometheus answered before and does not any more
    judged: int = -1  # up to which step the step times were judged
    slow: Condition | None = None  # and what came of that: it changes with a step only
    diverged: Condition | None = None


def detect(signs: Signs, now: float, opened: Mapping[str, Incident]) -> list[Condition]:
    """Every condition that holds now; `opened` are the job's open incidents by kind."""
    course = signs.course
    if signs.judged != course.count:
        if signs.judged // _DIVERGED_STEPS != course.count // _DIVERGED_STEPS or signs.diverged is not None:
            signs.diverged = _diverged(course)
        signs.slow, signs.judged = _slow(course, opened.get("slow") or opened.get("data-slow")), course.count
    found = [
        _silence(course, course.quiet(now), now),
        signs.slow,
        _not_a_number(course),
        signs.diverged,
        _no_checkpoint(course),
        _metrics_gone(signs, now),
    ]
    return (
        [c for c in found if c is not None] + list(_failures(signs.events, signs.attempt)) + list(_alerts(signs.alerts))
    )


def _silence(course: Course, quiet: Quiet | None, now: float) -> Condition | None:
    if quiet is None:
        return None
    silent = course.silent(quiet, now)
    if silent <= quiet.limit:
        return None
    facts = {"silent for": f"{silent:.0f} s", "limit": f"{quiet.limit:.0f} s"}
    step = f"step {course.last_step}" if course.last_step is not None else "no step yet"
    facts["last step"] = step
    who = _name(course, quiet.ranks)
    shared: dict[str, Any] = {"since": quiet.since, "facts": facts, "silent_s": silent, "limit_s": quiet.limit}
    if quiet.phase == DATA_WAIT:
        title = f"{who} waits for a batch that does not come"
        return Condition("data-stall", title, ranks=quiet.ranks, severity="critical", **shared)
    if quiet.phase == "checkpoint":
        title = f"saving has taken {silent:.0f} s ({who})"
        return Condition("checkpoint", title, subject="stuck", ranks=quiet.ranks, severity="critical", **shared)
    if quiet.phase in BUDGETS:
        title = f"{quiet.phase} has taken {silent:.0f} s, longer than it may ({who})"
        return Condition("hang", title, ranks=quiet.ranks, severity="critical", **shared)
    title = f"no rank has completed a step for {silent:.0f} s after {step}"
    return Condition("hang", title, severity="critical", **shared)


def _slow(course: Course, known: Incident | None) -> Condition | None:
    seconds = course.steady()
    if known is not None:
        return _still_slow(course, seconds, known)
    found = _shift(seconds, _SHORT_S, _SHORT_STEPS, _SHORT_BASE, _SHORT_RATIO, 0.95, 0.5)
    found = found or _shift(seconds, _LONG_S, _LONG_STEPS, _LONG_BASE, _LONG_RATIO, 0.9, 0.8)
    if found is None or course.last_at is None:
        return None
    before, after, steps = found
    since = course.last_at - steps * after
    facts = {"before": f"{before:.4g} s", "now": f"{after:.4g} s", "slow steps seen": str(steps)}
    late = [r for r, k in sorted(course.ranks.items()) if k.wait - k.usual_wait > 0.5 * (after - before)]
    if late:
        title = f"steps take {after:.2f} s instead of {before:.2f} s: batches come late to {_name(course, late)}"
        return Condition("data-slow", title, since, facts=facts, ranks=tuple(late))
    return Condition("slow", f"steps take {after:.2f} s instead of {before:.2f} s", since, facts=facts)


def _still_slow(course: Course, seconds: Floats, known: Incident) -> Condition | None:
    """Against the speed before the incident: after a while a slow job's past is slow, too."""
    before = float(known.facts["before"].split()[0])
    recent = _recent(seconds, _SHORT_S, _SHORT_STEPS)
    now = float(np.median(seconds[-recent:])) if len(seconds) >= _SHORT_STEPS else np.inf
    if now <= _BACK * before:
        return None
    ranks = tuple(known.ranks)
    return Condition(known.kind, known.title, known.since, facts=dict(known.facts), ranks=ranks)


def _shift(
    seconds: Floats, span_s: float, steps: int, base_steps: int, ratio: float, quantile: float, share: float
) -> tuple[float, float, int] | None:
    """Earlier and recent step time and the number of recent steps, where the recent ones are slower for good.

    The job's own noise sets the measure: so many of the recent steps must be slower than nearly all earlier ones.
    """
    recent = _recent(seconds, span_s, steps)
    base, last = seconds[:-recent], seconds[-recent:]
    if len(base) < base_steps or len(last) < steps or float(last.sum()) < span_s:
        return None
    before = float(np.median(base))
    slower = last > max(ratio * before, float(np.quantile(base, quantile)))
    # Without its longest step: one hiccup is not a phase.
    after = float(np.sort(last)[:-1].mean())
    if float(slower.mean()) < share or after <= ratio * before:
        return None
    return before, float(np.median(last[slower])), int(slower.sum())


def _recent(seconds: Floats, span_s: float, steps: int) -> int:
    back = np.cumsum(seconds[::-1])
    return max(steps, int(np.searchsorted(back, span_s)) + 1)


def _not_a_number(course: Course) -> Condition | None:
    if course.bad is None:
        return None
    at, step, rank, tag = course.bad
    alone = len(course.bad_ranks) == 1 < len(course.ranks)
    who = f"rank {rank} ({course.host(rank)}) alone" if alone else f"{len(course.bad_ranks)} ranks"
    ranks = tuple(sorted(course.bad_ranks)) if alone else ()
    facts = {"step": str(step), "reported by": who}
    title = f"{'loss' if tag == 'loss' else 'gradient norm'} is not a number from step {step} on"
    return Condition("loss", title, at, subject="nan", severity="critical", facts=facts, ranks=ranks)


def _diverged(course: Course) -> Condition | None:
    if len(course.losses) < 4 * _DIVERGED_STEPS or course.last_at is None:
        return None
    steps = np.fromiter((s for s, _ in course.losses), np.int64, len(course.losses))
    losses = np.fromiter((v for _, v in course.losses), np.float64, len(course.losses))
    at = sustained_jump(steps, losses)
    if at is None or len(losses) - at < _DIVERGED_STEPS:
        return None
    facts = {"from step": str(steps[at]), "best level": f"{losses[:at].min():.3f}", "now": f"{losses[-1]:.3f}"}
    since = course.last_at - float(sum(list(course.seconds)[-(len(losses) - at) :]))
    title = f"the loss left its level at step {steps[at]} and did not come back"
    return Condition("loss", title, since, subject="diverged", facts=facts)


def _no_checkpoint(course: Course) -> Condition | None:
    if len(course.saves) < 2 or course.last_step is None or course.last_at is None:
        return None
    usual = float(np.median(np.diff(np.array(course.saves))))
    age = course.last_step - course.saves[-1]
    if usual <= 0 or age <= _SAVES_MISSED * usual + 1:
        return None
    facts = {"last checkpoint": f"step {course.saves[-1]}", "usual interval": f"{usual:.0f} steps"}
    title = f"the last complete checkpoint is {age} steps old"
    # The moment the next one was due does not move while none comes.
    since = course.last_at - (age - usual) * (course.seconds[-1] if course.seconds else 0.0)
    return Condition("checkpoint", title, since, subject=f"after {course.saves[-1]}", facts=facts)


def _metrics_gone(signs: Signs, now: float) -> Condition | None:
    since = signs.metrics_gone_since
    if since is None or now - since < 60.0:
        return None
    title = "the job's Prometheus no longer answers: what is not recorded cannot be found later"
    return Condition("telemetry", title, since, subject="prometheus")


def _failures(events: list[dict[str, Any]], attempt: int) -> Iterator[Condition]:
    """One "failed first" for an attempt: each node writes down who was first there, and one of them was."""
    killed = killed_ranks(events)
    failed = [event for event in events if event.get("kind") == "first-failure"]
    first = min(failed, key=lambda event: float(event.get("t", 0.0)), default=None)
    for event in events:
        data, at = event.get("data") or {}, float(event.get("t", 0.0))
        if event is first:
            rank, host, cause = event.get("rank"), event.get("host"), str(data.get("cause", "failed"))
            cause = "the kernel killed it for want of memory" if rank in killed else cause
            ranks = (int(rank),) if isinstance(rank, int) else ()
            facts = {"rank": str(rank), "host": str(host), "exit code": str(data.get("exit"))}
            text = f"rank {rank} ({host}) failed first: {cause}"
            yield Condition(
                "failure", text, at, subject=str(attempt), severity="critical", facts=facts, ranks=ranks, once=True
            )
        elif event.get("kind") == "ray-lost":
            yield Condition("telemetry", "Ray is gone and was given up", at, subject=f"ray {at:.3f}", once=True)


def _alerts(alerts: list[Alert]) -> Iterator[Condition]:
    """One condition for each alert, however many hosts have it."""
    by_name: dict[str, list[Alert]] = {}
    for alert in alerts:
        if alert.name not in _OWN_ALERTS:
            by_name.setdefault(alert.name, []).append(alert)
    for name, same in sorted(by_name.items()):
        hosts = sorted({a.host for a in same if a.host})
        kind = "telemetry" if name in _TELEMETRY_ALERTS else "fault"
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        facts = {"alert": name, "hosts": ", ".join(hosts[:8]) + (" …" if len(hosts) > 8 else "")}
        title, severity = f"{same[0].summary or name}{more}", same[0].severity
        yield Condition(kind, title, min(a.since for a in same), subject=name, severity=severity, facts=facts)


def _name(course: Course, ranks: tuple[int, ...] | list[int]) -> str:
    if not ranks or len(ranks) == len(course.ranks):
        return "all ranks"
    named = ", ".join(f"rank {r} ({course.host(r)})" for r in list(ranks)[:3])
    return named + (f" and {len(ranks) - 3} more" if len(ranks) > 3 else "")
