"""Where to look when no cause is known: a limit reached, a peer unlike all others, what all hosts have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trackwalker.diagnose.accounts.accounts import MOST
from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.claims import fleet_cause
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.causes.examine import Examination
from trackwalker.diagnose.causes.playbook import Playbook
from trackwalker.diagnose.causes.second_look import Located, SecondLook, Standing, cause_at
from trackwalker.diagnose.causes.states import graph
from trackwalker.diagnose.deviations.levels import LATE_FROM, Unlike, late_rank, unlike_all_along
from trackwalker.diagnose.deviations.limits import limits_ahead, limits_reached
from trackwalker.diagnose.deviations.sweep import Deviation
from trackwalker.diagnose.deviations.table import cite, name
from trackwalker.diagnose.deviations.unclassified import Suspicion
from trackwalker.diagnose.episodes.symptoms import SOFT, Symptoms
from trackwalker.diagnose.facts.account_facts import measured, told
from trackwalker.diagnose.verdict import Action, Outcome
from trackwalker.record.phases import LEAST_LOST_S

_CITED = 4  # differences of one host
_COMMON = 3  # of what most hosts did, tried for a sentence
_BEYOND = 2.0  # times as much as the steps, on a scale of ratios: what waits or works with the steps moves as they do


def _located(
    case: Case, standing: Standing, place: Suspicion, cited: list[str], summary: str, why: str,
    uncertainty_s: float | None = None, known: Playbook | None = None, dated: bool = True,
) -> Located:  # fmt: skip
    action = Action(do="inspect-hosts", hosts=list(place.hosts), why=why, risk="none", needs_approval=False)
    return Located(standing, [cause_at(case, place, cited, known, uncertainty_s, dated=dated)], summary, action, place)


def locate_limit(case: Case, symptoms: Symptoms, leading: Sequence[Examination], book: EvidenceBook) -> Located | None:
    """Who reached a limit of its own when the run ended, where nothing measured nor anybody else is the reason.

    Or who will, in a run that is otherwise well.
    """
    ended = bool(symptoms.names & {"failed", "stall", "heartbeat"})
    well = not symptoms.names - SOFT and all(e.playbook.outcome != "incident" for e in leading)
    if any(e.hosts and not e.log_only for e in leading) or not (ended or well):
        return None
    reached = limits_reached(case, book) if ended else limits_ahead(case, book)
    if reached is None or not all(set(e.hosts) <= set(reached.hosts) for e in leading):
        return None
    said = next(i.says for i in book.items if i.id == reached.cited)
    stands = "stands before the end of the run" if ended else "will end the run"
    summary = f"A limit of one host {stands}, for no known reason: {said}."
    place = Suspicion(reached.hosts, (), (), (), reached.since)
    why = f"see what uses it up, or raise the limit: {said}"
    return _located(case, "before" if leading else "alone", place, [reached.cited], summary, why, 60.0)


def locate_wait(case: Case, symptoms: Symptoms, outcome: Outcome, book: EvidenceBook) -> Located | None:
    """Who stood still while steps were long, by a recorded wait that no cause has."""
    if outcome == "incident" or symptoms.stall is not None:
        return None
    booked = [(a, b) for a in symptoms.accounts if a.lost_s >= LEAST_LOST_S for b in a.bookings]
    mine = [(a, b) for a, b in booked if b.cause is None and b.wait.stall is not None and b.hosts and b.share >= MOST]
    if not mine:
        return None
    account, booking = max(mine, key=lambda m: m[0].lost_s * m[1].share)
    cited = [measured(booking, book), told(case, account, book)]
    says = "; ".join(next(i.says for i in book.items if i.id == c) for c in cited)
    summary = f"Steps {account.steps[0]}..{account.steps[1]} waited for {', '.join(booking.hosts)}: {says}."
    place = Suspicion(booking.hosts, (), (), (), account.since)
    return _located(case, "alone", place, cited, summary, f"find out why: {says}")


def locate_late(case: Case, symptoms: Symptoms, outcome: Outcome, book: EvidenceBook) -> Located | None:
    """Who ends the steps of a slow run late, where nothing that was measured of any host tells."""
    found = late_rank(case, symptoms) if outcome == "insufficient-evidence" else None
    if found is None:
        return None
    numbers = {"before_s": found.before_s, "during_s": found.during_s, "others_s": found.others_s, "steps": found.steps}
    source = f"{LATE_FROM}: each rank's ends of the same steps, less the median of all"
    cited = book.add("progress", source, found.says, {k: float(v) for k, v in numbers.items()})
    summary = f"No metric tells why, but all wait for one rank: {found.says}."
    place = Suspicion((found.host,), (), (), (), found.since)
    why = f"see what that rank does between its steps (stacks, profile): {found.says}"
    return _located(case, "alone", place, [cited], summary, why)


def locate_unlike(case: Case, symptoms: Symptoms, outcome: Outcome, book: EvidenceBook) -> Located | None:
    """Who is, or became, unlike all its peers in a run at one speed that nothing else speaks of."""
    if outcome == "incident" or symptoms.slow or symptoms.names - SOFT - {"cancelled"}:
        return None
    found = unlike_all_along(case, symptoms, graph())
    clearest = [u for u in found if u.kind == found[0].kind and u.meaning.metric == found[0].meaning.metric]
    if not clearest:
        return None
    hosts = sorted({u.host for u in clearest})
    cited = [u.cite(book) for u in [*clearest, *(u for u in found if u not in clearest and u.host in hosts)][:_CITED]]
    gpus = sorted({f"{u.host}/{u.place.gpu}" for u in clearest if u.place.gpu is not None})
    devices = sorted({f"{u.host}/{u.place.device}" for u in clearest if u.place.device is not None})
    said = {item.id: item.says for item in book.items}
    where, seen = ", ".join(dict.fromkeys(u.name for u in clearest)), "; ".join(said[i] for i in cited)
    summary = (
        f"The run has one speed throughout, so what it costs is not known, but {where} "
        f"{_since(clearest)}, for no known reason: {seen}."
    )
    why = f"take a closer look at {where}, before the next run: {seen}"
    place = Suspicion(tuple(hosts), tuple(gpus), tuple(devices), (), case.start or 0.0)
    return _located(case, "before" if outcome == "expected" else "alone", place, cited, summary, why, dated=False)


def _since(odd: Sequence[Unlike]) -> str:
    if any(u.later for u in odd):
        return "became unlike all peers in the course of it"
    return f"{'is' if len(odd) == 1 else 'are'} unlike all peers from the first step on"


def common_change(
    case: Case, look: SecondLook, symptoms: Symptoms, book: EvidenceBook, examined: Sequence[Examination]
) -> Located | str:
    """What changed for the worse on most hosts at once: it accuses nobody, and is where to begin.

    A place to look where no cause file knows the metric and it moved by far more than the steps did; the cause of whose
    quantity it is where no host can have that by itself; else a sentence.
    """
    worse = [d for d in look.deviations if d.fleet and d.meaning.worse(d.kind) and d.meaning.layer != "activity"]
    known = [d for d in worse if d.meaning.quantity not in graph().never_the_reason | graph().waiting]
    saved = graph().follows(*graph().saving)  # long steps now and then may hold saves that nobody told of
    known = [d for d in known if d.episode.kind != "long-steps" or d.meaning.quantity not in saved]
    own = [d for d in known if _beyond_the_steps(d, symptoms)]
    for d in [*own, *known][:_COMMON]:
        if case.telemetry is not None and (cited := cite(d, case.telemetry, book)) is not None:
            said = next(i.says for i in book.items if i.id == cited[0])
            if d not in own:
                return f" What changed with it: {said}."
            cause = fleet_cause(d.meaning.quantity, examined, graph())
            first = "No known cause fits and no host stands out, but" if cause is None else f"{cause.title}:"
            summary = f"{first} with the trouble began, everywhere: {said}."
            why = f"find out what {name(d)} have in common that moved this: {said}"
            place = Suspicion((), (), (), (d,), d.since)
            return _located(case, "alone", place, [cited[0]], summary, why, known=cause)
    return ""


def _beyond_the_steps(d: Deviation, symptoms: Symptoms) -> bool:
    """Whether what is no mere consequence moved in a slow phase by far more than the speed did.

    What no cause file knows, or what belongs to no host where it shows on all ports of many.
    """
    full = symptoms.full
    if (
        (d.meaning.known and d.meaning.quantity not in graph().shared)
        or d.episode.kind != "slow"
        or not full
        or d.before * d.after < 0
    ):
        return False
    low, high = sorted((abs(d.before), abs(d.after)))
    slower = max(p.seconds for p in symptoms.slow) / full
    return low == 0.0 or math.log(high / low) >= _BEYOND * math.log(slower)
