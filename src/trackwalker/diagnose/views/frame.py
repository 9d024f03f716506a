"""What frames a verdict: the job, the state of its recording, what the diagnosis cost."""

from __future__ import annotations

import time

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.verdict import Cost, DataQuality, JobRef
from trackwalker.telemetry.quality import Check


def quality_of(checks: list[Check], case: Case) -> list[DataQuality]:
    """What was found of the recording itself, and what of the evidence is damaged."""
    rows = [DataQuality(check=c.name, hosts=list(c.hosts), ok=c.ok, says=c.says) for c in checks]
    return rows + [DataQuality(check="damage", ok=False, says=d) for d in case.all_damage]


def job_ref(case: Case) -> JobRef:
    """Which job it is, and how large."""
    job = case.job
    place = job.dir or job.log
    where = f"{place.parent.name}/{place.name}" if place else job.id
    return JobRef(id=job.id, dir=where, nodes=case.triage.record.nodes, gpus=_gpus(case))


def _gpus(case: Case) -> int | None:
    if case.telemetry is None or "hw_gpu_power_watts" not in case.telemetry.metrics():
        return None
    end = case.telemetry.range()[1]
    counts = case.telemetry.instant("count(count by (host, gpu) (last_over_time(hw_gpu_power_watts[1h])))", end)
    return int(counts[0].value) if counts else None


def cost_of(case: Case, begin: float) -> Cost:
    """What the diagnosis took."""
    telemetry = case.telemetry
    return Cost(
        seconds=round(time.perf_counter() - begin, 3),
        queries=telemetry.queries if telemetry else 0,
        bytes_read=case.bytes_read + (telemetry.bytes_read if telemetry else 0),
    )
