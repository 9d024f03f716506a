"""The status of a case: the record's rule, with what the recording adds to it."""

from __future__ import annotations

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.episodes.symptoms import Symptoms
from trackwalker.record.status import Recording, Status

_PRESENCE = ("hw_gpu_user_processes", "hw_gpu_power_watts")  # the better witness first


def status_of(case: Case, symptoms: Symptoms) -> Status:
    """How the run stands."""
    recording = None
    if case.telemetry is not None and case.end is not None:
        recording = Recording(_alive(case), "overdue" in symptoms.names, "unfinished-start" in symptoms.names)
    return case.triage.record.status_with(symptoms.stall is not None, case.timeline, recording)


def _alive(case: Case) -> bool | None:
    """Whether some host still reports training processes at the end; None where nothing tells."""
    if case.telemetry is None or case.end is None:
        return None
    reporting = next((m for m in _PRESENCE if m in case.telemetry.metrics()), None)
    if reporting is None:
        return None
    query = f"max by (host) (last_over_time({reporting}[120s] @ {case.end:.3f}))"
    return any(v > 0 for v in case.telemetry.by_host(query, case.end).values())
