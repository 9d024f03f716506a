"""What every command says about one job, and where two of them disagree."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from trackwalker.agent.standing_now import by_small_log
from trackwalker.diagnose.compare.compare import compare
from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.triage import triage
from trackwalker.diagnose.views.asked import Diagnosis
from trackwalker.fleet.rows import of_triage
from trackwalker.job.journal import read
from trackwalker.job.layout import Job
from trackwalker.launch.job_state import standings
from trackwalker.perf.analysis.report import Options, analyse
from trackwalker.record.phases import Phase
from trackwalker.watch.detect.logtail import LogTail
from trackwalker.watch.detect.phases import Course

# Only diagnose, and compare with it, opens the recording. What the files leave open it may decide: that a run goes on,
# stands or is dead.
_OPEN = {"indeterminate": None, "hanging": {"unknown-death", "running"}}
_OPENS = ("diagnose", "compare")
SLOWER = ("constant-drop", "phased", "gradual")
_SAME = 0.005  # of a step time: the recording may show waits that no step line tells of


@dataclass(frozen=True)
class Said:
    """One command's word on one question."""

    who: str
    what: str
    value: object


def said_of(job: Job) -> Iterator[Said]:
    """Every command's answers."""
    seen = triage(job)
    yield from _answers("triage", seen.status, seen.progress.last_step, seen.progress.step_time_s, seen.record.nodes)
    own = {
        *seen.record.hosts,
        *seen.record.facts.hosts,
        *((r.node for r in seen.record.run.ranks) if seen.record.run else ()),
    }
    yield Said("triage", "strange hosts", [])
    yield Said("triage", "ranks", seen.record.ranks)
    yield Said("triage", "GPUs", seen.goodput.gpus)
    yield Said("triage", "slow phases", slow_phases(seen.record.phases))
    yield Said("triage", "slower", seen.pattern.name in SLOWER)
    yield Said("record", "slower", bool(slow_phases(seen.record.phases)))
    row = of_triage(seen, None)
    yield from _answers("web", row.status, row.last_step, row.step_s, row.nodes)
    yield Said("web", "GPUs", row.gpus)
    diagnosis = diagnose(job)
    verdict, told = diagnosis.verdict, diagnosis.verdict.progress
    yield Said("diagnose", "GPUs", verdict.job.gpus)
    yield Said("diagnose", "slow phases", told_slow(diagnosis))
    named = {host for cause in verdict.causes for host in cause.hosts}
    yield Said("diagnose", "strange hosts", sorted(named - own) if own else [])
    yield from _answers("diagnose", verdict.status, told.last_step, told.step_time_s, verdict.job.nodes)
    if len(seen.record.table):
        report = analyse(job, Options(with_traces=False))
        step_s = report.throughput.step_s if report.throughput else None
        yield from _answers("perf", report.job.status, report.job.last_step, step_s, report.job.nodes)
        yield Said("perf", "ranks", report.job.ranks)
        yield Said("perf", "GPUs", report.goodput.gpus if report.goodput else None)
        levels = report.throughput.levels if report.throughput else []
        yield Said("perf", "slow phases", [(x.first_step, x.last_step) for x in levels if x.slow])
        rows = report.throughput.ranks if report.throughput else []
        yield Said("perf", "strange hosts", sorted({r.host for r in rows if r.host} - own))
        yield Said("watcher", "last step", replayed(job))
    yield from _compared(job, diagnosis)
    (standing,) = standings([job])
    listed = by_small_log(job, standing)
    if not standing.ended and job.run_json is None:
        yield Said("jobs", "status", listed.state)
    if standing.ended and standing.exit is not None:
        yield Said("status", "ended well", standing.exit == 0)
        yield Said("triage", "ended well", seen.status in ("completed", "completed-short"))


def _compared(job: Job, diagnosis: Diagnosis) -> Iterator[Said]:
    """What `compare` says of it as the second of two, the first a healthy run: a trouble of its own stays one."""
    from triage_logs import ending, header, steps

    with TemporaryDirectory() as folder:
        log = Path(folder) / "1-JAX-toy.log"
        log.write_text(header(steps=40) + "".join(steps(n, 2, n, 10.0 + 0.01 * (n % 3)) for n in range(40)) + ending(0))
        found = compare(Job("1", log, None), job).verdict
    told = found.progress
    yield from _answers("compare", found.status, told.last_step, told.step_time_s, found.job.nodes)
    yield Said("triage", "called healthy in spite of its own verdict", False)
    yield Said("compare", "called healthy in spite of its own verdict",
               found.outcome == "healthy" and diagnosis.verdict.outcome == "incident")  # fmt: skip


def told_slow(diagnosis: Diagnosis) -> list[tuple[int, int]]:
    """The slow phases of a diagnosis: as drawn or, where nothing tells the time, as its evidence tells them."""
    if diagnosis.story.phases:
        return slow_phases(diagnosis.story.phases)
    said = [re.match(r"steps (\d+)\.\.(\d+) \(slow\)", e.says) for e in diagnosis.verdict.evidence]
    return [(int(m[1]), int(m[2])) for m in said if m]


def slow_phases(phases: Iterable[Phase]) -> list[tuple[int, int]]:
    """First and last step of the slow ones."""
    return [(p.first_step, p.last_step) for p in phases if p.slow]


def _answers(who: str, status: str | None, last: int | None, step_s: float | None, nodes: int | None) -> Iterator[Said]:
    yield Said(who, "status", status)
    yield Said(who, "last step", last)
    yield Said(who, "step time", step_s)
    yield Said(who, "nodes", nodes)


def replayed(job: Job) -> int | None:
    """The last step that a watcher knows of when it has read all of a job."""
    course, log = Course(), LogTail(job.log) if job.log else None
    records = read(job.progress).items if job.progress else []
    while not records and log is not None:
        found = log.new(1e12)
        for record in found:
            course.take(record)
        if not log.behind:
            break
    for record in records:
        course.take(record)
    return course.last_step


def disagreements(job: Job) -> list[str]:
    """Every question that two commands answer differently."""
    answers: dict[str, dict[str, object]] = {}
    for said in said_of(job):
        answers.setdefault(said.what, {})[said.who] = said.value
    out = []
    for what, by in answers.items():
        first = by["triage"]
        for who, value in by.items():
            if not _agree(what, who, first, value, job.database is not None):
                out.append(f"{job.id}: {what}: triage says {first}, {who} says {value}")
    return out


def _agree(what: str, who: str, first: object, value: object, recorded: bool) -> bool:
    if first == value:
        return True
    if what == "status" and who == "jobs":  # whose words are those of schedulers
        return value == "completed" and first in ("completed-short", "soft-success")
    if what == "status" and who in _OPENS and recorded and first in _OPEN:
        allowed = _OPEN[str(first)]
        return allowed is None or value in allowed
    if what == "GPUs" and who in _OPENS and recorded:
        return first is None  # a recording counts them where no line of the log does
    if what == "slow phases" and who in _OPENS and recorded:
        # A recording has the better clock and shows smaller changes where a measured cause fits: more, never less.
        spans, triages = cast(list[tuple[int, int]], value), cast(list[tuple[int, int]], first)
        return all(any(a <= last and first <= b for a, b in spans) for first, last in triages)
    if what == "step time" and isinstance(first, float) and isinstance(value, float):
        return who in _OPENS and recorded and math.isclose(first, value, rel_tol=_SAME)
    return False
