"""What the ranks that lost a peer say, against what the peer or the scheduler says itself."""

from __future__ import annotations

import re

from trackwalker.logs.failures.groups import Group, having, only, when, whose
from trackwalker.logs.failures.line_hosts import host_of_hit, hosts_told
from trackwalker.logs.failures.reactions import VICTIMS, reacts
from trackwalker.logs.scanning.index import LogIndex

# A call that the coordinator did not take, as against a barrier or a key with which another task did not come.
_UNANSWERED = re.compile(
    r"(?i)^(?!.*(?:barrier|GetKeyValue))(?=.*(?:coordination.?service(?!\w*\.cc)|distributed service))"
    r".*(?:deadline.?exceeded|timed out)"
)
_TOLD_TO_END = 143
# Errors that no lost peer makes: whoever raises one has them of its own, whatever stands above them in a merged log.
OF_ITS_OWN = re.compile(
    r"\b(?:JSONDecode|Unicode(?:Decode|Encode)?|Key|Index|Value|Type|Attribute|Name|Assertion|Import|ModuleNotFound"
    r"|FileNotFound|IsADirectory|NotImplemented|ZeroDivision|Recursion|UnboundLocal)Error: "
)


def demote_hearsay(groups: list[Group], index: LogIndex) -> None:
    """Ranks whose transfers to a peer broke off say nothing about why: a peer that reports its own end knows more."""
    heard = having(groups, "hearsay")
    # Whoever ends may also fail in the collective it was in; only a broken transfer or a lost peer makes a witness.
    witnesses = {h.rank for group in heard if not group.has("no-witness") for h in group.hits}
    for own in groups:
        if own.has("exception") and _raised_alone(own, groups, index):
            return
        ranks = {h.rank for h in own.hits}
        apart = len(ranks) == 1 and None not in ranks | witnesses and not ranks & witnesses
        # Ranks are buffered apart: whoever alone raises what no lost peer makes comes first, wherever it stands.
        only_one = len(ranks - {None}) == 1 and not ranks & witnesses - {None} and len(witnesses - {None}) > 1
        began = [when(g.first, index) for g in heard]
        first = own.tier == 3 and when(own.first, index) <= min(began, default=())
        its_own = OF_ITS_OWN.search(own.first.text) is not None
        alone = own.tier <= 4 and not own.why and (only_one or its_own)
        raised = own.has("exception") and (first or alone)
        # Where no line has a label the words alone tell who lost a peer and who was lost.
        apart = apart or (raised and (only_one or (its_own and ranks == {None} and not index.places.labelled)))
        ended = own.has("ended-itself") or (own.has("own-end") and own.tier <= 2)
        if not apart or not heard or not (ended or raised):
            continue
        # An exception stays behind what else befell its own rank: one that was killed did not die of it.
        own.tier = min(own.tier, 3 if raised else 2)
        who = "somebody" if own.first.rank is None else f"rank {own.first.rank}"
        _put_behind(heard, own, f"{who}, which the others lost, reports {own.cause} itself")
        return
    if (down := only(groups, "scheduler-lost-it")) and down.tier <= 2:
        lost = {name for h in down.hits for name in hosts_told(h.text, index.facts.hosts)}
        if lost and not lost & {host_of_hit(index, h) for group in heard for h in group.hits}:
            _put_behind(heard, down, f"the scheduler says that {', '.join(sorted(lost))}, which says nothing, failed")


def _raised_alone(own: Group, groups: list[Group], index: LogIndex) -> bool:
    """Whether one rank raised what no lost peer makes while several others lost or waited for somebody: it is first."""
    lost = [g for g in having(groups, *VICTIMS) if g.tier <= 4 and not g.has("exit-word") and g is not own]
    others = ({whose(h) for g in lost for h in g.hits} | index.places.missed) - {None}
    mine = [h for h in own.hits if whose(h) is not None and not reacts(h.text)]
    names = {whose(h) for h in mine}
    first = index.places.ended_first
    mine = [h for h in mine if h.rank == first] if first in names else mine
    if (
        own.tier > 4
        or own.why
        or len({whose(h) for h in mine}) != 1
        or len(others - names) < (1 if mine[0].rank == first else 2)
    ):
        return False
    hit = mine[0]
    if any(whose(h) == whose(hit) and when(h, index) < when(hit, index) for g in lost for h in g.hits):
        return False
    own.hits.sort(key=lambda h: (h is not hit, when(h, index)))
    own.tier = min(own.tier, 3)
    named = f"rank {hit.rank}" if hit.rank is not None else hit.host
    _put_behind(lost, own, f"{named}, which the others lost, reports {own.cause} itself")
    return True


def coordinator_mute(group: Group, index: LogIndex) -> bool:
    """Whether tasks that train got no answer from a coordinator that lived: it ended when all were told to.

    JAX's words leave open whether the leader died or the caller's network is ill. Several callers have no such illness
    at once, and a leader that died does not end by the signal that ends the rest.
    """
    leader = next((e for e in index.facts.exits if e.rank == 0), None)
    callers = {h.rank for h in group.hits if _UNANSWERED.search(h.text)}
    several = len(callers) > 1 and not callers & {0, None}
    return bool(len(index.steps)) and several and leader is not None and leader.code == _TOLD_TO_END


def told_by_the_missing(waiting: Group, groups: list[Group], index: LogIndex) -> Group | None:
    """What a rank that is not among the waiting ones reports of its own GPU or host: it is the one they wait for.

    Only what stands before the first rank is taken down: a rank may fail because its neighbours are.
    """
    ranks = {h.rank for h in waiting.hits}
    down = min((when(g.first, index) for g in having(groups, "teardown")), default=None)
    for own in groups:
        theirs = {h.rank for h in own.hits}
        apart = None not in theirs and not theirs & ranks
        before = down is None or when(own.first, index) < down
        if apart and before and own.has("own-end") and own.tier <= waiting.tier:
            return own
    return None


def _put_behind(heard: list[Group], known: Group, why: str) -> None:
    for group in (g for g in heard if g.tier <= known.tier + 1):
        group.tier, group.why = known.tier + 1, why
