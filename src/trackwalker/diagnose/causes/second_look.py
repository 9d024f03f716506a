"""After the playbooks: what else deviates, which causes stand behind others, and whom to look at when none fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trackwalker.diagnose.accounts.accounts import MOST, SOME, Account
from trackwalker.diagnose.accounts.shares import carried
from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.claims import (
    Claim,
    called,
    chance_hits,
    claim_of,
    confirmed,
    covered,
    downstream,
    explanation,
    margin_of,
    told_by_log,
)
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.causes.examine import Examination, TestResult, examine
from trackwalker.diagnose.causes.playbook import Playbook, Test
from trackwalker.diagnose.causes.states import graph
from trackwalker.diagnose.deviations.sweep import MANY, Deviation, sweep
from trackwalker.diagnose.deviations.table import cite, name, rows
from trackwalker.diagnose.deviations.unclassified import CAUSE, Suspicion, suspect
from trackwalker.diagnose.episodes.episodes import Episode, alone, episodes_of, further
from trackwalker.diagnose.episodes.symptoms import SOFT, Symptoms
from trackwalker.diagnose.facts.account_facts import IDLENESS
from trackwalker.diagnose.verdict import Action, Cause, Onset, Outcome, Role
from trackwalker.diagnose.verdict import Deviation as Row
from trackwalker.record.clock import utc
from trackwalker.telemetry.meaning import meaning_of

_FAR_BEHIND = -0.5  # of what makes nobody surer: something that a cause leaves over is far clearer than all it covers
_STANDS_OUT = Test(id="stands-out", role="support", narrows=True, fact="stands-out")
Standing = Literal["alone", "before", "beside"]  # where no cause was found; before what was found; beside it


@dataclass(frozen=True)
class Located:
    """Trouble without a name: the cause that the verdict tells, a sentence, and what to do."""

    standing: Standing
    causes: list[Cause]
    summary: str
    action: Action
    suspicion: Suspicion


@dataclass(frozen=True)
class SecondLook:
    """The sweep of a case, and what follows from it."""

    deviations: tuple[Deviation, ...] = ()
    behind: Mapping[str, str] = field(default_factory=dict)  # root to the cause that it follows from
    beside: frozenset[str] = frozenset()  # roots that chance speaks for, or that carry nothing of their own


def cause_at(
    case: Case, place: Suspicion, evidence: list[str], known: Playbook | None = None,
    uncertainty_s: float | None = None, explains: float | None = None, dated: bool = True,
) -> Cause:  # fmt: skip
    """A root that is known by its place, and by name where a cause file fits it."""
    step = case.timeline.step_at(place.since) if case.timeline is not None else None
    return Cause(
        cause=CAUSE if known is None else known.id, role="root", evidence=evidence, explains=explains,
        confidence=0.0,  # weighed when the whole verdict is there
        hosts=list(place.hosts), gpus=[case.topology.gpu_name(g) for g in place.gpus], devices=list(place.devices),
        onset=Onset(time=utc(place.since), step=step, uncertainty_s=uncertainty_s) if dated else None,
    )  # fmt: skip


def look_again(
    case: Case, symptoms: Symptoms, found: Sequence[Examination], roles: Mapping[str, Role],
    along: Sequence[Examination],
) -> SecondLook:  # fmt: skip
    """Sweep a case that has trouble; one that has none is not searched for some."""
    if case.telemetry is None or not symptoms.names - (SOFT - {"uneven"}):
        return SecondLook()
    roots = [e for e in found if roles.get(e.playbook.id) == "root"]
    episodes = episodes_of(case, symptoms)
    if len(case.hosts) > MANY:
        episodes = _worth_reading(episodes, [e for e in roots if slows(e)], symptoms)
    swept = sweep(case, episodes)
    for root in roots:
        _made_nothing_slow(root, along, swept.deviations)
    others = [e for e in found if e.playbook.id in roles and not e.playbook.mechanism]
    behind = downstream(roots, others, swept.deviations, graph(), symptoms)
    for root in roots:
        if who := confirmed(root, swept.deviations):
            root.results.append(TestResult(_STANDS_OUT, True, hosts=set(who)))
    chance = chance_hits(roots, swept.deviations, episodes)
    left = [e for e in roots if e.playbook.id not in chance and e.playbook.id not in behind]
    beside = chance | covered(left, symptoms, graph())
    return SecondLook(swept.deviations, behind, beside)


def slows(cause: Examination) -> bool:
    """Whether it speaks for slow phases, and not for what was so at full speed already."""
    return "slow" in cause.playbook.symptoms and not cause.screened


def so_all_along(
    books: Sequence[Playbook], case: Case, symptoms: Symptoms, evidence: EvidenceBook
) -> list[Examination]:
    """What a slow run's hosts had at its full speed already: what begins later may be slower still and hides it."""
    if not symptoms.slow or "steady" not in symptoms.windows:
        return []
    looked = (examine(p, case, symptoms, evidence, all_along=True) for p in books if p.screen)
    return [e for e in looked if e.state == "found" and e.hosts]


def with_those(along: Sequence[Examination], asked: Sequence[Examination]) -> list[Examination]:
    """All that was asked, with what was so all along and was not found in a slow phase."""
    found = {e.playbook.id for e in asked if e.state == "found"}
    return [*asked, *(e for e in along if e.playbook.id not in found)]


def _made_nothing_slow(root: Examination, along: Sequence[Examination], deviations: Sequence[Deviation]) -> None:
    """What did not change when the run became slow, and was so before, made nothing slow: it was so all along."""
    before = next((e for e in along if e.playbook.id == root.playbook.id and e.hosts == root.hosts), None)
    moved = {d.meaning.quantity for d in deviations if (d.fleet or d.host in root.hosts) and d.meaning.worse(d.kind)}
    if before is not None and not root.screened and not moved & claim_of(root).quantities:
        root.results, root.screened = before.results, True


def _worth_reading(episodes: list[Episode], slowing: Sequence[Examination], symptoms: Symptoms) -> list[Episode]:
    """Of a large fleet, the slow phases that no found cause speaks for, and the longest of the others."""
    spoken = _spoken(slowing, symptoms)
    clear = {alone(i): symptoms.slow[i] for i in spoken}
    longest = max(clear, key=lambda name: clear[name].end - clear[name].start, default=None)
    left = [e for e in episodes if e.name not in clear or e.name == longest]
    return [e for e in left if len(e.window) == 1 or len(spoken) < len(symptoms.slow)]


def _spoken(slowing: Sequence[Examination], symptoms: Symptoms) -> set[int]:
    """The slow phases that found causes speak for: of one that is about none, those that its own wait has a part in."""

    def part(e: Examination, i: int) -> bool:
        booked = (a.shares.get(e.playbook.id, 1.0) for a in symptoms.accounts if i in a.slow)
        return all(share >= SOME for share in booked) if e.spans is None else i in e.spans

    return {i for i in range(len(symptoms.slow)) if any(part(e, i) for e in slowing)}


def name_whom_they_wait_for(
    case: Case, look: SecondLook, found: Sequence[Examination], roles: Mapping[str, Role], book: EvidenceBook,
    accounts: tuple[Account, ...],
) -> None:  # fmt: skip
    """A wait that names nobody asks for whom: whoever alone stands out since the silence began, by any metric.

    Not one that was recorded on all alike: they wait for their batches, not for each other.
    """
    mine = [e for e in found if roles.get(e.playbook.id) == "root" and not e.hosts and e.waits]
    open_waits = [e for e in mine if not carried(accounts, e.playbook.id)]
    since = [d for d in look.deviations if d.episode.kind in ("stall", "before-stall")]
    suspicion = suspect(since, graph(), waits=True) if open_waits else None
    if suspicion is None or case.telemetry is None or len(suspicion.stories) > 1:
        return
    cited = [c[0] for d in suspicion.deviations if (c := cite(d, case.telemetry, book)) is not None]
    test = Test(id="stands-out", role="support", accuses=True, fact="stands-out")
    for e in open_waits if cited else ():
        who = TestResult(test, True, cited, set(suspicion.hosts))
        who.devices, who.gpus = set(suspicion.devices), set(suspicion.gpus)
        e.results.append(who)


@dataclass(frozen=True)
class OpenQuestion:
    """What the causes found leave open: the deviations to look for somebody in."""

    standing: Standing
    deviations: Sequence[Deviation]
    named: frozenset[str] = frozenset()  # hosts that are waited for already, for no known reason


def open_question(
    look: SecondLook, outcome: Outcome, told: Sequence[Examination], leading: Sequence[Examination], symptoms: Symptoms
) -> OpenQuestion | None:
    """Whether to look for trouble without a name, and where; None where the causes found leave nothing over."""
    if outcome == "insufficient-evidence" or (outcome == "healthy" and "uneven" in symptoms.names):
        # Real runs fragment: what shows in a splinter of a slow stretch did not make the stretch slow.
        return OpenQuestion("alone", _throughout(look.deviations, symptoms, [a.slow for a in symptoms.accounts]))
    slowing = [e for e in leading if slows(e)]
    stuck = [e for e in leading if e.waits] if symptoms.stall is not None else []
    if outcome == "incident" and symptoms.slow and not stuck and all(e.screened for e in leading):
        return OpenQuestion("beside", _throughout(look.deviations, symptoms, [a.slow for a in symptoms.accounts]))
    if outcome != "incident" or not (stuck or (symptoms.slow and slowing)):
        return None
    if all(_only_idleness(e) for e in stuck or slowing):
        if slowing and not stuck and any(d.fleet and _late(d) and _costs(d, symptoms) for d in look.deviations):
            return None  # most hosts show what makes data late
        # Idle devices tell that something was waited for: what else stands out, and is no sign of late data, is it.
        claims = [claim_of(e) for e in told if not _only_idleness(e) and not e.waits]
        named = {h for e in stuck for h in e.hosts}
        rest = [d for d in look.deviations if explanation(d, claims, graph(), {}) is None]
        rest = [d for d in rest if d.fleet or (_idles_otherwise(d) and (not named or d.host in named))]
        return OpenQuestion("before", _throughout(rest, symptoms), frozenset(named))
    if stuck:
        return None
    claims, mine = [claim_of(e) for e in told], [claim_of(e) for e in slowing]
    rest = [d for d in look.deviations if explanation(d, claims, graph(), {}) is None]
    spoken = {alone(i) for i in _spoken(slowing, symptoms)} | {"slow"}
    here = [d for d in look.deviations if d.episode.name in spoken]
    leads = [margin_of(c, [o for o in mine if o is not c], here, graph(), {}).lead for c in mine]
    if all(lead is not None and lead <= _FAR_BEHIND for lead in leads):
        return OpenQuestion("before", _throughout(rest, symptoms))
    return OpenQuestion("beside", _left_over(rest, look.deviations, slowing, symptoms))


def _late(d: Deviation) -> bool:
    """Whether this is what late batches come of, beyond their wait itself."""
    return d.meaning.worse(d.kind) and d.meaning.quantity in graph().late_batches - graph().waiting


def _costs(d: Deviation, symptoms: Symptoms) -> bool:
    """Whether what rose can be a good part of the loss: seconds of each second that are next to nothing are none."""
    share = max((1.0 - symptoms.full / p.seconds for p in symptoms.slow), default=0.0)
    return d.meaning.shown_unit != "s/s" or d.after - d.before >= SOME * share


def _idles_otherwise(d: Deviation) -> bool:
    """Whether this may idle a host's devices, and neither a late batch has a part in it nor idling itself."""
    follows = d.kind == "fell" and d.meaning.quantity in graph().follows(*graph().idle)
    return not follows and d.meaning.quantity not in graph().idle | graph().late_batches


def _throughout(
    deviations: Sequence[Deviation], symptoms: Symptoms, stretches: Sequence[frozenset[int]] = ()
) -> list[Deviation]:
    """What shows in all slow phases together, or in most of the loss: of one of these stretches, else of all."""
    lost = symptoms.lost
    stretches = stretches or [frozenset(range(len(lost)))]
    phase = {episode(i): i for episode in (alone, further) for i in range(len(lost))}
    seen: dict[tuple[object, ...], set[str]] = {}
    for d in deviations:
        seen.setdefault((d.host, *d.alike), set()).add(d.episode.name)

    def lasts(d: Deviation) -> bool:
        mine = seen[(d.host, *d.alike)]
        here = {phase[name] for name in mine if name in phase}
        parts = ((sum(lost[i] for i in s & here), sum(lost[i] for i in s)) for s in stretches)
        return not mine <= set(phase) or any(part > 0 and 2 * part >= whole for part, whole in parts)

    return [d for d in deviations if d.fleet or lasts(d)]


def _only_idleness(cause: Examination) -> bool:
    """Whether nothing but idle devices speaks for a cause, beside a silence and processes that live."""
    fired = [r.test for r in cause.fired if r.test.role == "require"]
    facts, told = {t.fact for t in fired if t.fact}, any(t.signature for t in fired)
    measured = {meaning_of(m).quantity for t in fired for m in t.metrics if t.query}
    idle = facts & IDLENESS or measured & graph().idle
    return bool(idle) and not told and facts <= IDLENESS | {"stalled"} and measured <= graph().idle | graph().alive


def _left_over(
    rest: Sequence[Deviation], deviations: Sequence[Deviation], slowing: Sequence[Examination], symptoms: Symptoms
) -> list[Deviation]:
    """What deviates in slow phases that no found cause speaks for, or where a phase became slower still without it."""
    slow, spoken = symptoms.slow, _spoken(slowing, symptoms)
    lost = symptoms.lost
    mine = [claim_of(e) for e in slowing]
    wanted: set[str] = set()
    for i in range(len(slow)):
        if lost[i] < SOME * sum(lost):
            continue
        if i not in spoken:
            wanted.add(alone(i))
        elif not any(d.episode.name == further(i) and _own(d, mine) for d in deviations):
            wanted.add(further(i))
    accused = {h for c in mine for h in c.hosts}
    return [d for d in rest if d.episode.name in wanted and d.host not in accused]


def _own(d: Deviation, claims: Sequence[Claim]) -> bool:
    """Whether a found cause itself became stronger."""
    here = [c for c in claims if d.fleet or not c.hosts or d.host in c.hosts]
    return d.kind == "rose" and any(d.meaning.quantity in graph().follows(*c.quantities) for c in here)


def locate(
    case: Case, question: OpenQuestion, symptoms: Symptoms, book: EvidenceBook, step_uncertainty: float, speed: str,
    examined: Sequence[Examination] = (),
) -> Located | None:  # fmt: skip
    """Who deviates since the trouble began and is accounted for by no cause; called by the quantity that shows it."""
    telemetry = case.telemetry
    idled = any(b.wait.devices and b.share >= MOST for a in symptoms.accounts for b in a.bookings)
    waits = question.standing == "before" or idled
    suspicion = suspect(question.deviations, graph(), question.named, waits) if telemetry is not None else None
    if suspicion is None or telemetry is None:
        return None
    cited = [(d, c[0]) for d in suspicion.deviations if (c := cite(d, telemetry, book)) is not None]
    stories = [s for s in suspicion.stories if any(d in s.deviations for d, _ in cited)]
    if not stories:
        return None
    says = {item.id: item.says for item in book.items}
    where = ", ".join(dict.fromkeys(name(d) for d, _ in cited))
    single = ", " not in where
    told = "; ".join(dict.fromkeys(says[i].removeprefix(f"{where}: ") if single else says[i] for _, i in cited))
    shares = _shares(stories, question.deviations, symptoms)
    names = [called(s, question.deviations, examined, graph()) for s in stories]
    causes = [
        cause_at(case, s, [i for d, i in cited if d in s.deviations], known, step_uncertainty, share)
        for s, share, known in zip(stories, shares, names, strict=True)
    ]
    parts = [f"{', '.join(s.hosts)} {x:.0%}" for s, x in zip(stories, shares, strict=True) if x is not None]
    if len(parts) > 1:
        told += f" (of the lost time, in phases of their own: {'; '.join(parts)})"
    verb = "stands out" if single else "stand out"
    titles = "; ".join(dict.fromkeys(known.title for known in names if known is not None))
    first, reason = (f"{titles}:", titles) if titles else ("No known cause fits, but", "for no known reason")
    lead = {
        "alone": f"{first} {where} {verb} since the trouble began ({speed})",
        "before": f"Before all else, {where} {verb} since the trouble began ({speed}), {reason}",
        "beside": f"Besides, {where} {verb} where that does not account for the loss, {reason}",
    }
    summary = f"{lead[question.standing]}: {told}."
    why = f"take a closer look at {where}: {told}; no other host shows it"
    action = Action(do="inspect-hosts", hosts=list(suspicion.hosts), why=why, risk="none", needs_approval=False)
    return Located(question.standing, causes, summary, action, suspicion)


def _shares(stories: Sequence[Suspicion], deviations: Sequence[Deviation], symptoms: Symptoms) -> list[float | None]:
    """Of the time lost in slow phases, what each story alone speaks for; None where all are in the same phases."""
    spoken = [
        {d.episode.name for d in deviations if d.host in s.hosts and any(d.alike == m.alike for m in s.deviations)}
        for s in stories
    ]
    lost = symptoms.lost
    own = [
        sum(
            x
            for i, x in enumerate(lost)
            if alone(i) in mine and not any(alone(i) in o for o in spoken if o is not mine)
        )
        for mine in spoken
    ]
    if len(stories) < 2 or sum(lost) <= 0 or not all(own):
        return [None] * len(stories)
    return [round(x / sum(lost), 3) for x in own]


def weighed(
    case: Case, look: SecondLook, causes: Sequence[Cause], told: Sequence[Examination], located: Located | None
) -> list[Cause]:
    """The same causes, the roots with their margin to the next best explanation, in the log or in what deviates."""
    claims = {e.playbook.id: claim_of(e) for e in told}
    logs = {e.playbook.id: told_by_log(e, case.triage.failures) for e in told}
    if located is not None:
        measured = frozenset(d.meaning.quantity for d in located.suspicion.deviations)
        for own in located.causes:
            claims[own.cause] = Claim(own.cause, measured, frozenset(located.suspicion.hosts), not measured)
    out = []
    for cause in causes:
        if cause.role == "root" and cause.cause in claims:
            others = [claims[c.cause] for c in causes if c.role == "root" and c.cause in claims and c is not cause]
            said = logs.get(cause.cause, (0.0, 0.0))
            margin = margin_of(claims[cause.cause], others, look.deviations, graph(), _machines(case), said)
            if margin.lead is not None:
                cause = cause.model_copy(update={"margin": margin.lead, "covers": round(margin.covered, 3)})
        out.append(cause)
    return out


def _machines(case: Case) -> dict[str, str]:
    return {r.host: r.node for r in case.run.ranks} if case.run is not None else {}


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
    machines = _machines(case)
    hosts = set(located.suspicion.hosts) if located is not None else set()
    moved = {q for d in located.suspicion.deviations for q in graph().follows(d.meaning.quantity)} if located else set()

    def explain(d: Deviation) -> str | None:
        by = explanation(d, claims, graph(), machines)
        if by is None and located is not None:
            waits = d.meaning.quantity in graph().waiting
            by = located.causes[0].cause if (d.host in hosts and d.meaning.quantity in moved) or waits else None
        return by

    return rows(look.deviations, case.telemetry, book, explain)
