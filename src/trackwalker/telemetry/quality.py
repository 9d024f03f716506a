"""Is the recording itself to be trusted? Asked before any host is called clean."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from trackwalker.telemetry.coverage import PRESENCE, find_gaps
from trackwalker.telemetry.store import Telemetry

_GHOST_WINDOW_S = 600
_GHOST_SAMPLES = 10
_GHOST_LEAST_S, _GHOST_SHARE = 180, 0.15  # of a short run
# No scrape takes exactly as long as the one before, and a kernel that runs switches between tasks all the time.
_NEVER_STILL = ("hw_scrape_duration_seconds", "hw_context_switches_total")
_MOVING = "hw_gpu_power_watts"
_CARD = ("hw_gpu_utilization_percent", _MOVING, "hw_gpu_temperature_celsius", "hw_gpu_clock_mhz")
_BUSY = 50  # per cent of the time
_GAP_S = 600
_AWAY_S, _AWAY_SHARE = 300.0, 0.05  # Prometheus looks back 5 minutes: what is longer, no graph bridges; of the run
_HOLE = 3.0  # times the host's usual interval
_GAP_SHARE = 0.15  # of the run: shorter ones happen in every cluster and hide nothing


@dataclass(frozen=True)
class Check:
    """One check: whether it passed, and the hosts that fail it."""

    name: str
    ok: bool
    hosts: tuple[str, ...] = ()
    says: str = ""
    query: str = ""  # what gives the finding back


def check_quality(
    telemetry: Telemetry | None, hosts: list[str], end: float | None, recorded: bool, finished: bool = False
) -> list[Check]:
    """All checks for a job whose expected hosts and end are known, and whether it worked to its end."""
    if telemetry is None:
        says = "the database cannot be read" if recorded else "the job was not recorded"
        return [Check("telemetry", False, (), says)]
    begin, last = telemetry.range()
    at = min(last, end) if end is not None else last
    checks = [
        _coverage(telemetry, hosts, begin, last),
        _ghosts(telemetry, hosts, begin, at),
        _gaps(telemetry, hosts, begin, at, finished),
    ]
    if end is not None:
        early = end - last
        limit = max(60.0, 0.05 * (end - begin))
        says = f"samples end {early:.0f} s before the job does" if early > limit else ""
        checks.append(Check("reaches-end", early <= limit, (), says))
    return checks


def _coverage(telemetry: Telemetry, hosts: list[str], begin: float, end: float) -> Check:
    metric = next((m for m in PRESENCE if m in telemetry.metrics()), None)
    if metric is None:
        return Check("host-coverage", False, (), "no host metrics were collected")
    window = max(1, round(end - begin))
    seen = telemetry.by_host(f"max by (host) (max_over_time({metric}[{window}s]))", end)
    absent = tuple(h for h in hosts if h not in seen)
    says = f"{len(absent)} of {len(hosts)} hosts never reported {metric}" if absent else ""
    return Check("host-coverage", not absent, absent, says)


def _ghosts(telemetry: Telemetry, hosts: list[str], begin: float, at: float) -> Check:
    """A stuck exporter, or a stuck part of it, repeats its last values with fresh times."""
    known = telemetry.metrics()
    looks = [(_GHOST_WINDOW_S, _still(m, _GHOST_WINDOW_S)) for m in _NEVER_STILL if m in known]
    if known.issuperset(_CARD):
        # A card that works has a power, a heat and a clock that move; what it shows when it stops is an idle card's.
        still = " * on (host) ".join(_still(m, _GHOST_WINDOW_S) for m in _CARD)
        busy = f"(avg by (host) (avg_over_time({_CARD[0]}[{_GHOST_WINDOW_S}s])) > bool {_BUSY})"
        looks.append((_GHOST_WINDOW_S, f"{still} * on (host) {busy}"))
    short = max(_GHOST_LEAST_S, round(_GHOST_SHARE * (at - begin)))
    if short < _GHOST_WINDOW_S and {_NEVER_STILL[0], _MOVING} <= known:
        # Of a run of minutes ten minutes are all: there a part of it counts, where no card's power moves either.
        besides = f" * on (host) (max by (host) (changes({_MOVING}[{short}s])) == bool 0)"
        looks.append((short, _still(_NEVER_STILL[0], short) + besides))
    for seconds, still in looks:
        query = ghost_query(still, begin, at, seconds)
        shares = telemetry.by_host(query, at)
        if frozen := tuple(sorted(h for h, n in shares.items() if n > 0 and (not hosts or h in hosts))):
            says = f"{', '.join(frozen)}: the exporter repeated the same values for {seconds} s or more"
            return Check("ghost-data", False, frozen, says, query)
    if not looks:
        return Check("ghost-data", True, (), "not checked: nothing that always moves was collected")
    return Check("ghost-data", True, (), "", query)


def _still(metric: str, seconds: int) -> str:
    """Whether nothing of a metric moved on a host in so many seconds, though it was asked often enough."""
    window = f"[{seconds}s]"
    moved, asked = f"max by (host) (changes({metric}{window}))", f"max by (host) (count_over_time({metric}{window}))"
    return f"({moved} == bool 0) * on (host) ({asked} >= bool {_GHOST_SAMPLES})"


def ghost_query(still: str, begin: float, end: float, window: int = _GHOST_WINDOW_S) -> str:
    """Whether an expression was true at any look between two times, in steps of half its window."""
    return f"max by (host) (max_over_time(({still})[{max(1, round(end - begin))}s:{window // 2}s] @ {end:.3f}))"


def _gaps(telemetry: Telemetry, hosts: list[str], begin: float, at: float, finished: bool) -> Check:
    """Hosts that were scraped clearly less often than the others, though they answer again or their job went on."""
    metric = next((m for m in PRESENCE if m in telemetry.metrics()), None)
    if metric is None or at - begin < 2 * _GAP_S:
        return Check("gaps", True, (), "not checked: nothing to count")
    query = f"max by (host) (count_over_time({metric}[{max(1, round(at - begin))}s] @ {at:.3f}))"
    counts = {h: n for h, n in telemetry.by_host(query, at).items() if not hosts or h in hosts}
    if (everybody := _nobody_recorded(telemetry, metric, begin, at)) is not None:
        return everybody
    if len(counts) < 2:
        return Check("gaps", True, (), "not checked: too few hosts")
    usual = sorted(counts.values())[len(counts) // 2]
    back = telemetry.by_host(f"max by (host) (count_over_time({metric}[{_GAP_S}s] @ {at:.3f}))", at)
    lost = {h: (1.0 - n / usual) * (at - begin) for h, n in counts.items() if usual and (finished or h in back)}
    suspects = sorted(h for h, s in lost.items() if s >= _GAP_S)
    # Fewer samples may also be a slower grid: what counts are the host's own holes, where they are much of the run.
    silent = {h: _silent_for(telemetry, metric, h, begin, at) for h in suspects}
    holes = tuple(h for h in suspects if silent[h] >= _least_gap(begin, at))
    fewest = min((counts[h] for h in holes), default=0.0)
    says = f"{', '.join(holes)}: only {fewest:.0f} of the usual {usual:.0f} samples" if holes else ""
    return Check("gaps", not holes, holes, says, query)


def _least_gap(begin: float, at: float) -> float:
    return max(_GAP_S, _GAP_SHARE * (at - begin))


def _silent_for(telemetry: Telemetry, metric: str, host: str, begin: float, at: float) -> float:
    """Seconds in holes of a host's samples, by the host's own grid, at the end too; an exporter may begin late."""
    times = [t for _, t, _ in telemetry.raw(f"{metric}{{host={json.dumps(host)}}}", begin, at)]
    if not times:
        return at - begin
    apart = np.diff(np.unique(np.concatenate([*times, [at]])))
    return float(apart[apart > _HOLE * np.median(apart)].sum())


def _nobody_recorded(telemetry: Telemetry, metric: str, begin: float, at: float) -> Check | None:
    """Whether the recorder itself was away: no host has a sample for many minutes, before and after all have."""
    holes = [(max(a, begin), min(b, at)) for a, b in find_gaps(telemetry)]
    longest = max(holes, key=lambda hole: hole[1] - hole[0], default=(0.0, 0.0))
    seconds = math.floor(longest[1] - longest[0])
    if seconds < max(_AWAY_S, _AWAY_SHARE * (at - begin)):  # of one host it may be chance, of all it is none
        return None
    query = f"count(count_over_time({metric}[{seconds - 1}s] @ {longest[1] - 0.5:.3f})) or vector(0)"
    begins = datetime.fromtimestamp(longest[0], UTC).strftime("%H:%M:%S")
    says = f"no host was recorded for {seconds} s from {begins} UTC: the recorder was away"
    return Check("gaps", False, (), says, query)
