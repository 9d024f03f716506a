"""An excerpt in which nothing failed: what it shows of why a run is slow, stopped or was ended, as hits.

Only a short text is read so: it is what a person cut out to show it. A long log is told by its lines, steps and ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from trackwalker.logs.excerpts.machines import Shown, busy_hosts, slow_gpus
from trackwalker.logs.excerpts.programs import (
    asked_about,
    class_shown,
    ended_well,
    long_saves,
    one_far_behind,
    slow_programs,
    slow_words,
    slower_steps,
    unused_rdma,
)
from trackwalker.logs.excerpts.schedulers import ended_by_schedulers, not_placed, states
from trackwalker.logs.excerpts.tables import tables
from trackwalker.logs.scanning.gathered import Hit
from trackwalker.logs.scanning.lines import clean

if TYPE_CHECKING:
    from trackwalker.logs.failures.signatures import Signature
    from trackwalker.logs.scanning.scan import Scan

_LONGEST = 1 << 16  # bytes
_SLOWS = 7  # the tier of what slows a run and does not end it
_QUOTED = 400
_LEAK = "host-memory-leak"
_BY_HAND = re.compile(r"\^C|\bsignal:? 2\b|\b2 death signal|SIGINT|(?i:keyboard ?interrupt|killed by user)")
_LABEL = re.compile(r"^(?:\[(?:rank ?|default|\d,)?\d{1,6}\](?:<\w+>)?:?|\s*\d{1,6}: )\s?")


def shown(scan: Scan, hits: Sequence[Hit], known: Mapping[str, Signature]) -> list[Hit]:
    """Hits of classes that no line has brought up; the words of slowness only where nothing else is known."""
    if scan.size > _LONGEST or len(scan.tail) < scan.size:
        return []
    texts = [clean(raw) for raw in scan.tail.split(b"\n")]
    lines = [_LABEL.sub("", text) for text in texts]
    own = ["" if _LABEL.match(text) else text for text in texts]  # what a rank prints is no scheduler's word
    taken = {hit.signature.id for hit in hits}
    found = list(tables(lines))
    said: dict[str, list[Shown]] = {}
    by_state = {state: name for name, signature in known.items() for state in signature.states}
    ended = chain(ended_by_schedulers(own), states(tables(own), by_state))
    machines = chain(slow_gpus(lines, found), busy_hosts(lines, found))
    members = chain(long_saves(lines), one_far_behind(lines), unused_rdma(lines))
    for each in chain(ended, machines, slow_programs(lines, found), members):
        if each[0] not in taken:
            said.setdefault(each[0], []).append(each)
    for each in slower_steps(lines) if not said else ():
        said.setdefault(each[0], []).append(each)
    if not said and not any(hit.signature.order <= _SLOWS for hit in hits if not by_hand(hit)):
        for each in chain(not_placed(own, found), slow_words(lines)):
            said.setdefault(each[0], []).append(each)
        for each in asked_about(lines) if not said else ():
            said.setdefault(each[0], []).append(each)
    for each in ended_well(lines) if hits else ():
        said.setdefault(each[0], []).append(each)
    killed = any("kill" in hit.signature.traits for hit in hits)
    kinds = {"slow-words": class_shown(lines, *said["slow-words"][0][1:])} if "slow-words" in said else {}
    return [_hit(known[name], told, scan.path.name, killed, kinds.get(name, "")) for name, told in said.items()]


def by_hand(hit: Hit) -> bool:
    """Whether a line tells that a person ended the run from his terminal."""
    ends = hit.signature.unnamed or "request-to-end" in hit.signature.traits
    return ends and _BY_HAND.search(hit.text) is not None


def _hit(signature: Signature, told: Sequence[Shown], file: str, killed: bool, kind: str) -> Hit:
    # What a table shows slowed the run, and an error beside it says more; but memory that only grows gets one killed.
    if 1 <= signature.order <= 4 and not (killed and signature.cause == _LEAK):
        signature = signature.model_copy(update={"tier": _SLOWS, "traits": []})
    (_, first, text), (_, last, _) = told[0], told[-1]
    return Hit(signature, None, first + 1, text[:_QUOTED], file, None, len(told), last + 1, kind=kind)
