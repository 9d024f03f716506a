"""Whether a run that ended is worth another attempt, and on which nodes: a table, and the rules around it.

What a failure was called by triage decides. A second attempt that must end as the first did only costs node hours, so a
class that a retry cannot mend is never retried, and one that a retry may mend is retried as often as that has sense.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trackwalker.job.causes import about
from trackwalker.launch.request.effective import tables

DEFAULT_BUDGET = 3  # attempts after the first, of all classes together
SAME, EXCLUDE = "same", "exclude"  # on which nodes


@dataclass(frozen=True)
class Rule:
    """What is done about one class of failure."""

    times: int | None  # further attempts because of this class; None: as many as the budget has
    why: str
    nodes: str = "any"


RULES = {name: Rule(**row) for name, row in tables()["resume"].items()}

_OF_STATE = {"oom": "oom", "node-fail": "node-fail", "boot-fail": "node-fail", "preempted": "preempted"}
_FINISHED = ("completed", "completed-short", "soft-success")


@dataclass(frozen=True)
class Ending:
    """How an attempt ended, as far as the scheduler, the log and the journal say."""

    state: str  # the scheduler's word, in ours: failed, cancelled, timeout, node-fail…
    status: str  # triage's: failed, cancelled, completed, hanging…
    cause: str = ""  # triage's first finding
    hosts: tuple[str, ...] = ()  # that the failure is laid to
    line: str = ""  # the evidence


@dataclass(frozen=True)
class Decision:
    """Whether there is another attempt, and why."""

    resume: bool
    failure: str  # class
    why: str
    exclude: list[str] = field(default_factory=list)
    same_nodes: bool = False


def classify(ending: Ending) -> str:
    """The class of an ending; what the scheduler did for reasons of its own outranks what the log says of it."""
    if ending.status in _FINISHED or ending.state == "completed":
        return "completed"
    if ending.state in _OF_STATE:
        return _OF_STATE[ending.state]
    told = about(ending.cause)
    found = told.retry if told else "crash"
    if found == "node" and not ending.hosts:
        return "crash"  # a node's fault, but nobody knows whose: there is nothing to exclude
    if ending.state == "timeout":
        return "hang" if found == "hang" else "time-limit"
    if ending.state == "cancelled" or (ending.status == "cancelled" and found in ("crash", "cancelled")):
        return "cancelled"
    return found


def decide(
    ending: Ending,
    earlier: Sequence[str],
    budget: int,
    excluded: Sequence[str] = (),
    rules: Mapping[str, Rule] = RULES,
) -> Decision:
    """Whether to go on; `earlier` are the classes of the attempts before, `excluded` the nodes they left out."""
    failure = classify(ending)
    rule = rules[failure]
    exclude = list(dict.fromkeys([*excluded, *(ending.hosts if rule.nodes == EXCLUDE else ())]))
    if rule.times == 0:
        return Decision(False, failure, rule.why)
    if len(earlier) >= budget:
        return Decision(False, failure, f"all {budget} further attempts are used up ({', '.join(earlier)})")
    if rule.times is not None and earlier.count(failure) >= rule.times:
        return Decision(False, failure, f"it has had its {rule.times} further attempt for that: {rule.why}")
    return Decision(True, failure, rule.why, exclude, rule.nodes == SAME)
