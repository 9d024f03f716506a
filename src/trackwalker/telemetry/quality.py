"""Is the recording itself to be trusted? Asked before any host is called clean."""

from __future__ import annotations

from dataclasses import dataclass

from trackwalker.telemetry.store import Telemetry

_PRESENCE = ("hw_rank_up", "hw_procs_running", "hw_gpu_power_watts")  # what every recorded host has at least one of
_GHOST_WINDOW_S = 600
_GHOST_SAMPLES = 10


@dataclass(frozen=True)
class Check:
    """One check: whether it passed, and the hosts that fail it."""

    name: str
    ok: bool
    hosts: tuple[str, ...] = ()
    says: str = ""


def check_quality(telemetry: Telemetry | None, hosts: list[str], end: float | None, recorded: bool) -> list[Check]:
    """All checks for a job whose expected hosts and end are known."""
    if telemetry is None:
        says = "the database cannot be read" if recorded else "the job was not recorded"
        return [Check("telemetry", False, (), says)]
    begin, last = telemetry.range()
    at = min(last, end) if end is not None else last
    checks = [_coverage(telemetry, hosts, begin, last), _ghosts(telemetry, hosts, at)]
    if end is not None:
        early = end - last
        limit = max(60.0, 0.05 * (end - begin))
        says = f"samples end {early:.0f} s before the job does" if early > limit else ""
        checks.append(Check("reaches-end", early <= limit, (), says))
    return checks


def _coverage(telemetry: Telemetry, hosts: list[str], begin: float, end: float) -> Check:
    metric = next((m for m in _PRESENCE if m in telemetry.metrics()), None)
    if metric is None:
        return Check("host-coverage", False, (), "no host metrics were collected")
    window = max(1, round(end - begin))
    seen = telemetry.by_host(f"max by (host) (max_over_time({metric}[{window}s]))", end)
    absent = tuple(h for h in hosts if h not in seen)
    says = f"{len(absent)} of {len(hosts)} hosts never reported {metric}" if absent else ""
    return Check("host-coverage", not absent, absent, says)


def _ghosts(telemetry: Telemetry, hosts: list[str], at: float) -> Check:
    """A stuck exporter repeats its last values with fresh times; a real scrape never takes exactly as long twice."""
    metric = "hw_scrape_duration_seconds"
    if metric not in telemetry.metrics():
        return Check("ghost-data", True, (), f"not checked: {metric} was not collected")
    changes = telemetry.by_host(f"changes({metric}[{_GHOST_WINDOW_S}s])", at)
    counts = telemetry.by_host(f"count_over_time({metric}[{_GHOST_WINDOW_S}s])", at)
    frozen = tuple(sorted(h for h, n in changes.items() if n == 0 and counts.get(h, 0) >= _GHOST_SAMPLES))
    says = f"{', '.join(frozen)}: values frozen for {_GHOST_WINDOW_S} s" if frozen else ""
    return Check("ghost-data", not frozen, frozen, says)
