"""Symptoms call playbooks, playbooks test, the smallest set of causes that explains the rest is the diagnosis."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

from trackwalker.diagnose.accounts.accounts import SOME, book_losses, losses_ask
from trackwalker.diagnose.accounts.shares import MEASURED, carried, explained, standing, with_owner
from trackwalker.diagnose.case import Case, Opener, open_case
from trackwalker.diagnose.causes import places, second_look
from trackwalker.diagnose.causes.claims import settled
from trackwalker.diagnose.causes.confidence import with_confidence
from trackwalker.diagnose.causes.detect import answer_ahead
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.causes.examine import Examination, examine
from trackwalker.diagnose.causes.logcause import failure_of, playbooks_for
from trackwalker.diagnose.causes.playbook import Playbook, load_playbooks
from trackwalker.diagnose.causes.roles import assign_roles, said_by_one, undisputed, without
from trackwalker.diagnose.episodes.progress import Throughput, progress_of, throughput
from trackwalker.diagnose.episodes.symptoms import SOFT, Symptoms, find_symptoms
from trackwalker.diagnose.facts import heartbeat, machine_facts
from trackwalker.diagnose.facts.account_facts import IDLENESS
from trackwalker.diagnose.facts.log_facts import visible_change
from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.verdict import (
    Action,
    Cause,
    Onset,
    Outcome,
    Role,
    RuledOut,
    Untestable,
    Verdict,
    Window,
)
from trackwalker.diagnose.views import frame
from trackwalker.diagnose.views.asked import Asked, Diagnosis
from trackwalker.diagnose.views.story import tell
from trackwalker.job.advance import counted
from trackwalker.job.layout import Job
from trackwalker.job.run import ours
from trackwalker.job.scrub import scrubber_of
from trackwalker.record.clock import utc
from trackwalker.record.phases import KEEN, Eye

_NO_PRICE = "it was so at full speed already, so what it costs is not known"
_TOLD_PHASES = 3  # in one sentence
_TOLD_GPUS = 4


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
    named = case.triage.primary.cause if case.triage.primary is not None else None
    asked = {p.id for p in books if p.id != named or _called(p, symptoms)}
    books = [*books, *playbooks_for(case.triage.failures, books, asked)]
    look = _faint(case, books, symptoms) or _look(case, books, symptoms)
    symptoms, evidence, speed, examinations = look.symptoms, look.evidence, look.speed, look.examinations
    again = second_look.look_again(case, symptoms, look.found, look.roles, look.along)
    roles = settled(without(again.beside, look.found, assign_roles(look.found, symptoms), symptoms), again.behind)
    second_look.name_whom_they_wait_for(case, again, look.found, roles, evidence, symptoms.accounts)
    causes, leading = _told(examinations, look.found, roles, case, symptoms, speed)
    outcome = _outcome(causes, leading)
    slowing = sorted((e for e in leading if second_look.slows(e)), key=lambda e: not e.asked(IDLENESS))
    owners = [(e.playbook.id, e.spans) for e in slowing]
    symptoms = replace(symptoms, accounts=with_owner(symptoms.accounts, owners))
    causes = [c.model_copy(update={"explains": explained(symptoms.accounts, c.cause)}) for c in causes]
    all_along = standing(case, symptoms)
    told = [e for e in look.found if e.playbook.id in roles]
    question = second_look.open_question(again, outcome, told, leading, symptoms)
    located = None
    if question is not None:
        located = second_look.locate(
            case, question, symptoms, evidence, _uncertainty(case), _trouble(case, symptoms, speed), examinations
        )
    located = located or places.locate_limit(case, symptoms, leading, evidence)
    located = located or places.locate_wait(case, symptoms, outcome, evidence)
    located = located or places.locate_late(case, symptoms, outcome, evidence)
    located = located or places.locate_unlike(case, symptoms, outcome, evidence)
    unhealthy = _unhealthy(examinations, evidence)
    alone = located is None and question is not None and question.standing == "alone"
    common = places.common_change(case, again, symptoms, evidence, examinations) if alone else ""
    if isinstance(common, second_look.Located):
        located, common = common, ""
    if common:  # long steps in which all hosts changed for the worse are no constant speed
        outcome, leading = "insufficient-evidence", []
    summary, actions = _summary(outcome, leading, case, symptoms, speed, unhealthy), _actions(leading, speed)
    if located is None:
        summary += common
    else:
        causes = _joined(located, causes, symptoms, speed, "contributing" if outcome == "expected" else "consequence")
        outcome = "incident"
        summary = {
            "alone": located.summary,
            "before": f"{located.summary} {summary}",
            "beside": f"{summary} {located.summary}",
        }[located.standing]
        actions = [located.action, *(actions if located.standing == "beside" else [])]
    told_of = {c.cause for c in causes}
    verdict = Verdict(
        job=frame.job_ref(case),
        window=Window(start=utc(case.start), end=utc(case.end)),
        status=frame.status_of(case, symptoms),
        outcome=outcome,
        summary=summary,
        causes=second_look.weighed(case, again, causes, told, located),
        ruled_out=[r for r in _ruled_out(examinations, symptoms, all_along) if r.cause not in told_of],
        untestable=[u for u in _untestable(examinations, all_along) if u.cause not in told_of],
        deviations=second_look.table(case, again, look.found, roles, located, evidence),
        accounts=[frame.account_row(a) for a in symptoms.accounts],
        evidence=evidence.items,
        actions=actions,
        progress=progress_of(case, symptoms),
        data_quality=frame.quality_of(case.checks, case),
        failure=failure_of(case.triage),
        cost=frame.cost_of(case, begin),
    )
    verdict, looked = with_confidence(verdict), Asked.of(case, symptoms, examinations, books)
    shown = frame.without_secrets(verdict, scrubber_of(case.job.log))
    return Diagnosis(shown, tell(case, symptoms, causes, leading), case.all_damage, looked)


@dataclass(frozen=True)
class _Look:
    """One look at the case: what is wrong, what was tested, what was found."""

    symptoms: Symptoms
    evidence: EvidenceBook
    speed: Throughput
    examinations: list[Examination]
    found: list[Examination]
    roles: dict[str, Role]
    along: list[Examination]  # of a slow run what was so before it was slow


def _look(case: Case, books: list[Playbook], symptoms: Symptoms) -> _Look:
    beside = chain(losses_ask(case, symptoms), frame.size_asks(case))
    called = answer_ahead([p for p in books if _called(p, symptoms)], case, symptoms, beside)
    symptoms = replace(symptoms, accounts=book_losses(case, symptoms))
    evidence = EvidenceBook()
    speed = throughput(case, symptoms, evidence)
    examinations = [examine(p, case, symptoms, evidence) for p in counted(called, "causes tested")]
    along = second_look.so_all_along(called, case, symptoms, evidence)
    if any(e.state == "found" and second_look.slows(e) for e in examinations):  # by itself it answers no slow phase
        examinations = second_look.with_those(along, examinations)
    found = [e for e in examinations if e.state == "found" and e.playbook.outcome != "healthy"]
    found = undisputed(found, examinations)
    said_by_one(found, symptoms, case.hosts[0] if case.hosts else "")
    return _Look(symptoms, evidence, speed, examinations, found, assign_roles(found, symptoms), along)


def _faint(case: Case, books: list[Playbook], plain: Symptoms) -> _Look | None:
    """A change of speed too small to be trouble by itself, where a measured cause on named hosts (or the one) fits."""
    trouble = plain.names - SOFT
    if trouble - {"cancelled"}:
        return None
    for eye in (KEEN, MEASURED) if not trouble else (MEASURED,):
        symptoms = find_symptoms(case, eye)
        look = _look(case, books, symptoms) if symptoms.slow else None
        if look is not None:
            causes, leading = _told(look.examinations, look.found, look.roles, case, look.symptoms, look.speed)
            if _outcome(causes, leading) == "incident" and all(_fits(e, look, eye, case) for e in leading):
                return look
    return None


def _fits(cause: Examination, look: _Look, eye: Eye, case: Case) -> bool:
    """Whether a cause is measured well enough for a change of speed that by itself would be called weather."""
    if eye is MEASURED:
        # What rose severalfold on most hosts just where the steps are longer is no weather either.
        everywhere = any(r.fired and r.test.detector == "most-rose" and r.test.role == "require" for r in cause.results)
        return everywhere or carried(look.symptoms.accounts, cause.playbook.id)
    named = bool(cause.hosts) or len(case.hosts) == 1
    return "slow" in cause.playbook.symptoms and named and not cause.log_only


def _called(playbook: Playbook, symptoms: Symptoms) -> bool:
    wanted, trouble = set(playbook.symptoms), symptoms.names - SOFT
    if wanted & symptoms.names or ("none" in wanted and not trouble):
        return True
    return bool(playbook.screen) and trouble <= {"cancelled"}


def _told(
    examinations: list[Examination],
    found: list[Examination],
    roles: dict[str, Role],
    case: Case,
    symptoms: Symptoms,
    speed: Throughput,
) -> tuple[list[Cause], list[Examination]]:
    """The found causes with their roles, roots first, and the examinations of the roots."""
    roots = [e for e in found if roles.get(e.playbook.id) == "root"]
    # What the log itself calls an aftermath is not worth a line of its own; triage lists it. Who struck the blow is.
    worth = [e for e in found if e.playbook.id in roles and (e in roots or not e.log_role or e.playbook.mechanism)]
    told = sorted(worth, key=lambda e: (e not in roots, e.playbook.id))
    causes = [_cause(e, roles[e.playbook.id], case, symptoms, speed, _began(e, roots, told)) for e in told]
    return causes, roots or [e for e in examinations if e.state == "found" and e.playbook.outcome == "healthy"]


def _began(cause: Examination, roots: list[Examination], told: list[Examination]) -> float | None:
    """When it began; the only root not after what came of it: a line in the log tells when something was over."""
    effects = [e.onset for e in told if e.explained_by(cause)] if roots == [cause] and cause.onset is not None else []
    return min((t for t in (cause.onset, *effects) if t is not None), default=None)


def _cause(
    examination: Examination, role: Role, case: Case, symptoms: Symptoms, speed: Throughput, onset: float | None
) -> Cause:
    slow = second_look.slows(examination) and bool(symptoms.slow)
    magnitude = speed.magnitude if role == "root" and slow else None
    evidence = examination.evidence + (speed.evidence if slow and role in ("root", "contributing") else [])
    step = case.timeline.step_at(onset) if case.timeline is not None and onset is not None else None
    blames = examination.playbook.outcome != "expected"  # of what is as it should be, nobody is the culprit
    return Cause(
        cause=examination.playbook.id,
        role=role,
        confidence=0.0,  # weighed when the whole verdict is there
        hosts=examination.hosts if blames else [],
        gpus=sorted(map(case.topology.gpu_name, examination.gpus)) if blames else [],
        devices=examination.devices if blames else [],
        onset=Onset(time=utc(onset), step=step, uncertainty_s=_uncertainty(case)) if onset is not None else None,
        magnitude=magnitude,
        evidence=list(dict.fromkeys(evidence)),
    )


def _joined(
    located: second_look.Located, causes: list[Cause], symptoms: Symptoms, speed: Throughput, behind: Role
) -> list[Cause]:
    """Trouble without a name among the causes found, with what it cost where it alone slowed the run."""
    own = located.causes
    if symptoms.slow and located.standing != "beside":
        magnitude = speed.magnitude
        own = [c.model_copy(update={"magnitude": magnitude, "evidence": [*c.evidence, *speed.evidence]}) for c in own]
    if located.standing == "before":
        causes = [c.model_copy(update={"role": behind}) if c.role == "root" else c for c in causes]
    roots = [c for c in causes if c.role == "root"] if located.standing == "beside" else []
    return [*roots, *own, *(c for c in causes if c not in roots)]


def _uncertainty(case: Case) -> float:
    """How well a moment is known: one step, or a start-up's worth where step times were only reckoned."""
    if case.timeline is None or not case.timeline.exact:
        return 900.0
    return round(max(1.0, float(case.timeline.seconds[-20:].mean())), 1)


def _outcome(causes: list[Cause], leading: list[Examination]) -> Outcome:
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
    silent, seen = f"{symptoms.stall.seconds:.0f} s" if symptoms.stall else "", visible_change(case)
    words = {
        "last_step": "?" if last is None else str(last),
        "after": "before the first step" if last is None else f"after step {last}",
        "speed": speed.words if symptoms.slow else "the run has one speed throughout, so what it costs is not known",
        "accused": "",
        "control": "",
        **heartbeat.words(case),
        "silent": silent,
        "foreign": machine_facts.words(case, symptoms),
        "silent_for": f"; silent for {silent}" if silent else "",
        "visible": "" if seen is None else f" (a lasting change of {100 * seen:.1f} % would show)",
    }
    parts = []
    for examination in leading:
        hosts = _culprits(examination, symptoms) + _whose_gpus(examination, case)
        book = examination.playbook
        sentence = (len(case.hosts) == 1 and book.summary_alone) or book.summary
        own = {"speed": _NO_PRICE} if examination.screened and symptoms.slow else {}
        whose = f" Where: {hosts}." if examination.hosts and "{hosts}" not in sentence else ""
        parts.append(sentence.format(hosts=hosts, **{**words, **own}).strip() + whose)
    return " ".join(parts)


def _culprits(examination: Examination, symptoms: Symptoms) -> str:
    """The culprits in words, with the phases they are at fault in where these differ."""
    phases = examination.hosts_by_span
    if len({tuple(who) for who in phases.values()}) < 2 or len(phases) > _TOLD_PHASES:
        return ", ".join(examination.hosts) or "none identified"
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
    refuted = [e for e in examinations if e.playbook.outcome == "healthy" and e.state == "refuted"]
    return [item.says for item in evidence.items if any(item.id in e.counter_evidence for e in refuted)]


def _undecided(case: Case, symptoms: Symptoms, speed: Throughput, unhealthy: list[str]) -> str:
    seen = "; ".join([*unhealthy, _trouble(case, symptoms, speed, bool(unhealthy))]).removesuffix("; ")
    missing = "" if case.telemetry is not None else "; record the next run with --observe"
    if not seen:
        return f"No trouble is visible, but too little was recorded to say that the run was well{missing}."
    if case.telemetry is None:
        untold = "what would decide the cause was not collected; record the next run with --observe"
        return f"Something is wrong ({seen}) but {untold}."
    return f"Something is wrong ({seen}) but no known cause fits what was recorded, and no host stands out in it."


def _trouble(case: Case, symptoms: Symptoms, speed: Throughput, told: bool = False) -> str:
    """What is visibly wrong, in a phrase."""
    seen = []
    if symptoms.stall is not None:
        silent = symptoms.stall.seconds
        seen.append(f"no step completed in the last {silent:.0f} s after step {symptoms.stall.step}")
    if symptoms.slow:
        seen.append(speed.words)
    if "failed" in symptoms.names:
        seen.append("the run failed")
    if not seen and "uneven" in symptoms.names:
        lost = sum(a.lost_s for a in symptoms.accounts)
        seen.append(f"long steps now and then, {lost:.0f} s of it lost" if lost else "long steps now and then")
    if not (seen or told or case.log.summary is not None or case.live):
        if ours(case.run):
            seen.append("the run and its agent are gone without a last word")
        elif case.log.ends_mid_line:
            seen.append("the log breaks off in the middle of a line, without a last word")
    return "; ".join(seen)


def _ruled_out(examinations: list[Examination], symptoms: Symptoms, all_along: Mapping[str, str]) -> list[RuledOut]:
    out = []
    for e in examinations:
        if (explained(symptoms.accounts, e.playbook.id) or 0.0) >= SOME or e.playbook.id in all_along:
            continue  # its account shows a part of the loss, or of all the time
        if e.state in ("clean", "refuted") and e.playbook.outcome == "incident" and e.counter_evidence:
            out.append(RuledOut(cause=e.playbook.id, evidence=e.counter_evidence))
    return out


def _untestable(examinations: list[Examination], all_along: Mapping[str, str]) -> list[Untestable]:
    out = []
    for e in examinations:
        if e.state != "found" and e.playbook.id in all_along:
            out.append(Untestable(cause=e.playbook.id, missing=[all_along[e.playbook.id]]))
        elif e.state == "untestable" and e.playbook.outcome == "incident":
            out.append(Untestable(cause=e.playbook.id, missing=e.missing))
    return out


def _actions(leading: list[Examination], speed: Throughput) -> list[Action]:
    actions = []
    for examination in leading:
        for a in examination.playbook.actions:
            if a.when_hosts is None or a.when_hosts == bool(examination.hosts):
                hosts = examination.hosts if a.when_hosts else []
                why = a.why
                if a.do in ("exclude-nodes", "drain-node") and hosts and speed.change is not None and len(leading) == 1:
                    gain = f", {100 * speed.gain:+.1f} %" if speed.gain is not None else ""
                    these = "this node" if len(hosts) == 1 else "these nodes"
                    why += f"; expected without {these}: about {speed.full}{gain}"
                actions.append(Action(do=a.do, hosts=hosts, why=why, risk=a.risk, needs_approval=a.needs_approval))
    return actions
