"""Symptoms call playbooks, playbooks test, the smallest set of causes that explains the rest is the diagnosis."""

from __future__ import annotations

import time
from dataclasses import dataclass

from trackwalker.diagnose import heartbeat
from trackwalker.diagnose.case import Case, Opener, open_case
from trackwalker.diagnose.clock import utc
from trackwalker.diagnose.confidence import with_confidence
from trackwalker.diagnose.evidence import EvidenceBook
from trackwalker.diagnose.examine import Examination, examine
from trackwalker.diagnose.logcause import playbooks_for
from trackwalker.diagnose.playbook import Playbook, load_playbooks
from trackwalker.diagnose.progress import Throughput, progress_of, throughput
from trackwalker.diagnose.roles import assign_roles, undisputed
from trackwalker.diagnose.status import status_of
from trackwalker.diagnose.story import Story
from trackwalker.diagnose.storyteller import tell
from trackwalker.diagnose.symptoms import KEEN, SOFT, Symptoms, find_symptoms
from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.verdict import (
    Action,
    Cause,
    Cost,
    DataQuality,
    JobRef,
    Magnitude,
    Onset,
    Outcome,
    Role,
    RuledOut,
    Untestable,
    Verdict,
    Window,
)
from trackwalker.job.layout import Job
from trackwalker.telemetry.quality import Check

_TOLD_PHASES = 3  # in one sentence
_TOLD_GPUS = 4


@dataclass(frozen=True)
class Diagnosis:
    """A verdict, the pictures behind it, and what was damaged in the evidence."""

    verdict: Verdict
    story: Story
    damage: list[str]


def diagnose(
    job: Job, playbooks: list[Playbook] | None = None, opener: Opener | None = None, seen: Triage | None = None
) -> Diagnosis:
    """Diagnose one job from what is on disk; the job is not touched. A server has its database and triage at hand."""
    begin = time.perf_counter()
    with open_case(job, opener, seen) as case:
        return diagnose_case(case, playbooks, begin)


def diagnose_case(case: Case, playbooks: list[Playbook] | None = None, begin: float | None = None) -> Diagnosis:
    """Diagnose a job that is open already."""
    begin = time.perf_counter() if begin is None else begin
    books = playbooks if playbooks is not None else load_playbooks()
    symptoms = find_symptoms(case)
    # A watchdog's word for a hang that was too short to be a stall still counts, where nothing else would be asked.
    asked = {p.id for p in books if p.id != _primary_cause(case) or _called(p, symptoms)}
    books = [*books, *playbooks_for(case.triage.failures, asked)]
    look = _faint(case, books, symptoms) or _look(case, books, symptoms)
    symptoms, evidence, speed, examinations = look.symptoms, look.evidence, look.speed, look.examinations
    causes, leading, outcome = look.causes, look.leading, look.outcome
    verdict = Verdict(
        job=_job_ref(case),
        window=Window(start=utc(case.start), end=utc(case.end)),
        status=status_of(case, symptoms),
        outcome=outcome,
        summary=_summary(outcome, leading, case, symptoms, speed, _unhealthy(examinations, evidence)),
        causes=causes,
        ruled_out=_ruled_out(examinations),
        untestable=_untestable(examinations),
        evidence=evidence.items,
        actions=_actions(leading, speed),
        progress=progress_of(case, symptoms),
        data_quality=_quality(case.checks, case),
        cost=_cost(case, begin),
    )
    verdict = with_confidence(verdict)
    return Diagnosis(verdict, tell(case, symptoms, causes, leading), list(case.damage))


def _primary_cause(case: Case) -> str | None:
    return case.triage.primary.cause if case.triage.primary is not None else None


@dataclass(frozen=True)
class _Look:
    """One look at the case: what is wrong, what was tested, what was found."""

    symptoms: Symptoms
    evidence: EvidenceBook
    speed: Throughput
    examinations: list[Examination]
    causes: list[Cause]
    leading: list[Examination]

    @property
    def outcome(self) -> Outcome:
        return _outcome(self.causes, self.leading, self.symptoms)


def _look(case: Case, books: list[Playbook], symptoms: Symptoms) -> _Look:
    evidence = EvidenceBook()
    speed = throughput(case, symptoms, evidence)
    examinations = [examine(p, case, symptoms, evidence) for p in books if _called(p, symptoms)]
    causes, leading = _causes(examinations, case, symptoms, speed)
    return _Look(symptoms, evidence, speed, examinations, causes, leading)


def _faint(case: Case, books: list[Playbook], plain: Symptoms) -> _Look | None:
    """A change of speed too small to be trouble by itself, where a measured cause on named hosts fits it.

    In a job with one rank there is nobody else that it could be.
    """
    if plain.names - SOFT:
        return None
    symptoms = find_symptoms(case, KEEN)
    if not symptoms.slow:
        return None
    look = _look(case, books, symptoms)
    named = [e for e in look.leading if e.hosts or len(case.hosts) == 1]
    fits = [e for e in named if "slow" in e.playbook.symptoms and not e.log_only]
    return look if look.outcome == "incident" and len(fits) == len(look.leading) else None


def _called(playbook: Playbook, symptoms: Symptoms) -> bool:
    wanted, trouble = set(playbook.symptoms), symptoms.names - SOFT
    if wanted & symptoms.names or ("none" in wanted and not trouble):
        return True
    return bool(playbook.screen) and trouble <= {"cancelled"}


def _causes(
    examinations: list[Examination], case: Case, symptoms: Symptoms, speed: Throughput
) -> tuple[list[Cause], list[Examination]]:
    """The found causes with their roles, roots first, and the examinations of the roots."""
    found = [e for e in examinations if e.state == "found" and e.playbook.outcome != "healthy"]
    found = undisputed(found, examinations)
    roles = assign_roles(found, symptoms)
    roots = [e for e in found if roles.get(e.playbook.id) == "root"]
    # What the log itself calls an aftermath is not worth a line of its own; triage lists it. Who struck the blow is.
    worth = [e for e in found if e.playbook.id in roles and (e in roots or not e.log_role or e.playbook.mechanism)]
    told = sorted(worth, key=lambda e: (e not in roots, e.playbook.id))
    causes = [_cause(e, roles[e.playbook.id], case, symptoms, speed) for e in told]
    return causes, roots or [e for e in examinations if e.state == "found" and e.playbook.outcome == "healthy"]


def _cause(examination: Examination, role: Role, case: Case, symptoms: Symptoms, speed: Throughput) -> Cause:
    onset, slow = examination.onset, "slow" in examination.playbook.symptoms and bool(symptoms.slow)
    magnitude = None
    if role == "root" and slow and speed.change is not None:
        magnitude = Magnitude(of=speed.of, **{"from": speed.before, "to": speed.after}, change=round(speed.change, 3))
    evidence = examination.evidence + (speed.evidence if slow and role in ("root", "contributing") else [])
    step = case.timeline.step_at(onset) if case.timeline is not None and onset is not None else None
    return Cause(
        cause=examination.playbook.id,
        role=role,
        confidence=0.0,  # weighed when the whole verdict is there
        hosts=examination.hosts,
        gpus=sorted(map(case.topology.gpu_name, examination.gpus)),
        devices=examination.devices,
        onset=Onset(time=utc(onset), step=step, uncertainty_s=_uncertainty(case)) if onset is not None else None,
        magnitude=magnitude,
        evidence=list(dict.fromkeys(evidence)),
    )


def _uncertainty(case: Case) -> float:
    """How well a moment is known: one step, or a start-up's worth where step times were only reckoned."""
    if case.timeline is None or not case.timeline.exact:
        return 900.0
    return round(max(1.0, float(case.timeline.seconds[-20:].mean())), 1)


def _outcome(causes: list[Cause], leading: list[Examination], symptoms: Symptoms) -> Outcome:
    if any(c.role == "root" for c in causes):
        return "expected" if all(e.playbook.outcome == "expected" for e in leading) else "incident"
    if any(e.playbook.outcome == "healthy" for e in leading):
        return "healthy"
    return "insufficient-evidence"


def _summary(
    outcome: Outcome,
    leading: list[Examination],
    case: Case,
    symptoms: Symptoms,
    speed: Throughput,
    unhealthy: list[str],
) -> str:
    if not leading or outcome == "insufficient-evidence":
        return _undecided(case, symptoms, speed, unhealthy)
    last = int(case.timeline.steps[-1]) if case.timeline is not None and len(case.timeline) else None
    silent = f"{symptoms.stall.until - symptoms.stall.since:.0f} s" if symptoms.stall else ""
    words = {
        "last_step": "?" if last is None else str(last),
        "after": "before the first step" if last is None else f"after step {last}",
        "speed": speed.words if symptoms.slow else "the run has one speed throughout, so what it costs is not known",
        "accused": "",
        "control": "",
        **heartbeat.words(case),
        "silent": silent,
        "silent_for": f"; silent for {silent}" if silent else "",
    }
    parts = []
    for examination in leading:
        hosts = _culprits(examination, symptoms) + _whose_gpus(examination, case)
        book = examination.playbook
        sentence = (len(case.hosts) == 1 and book.summary_alone) or book.summary
        parts.append(sentence.format(hosts=hosts, **words).strip())
    return " ".join(parts)


def _culprits(examination: Examination, symptoms: Symptoms) -> str:
    """The culprits in words, with the phases they are at fault in where these differ."""
    phases = examination.hosts_by_span
    if len({tuple(who) for who in phases.values()}) < 2 or len(phases) > _TOLD_PHASES:
        return ", ".join(examination.hosts) or "no single host"
    slow = symptoms.slow
    told = [f"{', '.join(who)} (steps {slow[i].first_step}..{slow[i].last_step})" for i, who in phases.items() if who]
    return " and ".join(told)


def _whose_gpus(examination: Examination, case: Case) -> str:
    """Behind the hosts: their GPUs at fault, and the ranks that use them, where they are known and few."""
    gpus = examination.gpus if examination.playbook.acts_on == "gpu" else []
    known = [(gpu, case.topology.ranks_of(*gpu.rsplit("/", 1))) for gpu in gpus]
    if not 0 < len(known) <= _TOLD_GPUS or not all(ranks for _, ranks in known):
        return ""
    told = (f"GPU {case.topology.gpu_name(gpu)}, rank {' and '.join(map(str, ranks))}" for gpu, ranks in known)
    return f" ({'; '.join(told)})"


def _unhealthy(examinations: list[Examination], evidence: EvidenceBook) -> list[str]:
    """What speaks against a run that looks well otherwise."""
    ids = {
        i for e in examinations if e.playbook.outcome == "healthy" and e.state == "refuted" for i in e.counter_evidence
    }
    return [item.says for item in evidence.items if item.id in ids]


def _undecided(case: Case, symptoms: Symptoms, speed: Throughput, unhealthy: list[str]) -> str:
    seen = list(unhealthy)
    if symptoms.stall is not None:
        silent = symptoms.stall.until - symptoms.stall.since
        seen.append(f"no step completed in the last {silent:.0f} s after step {symptoms.stall.step}")
    if symptoms.slow:
        seen.append(speed.words)
    if "failed" in symptoms.names:
        seen.append("the run failed")
    if not seen and case.run is not None and case.log.summary is None and not case.live:
        seen.append("the run and its agent are gone without a last word")
    if not seen and case.log.ends_mid_line and case.log.summary is None and not case.live:
        seen.append("the log breaks off in the middle of a line, without a last word")
    if not seen:
        seen.append("nothing was recorded that would tell how the run went")
    missing = "" if case.telemetry is not None else "; record the next run with --observe"
    return f"Something is wrong ({'; '.join(seen)}) but what would decide the cause was not collected{missing}."


def _ruled_out(examinations: list[Examination]) -> list[RuledOut]:
    out = []
    for e in examinations:
        if e.state in ("clean", "refuted") and e.playbook.outcome == "incident" and e.counter_evidence:
            out.append(RuledOut(cause=e.playbook.id, evidence=e.counter_evidence))
    return out


def _untestable(examinations: list[Examination]) -> list[Untestable]:
    return [
        Untestable(cause=e.playbook.id, missing=e.missing)
        for e in examinations
        if e.state == "untestable" and e.playbook.outcome == "incident"
    ]


def _actions(leading: list[Examination], speed: Throughput) -> list[Action]:
    actions = []
    for examination in leading:
        for a in examination.playbook.actions:
            if a.when_hosts is None or a.when_hosts == bool(examination.hosts):
                hosts = examination.hosts if a.when_hosts else []
                why = a.why
                if a.do in ("exclude-nodes", "drain-node") and hosts and speed.change is not None and len(leading) == 1:
                    gain = f", {100 * speed.gain:+.1f} %" if speed.gain is not None else ""
                    why += f"; without them about {speed.full} is to be expected{gain}"
                actions.append(Action(do=a.do, hosts=hosts, why=why, risk=a.risk, needs_approval=a.needs_approval))
    return actions


def _quality(checks: list[Check], case: Case) -> list[DataQuality]:
    rows = [DataQuality(check=c.name, hosts=list(c.hosts), ok=c.ok, says=c.says) for c in checks]
    return rows + [DataQuality(check="damage", ok=False, says=d) for d in case.damage]


def _job_ref(case: Case) -> JobRef:
    job = case.job
    place = job.dir or job.log
    nodes = len(case.hosts) or None
    header = case.log.header.get("NNODES", "")
    if header.isdigit():
        nodes = int(header)
    return JobRef(
        id=job.id, dir=f"{place.parent.name}/{place.name}" if place else job.id, nodes=nodes, gpus=_gpus(case)
    )


def _gpus(case: Case) -> int | None:
    if case.telemetry is None or "hw_gpu_power_watts" not in case.telemetry.metrics():
        return None
    end = case.telemetry.range()[1]
    counts = case.telemetry.instant("count(count by (host, gpu) (last_over_time(hw_gpu_power_watts[1h])))", end)
    return int(counts[0].value) if counts else None


def _cost(case: Case, begin: float) -> Cost:
    telemetry = case.telemetry
    return Cost(
        seconds=round(time.perf_counter() - begin, 3),
        queries=telemetry.queries if telemetry else 0,
        bytes_read=case.bytes_read + (telemetry.bytes_read if telemetry else 0),
    )
