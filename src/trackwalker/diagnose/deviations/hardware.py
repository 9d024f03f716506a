"""What GPUs of a kind do at work: the yardstick of a run that has none in itself."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.episodes.symptoms import Symptoms
from trackwalker.diagnose.facts.log_facts import Answer, add_facts
from trackwalker.job.gpus import gpus

_NAMED = ("hw_gpu_info", "ray_node_gpus_utilization")  # whose labels tell the kind of the cards
_BUSY = ("ray_node_gpus_utilization", "hw_gpu_utilization_percent")
_BUSY_PERCENT = 90.0
_LOW_POWER = 0.85  # of the least that a busy chip draws
_LOW_CLOCK = 0.75  # of the chip's highest clock; at its own power limit a busy chip goes lower, but draws that limit


class Profile(BaseModel):
    """One kind of GPU."""

    model_config = ConfigDict(extra="forbid")

    limit_w: float
    busy_w: float
    peak_mhz: float


def profiles() -> dict[str, Profile]:
    """The known kinds, by the part of the name that tells them."""
    return {name: Profile(**row["at_work"]) for name, row in gpus().items() if "at_work" in row}


def profile_of(case: Case, at: float) -> tuple[str, Profile] | None:
    """The kind of the job's GPUs; None where the recording does not say, or says several."""
    telemetry = case.telemetry
    if telemetry is None:
        return None
    metric = next((m for m in _NAMED if m in telemetry.metrics()), None)
    if metric is None:
        return None
    told = {v for s in telemetry.instant(f"last_over_time({metric}[1h])", at) for v in s.labels.values()}
    known = [(name, p) for name, p in profiles().items() if any(name in value for value in told)]
    return known[0] if len(known) == 1 else None


def held_back_everywhere(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Busy GPUs, all of them, draw far less and run far slower than their kind does at work.

    Low power alone is a light load, a low clock alone the chip's own power limit; both together at full utilisation
    mean that something holds the chips back, though not what: a lower power limit, locked clocks, a slow level.
    """
    telemetry, window = case.telemetry, symptoms.windows.get("steady")
    if telemetry is None or not window:
        return Answer(None)
    busy = next((m for m in _BUSY if m in telemetry.metrics()), None)
    if busy is None or not {"hw_gpu_power_watts", "hw_gpu_clock_mhz"} <= telemetry.metrics():
        return Answer(None)
    end, width = window[0].end, f"{max(1, round(window[0].seconds))}s"
    kind = profile_of(case, end)
    if kind is None:
        return Answer(None)
    name, profile = kind
    power = f"max(quantile_over_time(0.5, hw_gpu_power_watts[{width}] @ {end:.3f}))"
    clock = f'max(quantile_over_time(0.5, hw_gpu_clock_mhz{{type="sclk"}}[{width}] @ {end:.3f}))'
    work = f"min(quantile_over_time(0.5, {busy}[{width}] @ {end:.3f}))"
    told = {}
    for query, least, most in (
        (power, 0.0, _LOW_POWER * profile.busy_w),
        (clock, 0.0, _LOW_CLOCK * profile.peak_mhz),
        (work, _BUSY_PERCENT, 100.0),
    ):
        got = telemetry.instant(query, end)
        if not got:
            return Answer(None)
        told[query] = got[0].value
        if not least <= told[query] <= most:
            return Answer(False)  # power is asked first: of a run that is well, nothing else
    drawn = book.add("metric", power, f"no {name} draws more than {told[power]:.0f} W at work", {"max": told[power]})
    runs = book.add("metric", clock, f"no {name} runs faster than {told[clock]:.0f} MHz", {"max": told[clock]})
    return Answer(True, (drawn, runs))


add_facts(held_back_everywhere)
