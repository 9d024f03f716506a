"""After the playbooks: what else deviates, which causes stand behind others, and whom to look at when none fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.claims import claim_of, downstream, explanation
from trackwalker.diagnose.deviations import Deviation, sweep
from trackwalker.diagnose.episodes import episodes_of
from trackwalker.diagnose.evidence import EvidenceBook
from trackwalker.diagnose.examine import Examination
from trackwalker.diagnose.quantities import graph
from trackwalker.diagnose.symptoms import SOFT, Symptoms
from trackwalker.diagnose.table import cite, name, rows
from trackwalker.diagnose.unclassified import CAUSE, Suspicion, suspect
from trackwalker.diagnose.verdict import Action, Cause, Onset, Role
from trackwalker.diagnose.verdict import Deviation as Row
from trackwalker.record.clock import utc


@dataclass(frozen=True)
class Located:
    """Trouble without a name: the cause that the verdict tells, a sentence, and what to do."""

    cause: Cause
    summary: str
    action: Action
    suspicion: Suspicion


@dataclass(frozen=True)
class SecondLook:
    """The sweep of a case, and what follows from it."""

    deviations: tuple[Deviation, ...] = ()
    behind: Mapping[str, str] = field(default_factory=dict)  # root to the cause that it follows from


def look_again(case: Case, symptoms: Symptoms, found: Sequence[Examination], roles: Mapping[str, Role]) -> SecondLook:
    """Sweep a case that has trouble; one that has none is not searched for some."""
    if case.telemetry is None or not symptoms.names - SOFT:
        return SecondLook()
    swept = sweep(case, episodes_of(case, symptoms))
    roots = [e for e in found if roles.get(e.playbook.id) == "root"]
    others = [e for e in found if e.playbook.id in roles and not e.playbook.mechanism]
    return SecondLook(swept.deviations, downstream(roots, others, swept.deviations, graph()))


def locate(case: Case, look: SecondLook, book: EvidenceBook, step_uncertainty: float, speed: str) -> Located | None:
    """Who deviates since the trouble began, in a run for which no cause was found."""
    telemetry = case.telemetry
    suspicion = suspect(look.deviations, graph()) if telemetry is not None else None
    if suspicion is None or telemetry is None:
        return None
    cited = [(d, c[0]) for d in suspicion.deviations if (c := cite(d, telemetry, book)) is not None]
    if not cited:
        return None
    says = {item.id: item.says for item in book.items}
    where = ", ".join(dict.fromkeys(name(d) for d, _ in cited))
    alone = ", " not in where
    told = "; ".join(dict.fromkeys(says[i].removeprefix(f"{where}: ") if alone else says[i] for _, i in cited))
    since = utc(suspicion.since)
    step = case.timeline.step_at(suspicion.since) if case.timeline is not None else None
    cause = Cause(
        cause=CAUSE,
        role="root",
        confidence=0.0,  # weighed when the whole verdict is there
        hosts=list(suspicion.hosts),
        gpus=[case.topology.gpu_name(gpu) for gpu in suspicion.gpus],
        devices=list(suspicion.devices),
        onset=Onset(time=since, step=step, uncertainty_s=step_uncertainty),
        evidence=[i for _, i in cited],
    )
    summary = f"No known cause fits, but {where} stands out since the trouble began ({speed}): {told}."
    why = f"take a closer look at {where}: {told}; no other host shows it, and no known cause accounts for it"
    action = Action(do="inspect-hosts", hosts=list(suspicion.hosts), why=why, risk="none", needs_approval=False)
    return Located(cause, summary, action, suspicion)


def table(
    case: Case, look: SecondLook, found: Sequence[Examination], roles: Mapping[str, Role], located: Located | None,
    book: EvidenceBook,
) -> list[Row]:  # fmt: skip
    """The strongest deviations, each with the cause that explains it."""
    if case.telemetry is None or not look.deviations:
        return []
    rank = {"root": 0, "contributing": 1, "masked": 1, "consequence": 2}
    told = [e for e in found if roles.get(e.playbook.id) in rank]
    claims = [claim_of(e) for e in sorted(told, key=lambda e: (rank[roles[e.playbook.id]], e.playbook.id))]
    machines = {r.host: r.node for r in case.run.ranks} if case.run is not None else {}
    hosts = set(located.suspicion.hosts) if located is not None else set()
    moved = {q for d in located.suspicion.deviations for q in graph().follows(d.meaning.quantity)} if located else set()

    def explain(d: Deviation) -> str | None:
        by = explanation(d, claims, graph(), machines)
        if by is None and located is not None:
            waits = d.meaning.quantity in graph().waiting
            by = CAUSE if (d.host in hosts and d.meaning.quantity in moved) or waits else None
        return by

    return rows(look.deviations, case.telemetry, book, explain)
