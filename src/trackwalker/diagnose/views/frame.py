"""What frames a verdict: the job, the state of its recording, what the diagnosis cost; and what it loses: secrets."""

from __future__ import annotations

import time
from collections import Counter

from trackwalker.diagnose.accounts.accounts import Account
from trackwalker.diagnose.case import Case
from trackwalker.diagnose.episodes.symptoms import Symptoms
from trackwalker.diagnose.verdict import AccountRow, Cost, DataQuality, JobRef, Verdict
from trackwalker.job.scrub import Scrubber
from trackwalker.record.status import Recording, Status
from trackwalker.telemetry.client import Question
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
    record = case.triage.record
    return JobRef(id=job.id, dir=where, nodes=record.nodes, gpus=record.gpus(_recorded_gpus(case)).gpus)


def size_asks(case: Case) -> list[list[Question]]:
    """What the size of the job is taken from, where the recording knows."""
    if case.telemetry is None or "hw_gpu_power_watts" not in case.telemetry.metrics():
        return []
    query = "count by (host) (count by (host, gpu) (last_over_time(hw_gpu_power_watts[1h])))"
    return [[(query, case.telemetry.range()[1])]]


def _recorded_gpus(case: Case) -> int | None:
    """How many GPUs the recording saw: those of its ranks where it says which these are, else all of the machine."""
    asked = size_asks(case)
    if case.telemetry is None or not asked:
        return None
    seen = case.telemetry.by_host(*asked[0][0])
    owned = Counter(machine for machine, _ in case.topology.owners)
    return int(sum(owned[host] or count for host, count in seen.items())) or None


def cost_of(case: Case, begin: float) -> Cost:
    """What the diagnosis took."""
    telemetry = case.telemetry
    return Cost(
        seconds=round(time.perf_counter() - begin, 3),
        queries=telemetry.queries if telemetry else 0,
        bytes_read=case.bytes_read + (telemetry.bytes_read if telemetry else 0),
    )


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


def account_row(account: Account) -> AccountRow:
    """Where an episode's lost time went, as the verdict has it."""
    shares, lost = {name: round(share, 3) for name, share in account.shares.items()}, round(account.lost_s, 3)
    return AccountRow(episode=account.episode, steps=list(account.steps), lost_s=lost, shares=shares)


_SAYING = ("summary", "causes", "ruled_out", "untestable", "evidence", "actions", "data_quality", "failure")


def without_secrets(verdict: Verdict, scrubber: Scrubber) -> Verdict:
    """The verdict as it may be shown, saved and sent."""
    said = verdict.model_dump(by_alias=True)
    cleaned = {name: scrubber.clean_document(said[name]) for name in _SAYING}
    if all(cleaned[name] == said[name] for name in _SAYING):
        return verdict
    return Verdict.model_validate({**said, **cleaned})
