"""Questions that the evidence capsules answer, for playbooks: who stands elsewhere, whether the others wait."""

from __future__ import annotations

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.episodes.symptoms import Symptoms
from trackwalker.diagnose.facts.log_facts import FACTS, Answer, Fact
from trackwalker.logs.formats.stacks import place
from trackwalker.record.capsules import Capsule, read_capsules
from trackwalker.record.clock import utc


def capsule_of(case: Case, symptoms: Symptoms) -> Capsule | None:
    """The newest capsule taken during the silence; an earlier one tells of another incident."""
    stall = symptoms.stall
    if stall is None or stall.since is None or stall.until is None:
        return None
    taken = [c for c in read_capsules(case.job.dir) if c.stacks and stall.since <= c.time <= stall.until + 60.0]
    return taken[-1] if taken else None


def stands_elsewhere(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """One or few ranks are stopped, hang in the kernel, or stand outside the collective that the others wait in."""
    capsule = capsule_of(case, symptoms)
    if capsule is None:
        return Answer(None)
    ids = [
        book.add("event", f"stacks/{one.source or capsule.incident}", f"rank {one.rank} on {one.host}: {one.why}")
        for one in capsule.odd
    ]
    hosts = tuple(one.host for one in capsule.odd if one.host)
    return Answer(bool(ids), tuple(ids), hosts, capsule.time if ids else None)


def stacks_wait(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The stacks of all ranks, but for those that hold them up, stand in a wait for other ranks."""
    capsule = capsule_of(case, symptoms)
    if capsule is None or capsule.everybody_waits is None:
        return Answer(None)
    says = f"stacks of {len(capsule.stacks)} ranks at {utc(capsule.time)}: {capsule.summary()}"
    if not capsule.everybody_waits:
        return Answer(None)  # a stack that we do not know as a wait proves nothing against one
    return Answer(True, (book.add("event", f"stacks/{capsule.incident}", says),), (), None)


def odd_rank_in_data(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The rank that holds the others up stands in the code that brings its next batch."""
    capsule = capsule_of(case, symptoms)
    odd = {one.rank for one in capsule.odd} if capsule is not None else set()
    stacks = [s for s in capsule.stacks if s.rank in odd and s.frames] if capsule is not None else []
    if not stacks:
        return Answer(None)
    mine = [s for s in stacks if s.in_data and not s.stopped]
    ids = [
        book.add("event", f"stacks/{s.source}", f"rank {s.rank} on {s.host} waits for its next batch{place(s)}")
        for s in mine
    ]
    return Answer(bool(mine), tuple(ids), tuple(s.host for s in mine))


STACKS: dict[str, Fact] = {
    "stands-elsewhere": stands_elsewhere,
    "stacks-wait": stacks_wait,
    "odd-rank-in-data": odd_rank_in_data,
}
FACTS.update(STACKS)
