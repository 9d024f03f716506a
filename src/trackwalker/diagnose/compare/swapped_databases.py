"""Do two databases belong to their jobs, or are they swapped? Twins share hosts and losses, never their seconds."""

from __future__ import annotations

from trackwalker.diagnose.case import Case
from trackwalker.record.clock import utc
from trackwalker.telemetry.quality import Check
from trackwalker.telemetry.store import Telemetry

_SECONDS = "tb_perf_step_time_seconds"
_FEWEST = 10  # steps known to both
_ROUNDING = 0.0005  # relative: the log prints three digits after the point
_CLOCKS_S = 900.0  # the submitting machine's clock and the nodes'


def foreign_database(case: Case, other: Case) -> Check | None:
    """The finding that a job's database is not its own: by its identity check, its times, or its step seconds."""
    known = case.check("identity")
    if known is not None and not known.ok:
        return known
    own = case.telemetry
    if own is None:
        return None
    return _other_time(case, own) or _other_seconds(case, other, own)


def _other_time(case: Case, own: Telemetry) -> Check | None:
    """Samples from before the job was submitted or after it ended can only be another job's."""
    begin, end = own.range()
    if case.start is None or case.end is None or case.live:
        return None
    if end < case.start - _CLOCKS_S or begin > case.end + _CLOCKS_S:
        says = (
            f"the database holds samples from {utc(begin)} to {utc(end)}, "
            f"the job ran from {utc(case.start)} to {utc(case.end)}"
        )
        shown = "up" if "up" in own.metrics() else sorted(own.metrics())[0]
        return Check("identity", False, (), says, f"max(timestamp({shown} @ {end:.3f}))")
    return None


def _other_seconds(case: Case, other: Case, own: Telemetry) -> Check | None:
    agree = _agreement(case, own)
    if agree is None or agree >= 0.5 or other.telemetry is None:
        return None
    crossed = _agreement(case, other.telemetry)
    if crossed is None or crossed < 0.8:
        return None  # not the other's either: its step times may be taken at another place
    says = (
        f"{100 * agree:.0f} % of the step times in the database of {case.job.id} are those of its log, "
        f"but {100 * crossed:.0f} % of those in the database of {other.job.id} are"
    )
    return Check("identity", False, (), says, _SECONDS)


def _agreement(case: Case, telemetry: Telemetry) -> float | None:
    """The share of recorded step times that the log tells, too."""
    if not {"tb_step", _SECONDS} <= telemetry.metrics() or not len(case.log.steps):
        return None
    begin, end = telemetry.range()
    by_time: list[dict[float, float]] = []
    for metric in ("tb_step", _SECONDS):
        samples = telemetry.raw(metric, begin, end)
        by_time.append({round(float(t), 3): float(v) for _, ts, vs in samples for t, v in zip(ts, vs, strict=True)})
    steps, seconds = by_time
    recorded = {int(steps[t]): seconds[t] for t in sorted(steps.keys() & seconds.keys())}
    told: dict[int, float] = dict(zip(case.log.steps.step.tolist(), case.log.steps.seconds.tolist(), strict=True))
    both = sorted(recorded.keys() & told.keys())
    if len(both) < _FEWEST:
        return None
    return sum(abs(recorded[s] - told[s]) <= max(0.0015, _ROUNDING * told[s]) for s in both) / len(both)
