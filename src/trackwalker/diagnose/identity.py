"""Does this database belong to this job? Asked before any of its numbers is believed."""

from __future__ import annotations

from trackwalker.logs.facts import LogFacts
from trackwalker.telemetry.client import host_of
from trackwalker.telemetry.quality import Check
from trackwalker.telemetry.store import Telemetry

_FEWEST = 5  # steps known to both
_SAME = 0.02  # the log rounds a loss to three digits


def check_identity(telemetry: Telemetry, log: LogFacts) -> Check | None:
    """Compare hosts and losses of the database with those of the log; None where there is nothing to compare."""
    metrics, (begin, end) = telemetry.metrics(), telemetry.range()
    presence = next((m for m in ("hw_procs_running", "hw_gpu_power_watts", "hw_rank_up") if m in metrics), None)
    if presence is not None and log.hosts:
        query = f"count by (host, instance) (last_over_time({presence}[{max(1, round(end - begin))}s] @ {end:.3f}))"
        seen = {host_of(s.labels) for s in telemetry.instant(query, end)}
        if seen and not seen & set(log.hosts):
            names = ", ".join(sorted(str(h) for h in seen)[:4])
            return Check("identity", False, (), f"the database holds other hosts ({names}, …) than the log", query)
    if not {"tb_step", "tb_learning_loss"} <= metrics:
        return None
    recorded = _recorded(telemetry, begin, end)
    told = log.steps.losses
    both = [s for s in recorded if s in told and recorded[s] == recorded[s] and told[s] == told[s]]
    if len(both) < _FEWEST:
        return None
    # Two runs of one program share their first losses roughly; most of many must agree to the rounding.
    agree = sum(abs(recorded[s] - told[s]) <= _SAME * max(abs(told[s]), 0.1) for s in both)
    ok = agree >= 0.5 * len(both)
    says = "" if ok else f"only {agree} of {len(both)} losses in the database are those of the log"
    return Check("identity", ok, (), says, "tb_learning_loss")


def _recorded(telemetry: Telemetry, begin: float, end: float) -> dict[int, float]:
    """Loss by step: both series of a step carry the same time."""
    losses = {
        round(float(t), 3): float(v)
        for _, ts, vs in telemetry.raw("tb_learning_loss", begin, end)
        for t, v in zip(ts, vs, strict=True)
    }
    steps = {
        round(float(t), 3): int(v)
        for _, ts, vs in telemetry.raw("tb_step", begin, end)
        for t, v in zip(ts, vs, strict=True)
    }
    return {steps[t]: losses[t] for t in steps if t in losses}
