"""Which of the causes found is the diagnosis: root, contributing, mechanism, consequence."""

from __future__ import annotations

import re
from itertools import islice

from trackwalker.diagnose.accounts.shares import stood_still
from trackwalker.diagnose.causes.claims import claim_of
from trackwalker.diagnose.causes.examine import Examination
from trackwalker.diagnose.causes.states import WAIT_TOLD, graph, states
from trackwalker.diagnose.episodes.symptoms import SOFT, Symptoms
from trackwalker.diagnose.facts.account_facts import IDLENESS
from trackwalker.diagnose.verdict import Role
from trackwalker.logs.failures.lastwords import lost_somebody
from trackwalker.logs.failures.roles import UNCLASSIFIED as CAUSE
from trackwalker.logs.failures.victim_lines import OF_ITS_OWN

_STORE = ("store-broken", WAIT_TOLD)
_FURTHER = 1.05  # a phase this much slower than another holds something more
# Megatron's checks of what a rank computed by itself, before any exchange could bring another's numbers in.
_LOCAL_NAN = re.compile(r"(?i)found (?:nan|inf)\w* in local ")
_SUBORDINATE: dict[str, Role] = {"consequence": "consequence", "mechanism": "mechanism", "contributing": "contributing"}


def undisputed(found: list[Examination], examinations: list[Examination]) -> list[Examination]:
    """The causes found that no half-proven one would explain: what could not be measured is not ruled out."""
    halves = [e for e in examinations if e.half_proven]
    disputed = {s for e in halves for s in states().leaves_open(e.playbook.state)}
    return [e for e in found if e.playbook.state not in disputed]


def assign_roles(found: list[Examination], symptoms: Symptoms) -> dict[str, Role]:
    """A role for every cause worth telling; benign ones go unmentioned beside real trouble."""
    trouble = symptoms.names - SOFT
    benign = [e for e in found if e.playbook.outcome == "expected" and not e.playbook.mechanism]
    # A benign reading must account for whatever looks like trouble; beside anything else it is beside the point.
    benign = [e for e in benign if trouble <= set(e.playbook.symptoms) or not trouble]
    real = [e for e in found if e.playbook.outcome != "expected" or e.playbook.mechanism]
    overriding = [e for e in [*benign, *real] if e.playbook.overrides]
    foreign = [e for e in overriding if e.playbook.outcome == "incident"]
    if foreign:  # another job's database says nothing, but this job's log still does
        others = [e for e in real if e not in foreign]
        return _roles(others, symptoms) | {e.playbook.id: "root" for e in foreign}
    if overriding:
        told: dict[str, Role] = {e.playbook.id: "consequence" for e in real if not e.playbook.mechanism}
        return told | {e.playbook.id: "root" for e in overriding}
    roles = _roles(real, symptoms)
    if len(roots := [name for name, role in roles.items() if role == "root"]) > 1 and CAUSE in roots:
        roles[CAUSE] = "consequence"  # a failure in unknown words is what the named trouble led to
    return roles or {e.playbook.id: "contributing" if _beside(e, benign) else "root" for e in benign}


def said_by_one(found: list[Examination], symptoms: Symptoms, first: str) -> None:
    """Whose error it is that only one host tells while all others wait: that host's.

    Of a store whether it was measured to be waited for or not, but for the first, which also writes; else where it was.
    """
    waited = {frozenset(e.hosts) for e in found if e.waits and e.hosts and not e.log_only}
    told = ("hearsay", "absent", "network", "waited_for")
    for e in found if symptoms.stall is not None else ():
        if e.hosts or not e.log_only or e.log_role or any(states().within(group, e.playbook.state) for group in told):
            continue
        alone = e.playbook.state in _STORE and not waited
        for r in e.fired:
            r.accuses |= frozenset(r.hosts) in waited or (alone and len(r.hosts) == 1 and first not in r.hosts)


def without(
    chance: frozenset[str], found: list[Examination], roles: dict[str, Role], symptoms: Symptoms
) -> dict[str, Role]:
    """The roles where some of the causes found turned out to be chance: those stand before nothing else."""
    if not chance:
        return roles
    left = [e for e in found if e.playbook.id not in chance]
    return assign_roles(left, symptoms) | dict.fromkeys(chance, "contributing")


def _beside(reading: Examination, others: list[Examination]) -> bool:
    """Whether another benign reading accounts for this one: saves make storage traffic."""
    return any(e.playbook.state in states().of("overshadowed", reading.playbook.state) for e in others)


def _explained(speaking: list[Examination], symptoms: Symptoms) -> set[str]:
    """What the found causes explain and cover; where two do so to each other, measurements win over log lines.

    Of two measured ones the one that names fewer hosts does: a port that flaps makes all who send to it retransmit.
    With as many hosts it is the one that speaks for more slow phases, then the one that explains more.
    """
    out: set[str] = set()
    for e in speaking:
        others = [o for o in speaking if o is not e]
        if states().within("computes", e.playbook.state):
            out |= {o.playbook.id for o in others if _computed_on(o, set(e.hosts))}
        hearsay = states().within("hearsay", e.playbook.state) and e.log_only
        network = states().within("network", e.playbook.state)
        for other in (o for o in others if _comes_of(o, e, symptoms)):
            if hearsay and not (other.hosts and set(other.hosts) <= set(e.hosts)):
                continue  # what victims say explains nothing, unless it names the very host
            if network and _of_its_own(other):
                continue
            if e.log_only and not e.hosts and other.hosts and any(lost_somebody(r.words) for r in e.fired):
                continue  # who says that a peer is lost does not tell why
            if not (_comes_of(e, other, symptoms) and _stands_behind(e, other)):
                out.add(other.playbook.id)
    return out


def _comes_of(effect: Examination, cause: Examination, symptoms: Symptoms) -> bool:
    """Whether one can come of the other, which was there for most of what it lost, on all hosts that lost it.

    Nothing comes of what began later, but on the very same cards: one that is ill is so before each sign of it shows.
    And who each waited for batches of his own waited for no single other.
    """
    # Of a straggler: waiting and bursts on several hosts.
    echo = effect.playbook.state in states().of("echoes", cause.playbook.state)
    if not (effect.explained_by(cause) or (echo and effect.spans and len(effect.hosts) != 1)):
        return False
    # No card's illness comes of another host's, and what somebody runs on a card takes the CPUs of its own host.
    cards = cause.playbook.acts_on == "gpu" and (effect.playbook.acts_on == "gpu" or effect.spans is not None)
    if cards and effect.hosts and cause.hosts and not set(effect.hosts) & set(cause.hosts):
        return False
    alone = cause.hosts and not stood_still(symptoms.accounts, effect.playbook.id) <= set(cause.hosts)
    same_cards = effect.gpus and set(effect.gpus) <= set(cause.gpus)
    return not alone and bool(same_cards or cause.was_there_for(effect, symptoms))


def _of_its_own(cause: Examination) -> bool:
    """Whether the log quotes an error that only the program itself makes: an index out of range is no lost packet."""
    return any(r.fired and OF_ITS_OWN.search(r.words) for r in cause.results)


def _computed_on(cause: Examination, hosts: set[str]) -> bool:
    """Whether what is no number was computed on these hosts: a GPU that reports an error there made it."""
    told = [r for r in cause.results if r.fired and _LOCAL_NAN.search(r.words)]
    return any(r.hosts and r.hosts <= hosts for r in told)


def _stands_behind(one: Examination, other: Examination) -> bool:
    """Of two that explain each other exactly one stands behind: else neither would be left as the cause."""
    if one.log_only != other.log_only:
        return one.log_only
    if not one.log_only and len(other.hosts) != len(one.hosts) and one.hosts and other.hosts:
        return len(other.hosts) < len(one.hosts)
    reach, others = (len(e.spans or ()) for e in (one, other))
    return (reach, len(one.explains), one.playbook.id) < (others, len(other.explains), other.playbook.id)


def _slows_further(cause: Examination, others: list[Examination], symptoms: Symptoms) -> bool:
    """Whether the phases a cause speaks for are slower still than those that the others had for themselves."""
    mine = cause.spans
    if not mine:
        return False
    for other in others:
        own = (other.spans or set()) - mine
        if not own or not mine <= (other.spans or set()):
            return False
        alone = max(symptoms.slow[i].seconds for i in own)
        if min(symptoms.slow[i].seconds for i in mine) < _FURTHER * alone:
            return False
    return bool(others)


def _residual(cause: Examination, found: list[Examination]) -> bool:
    """Whether idle devices alone speak for a cause, and another found one leaves them idle in the same phases.

    Devices idle whatever the host waits for. Causes that keep them busy are refuted there by the same account, so that
    any other one which is left stands before idleness.
    """
    fired = {r.test.fact for r in cause.results if r.fired and r.test.role == "require"}
    if not fired or not fired <= IDLENESS:
        return False
    mine, hosts = cause.spans, set(cause.hosts)
    others = [e for e in found if e is not cause and "slow" in e.playbook.symptoms and e.playbook.outcome == "incident"]
    there = [e for e in others if not e.hosts or (hosts and hosts <= set(e.hosts))]
    # Before a silence in which somebody is waited for, idle devices are how it began.
    return any(e.waits for e in found) or any(e.spans is None or mine is None or mine <= e.spans for e in there)


def _what_waiting_does(cause: Examination, found: list[Examination]) -> bool:
    """Whether a cause names nobody and shows only what all hosts do that wait for those whom another one names."""
    spans, seen = cause.spans, claim_of(cause, accounts=False).quantities
    if cause.hosts or spans is None or not seen or not seen <= graph().waiting:
        return False
    named = [e for e in found if e is not cause and e.hosts and e.playbook.outcome == "incident"]
    return any(e.spans is not None and spans <= e.spans and not claim_of(e).quantities <= seen for e in named)


def _yields(cause: Examination, found: list[Examination], symptoms: Symptoms) -> bool:
    if _residual(cause, found) or _what_waiting_does(cause, found):
        return True
    if any(_names_nobody_and_yields(cause, e) for e in found):
        return True
    stronger = [e for e in found if e.playbook.state in states().of("overshadowed", cause.playbook.state)]
    stronger = [e for e in stronger if not _names_nobody_and_yields(e, cause)]
    mine = cause.phases(symptoms) if cause.spans is not None or cause.onset is not None else set()
    if not stronger or (mine and all(e.spans is not None and not mine & e.spans for e in stronger)):
        return False  # or it has phases in which they were not there
    return not _slows_further(cause, stronger, symptoms)


def _names_nobody_and_yields(cause: Examination, other: Examination) -> bool:
    nobody = states().of("overshadowed_where_nobody_is_named", cause.playbook.state)
    return not cause.hosts and other.playbook.state in nobody


def _told_why(wait: Examination, candidates: list[Examination]) -> bool:
    """Whether another cause says what is wrong with the hosts that all others wait for; of nobody, in the silence.

    To a log that only says that somebody did not come, whoever was measured not to has told why.
    """
    absent = wait.log_only and not wait.hosts and states().within("absent", wait.playbook.state)
    if not (wait.waits or absent):
        return False
    others = [e for e in candidates if not e.waits or (absent and e.hosts)]
    return any(set(wait.hosts) <= set(e.hosts) if wait.hosts else e.in_silence for e in others if e is not wait)


def _kept_from_answering(kill: Examination, candidates: list[Examination]) -> bool:
    """Whether something else that was asked about a heartbeat kill was found: then the kill only delivered the blow."""
    return any(c is not kill and "heartbeat" in c.playbook.symptoms for c in candidates)


def _roles(found: list[Examination], symptoms: Symptoms) -> dict[str, Role]:
    trouble = symptoms.names - SOFT
    # What the log itself calls an aftermath explains nothing: an abort after a heartbeat kill is not its cause.
    speaking = [e for e in found if e.log_role not in _SUBORDINATE]
    explained = _explained(speaking, symptoms)
    roles: dict[str, Role] = {}
    candidates = []
    for e in found:
        own = _SUBORDINATE.get(e.log_role)
        if e.playbook.mechanism:
            roles[e.playbook.id] = "mechanism"
        elif e.playbook.id in explained:
            roles[e.playbook.id] = "consequence"
        elif own is not None:
            roles[e.playbook.id] = own
        elif _yields(e, found, symptoms):
            roles[e.playbook.id] = "contributing"
        else:
            candidates.append(e)
    for e in [c for c in candidates if _told_why(c, candidates)]:
        candidates.remove(e)
        roles[e.playbook.id] = "consequence"
    for e in [c for c in candidates if c.playbook.symptoms == ["heartbeat"] and _kept_from_answering(c, candidates)]:
        candidates.remove(e)
        roles[e.playbook.id] = "mechanism"
    # What speaks for none of the trouble stands beside it: a run with uneven steps that a full disk ended.
    if any(trouble & set(c.playbook.symptoms) for c in candidates):
        for e in [c for c in candidates if not trouble & set(c.playbook.symptoms)]:
            candidates.remove(e)
            roles[e.playbook.id] = "contributing"
    # A cancel is the whole story only when nothing else was wrong; an unexplained slowdown stays unexplained.
    if not candidates:
        ends = [e for e in found if e.playbook.mechanism and e.playbook.id not in explained]
        candidates = ends if trouble <= {"cancelled", "failed", "unfinished-start"} and ends else []
        if not candidates and trouble <= {"failed"}:
            named = (e for e in found if roles[e.playbook.id] == "consequence" and e.playbook.id not in explained)
            candidates = list(islice(named, 1))
    return roles | {e.playbook.id: "root" for e in candidates}
