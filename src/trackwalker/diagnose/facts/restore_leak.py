"""Threads that a single-replica restore leaves behind: a little slower on every host alike, from the first step on.

The restore broadcast runs as a collective of its own on another mesh; its communicators are kept for ever, and so are
the threads that poll them.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.compare.config_diff import settings_of
from trackwalker.diagnose.compare.deltas import Delta, quantity, where
from trackwalker.logs.facts import Start

_MOST_CHANGE = 0.05  # such threads cost about one per cent; more has another reason
_FLAT = 0.35  # early against late, in shares of the rise
# What a leak itself moves: more threads switch more and use more CPU.
_ITS_OWN = {"runnable tasks", "time waiting for a CPU", "CPU pressure"}
_SETTING = "enable_single_replica_ckpt_restoring"


@dataclass(frozen=True)
class Leak:
    """What speaks for the leak."""

    rise: float
    waves: tuple[int | None, int | None]  # of the slower and of the faster job
    evidence: tuple[str, ...]


def restored_single_replica(case: Case) -> bool:
    """Whether the run could have the leak at all: it restored, and nothing says that it did so in the safe way."""
    later = case.timeline is not None and len(case.timeline) > 0 and int(case.timeline.steps[0]) > 0
    return (later or case.log.restored is not None) and (_setting(case) or "true") in ("true", "1", "yes")


def _setting(case: Case) -> str | None:
    stated = settings_of(case).get(_SETTING)
    return stated.value.strip("'\"").lower() if stated is not None else None


def find_leak(
    slow: Case, fast: Case, deltas: list[Delta], slower_is_b: bool, change: float, book: EvidenceBook
) -> Leak | None:
    """The leak, if everything that must hold does."""
    tasks = next((d for d in deltas if d.metric == "hw_procs_running"), None)
    if tasks is None or not tasks.uniform or not tasks.worse(slower_is_b) or abs(change) > _MOST_CHANGE:
        return None
    others = [d for d in deltas if d.family.name not in _ITS_OWN and (d.family.cause or d.family.common_cause)]
    if any(d.worse(slower_is_b) or (d.worse_b if slower_is_b else d.worse_a) for d in others):
        return None
    if not restored_single_replica(slow):
        return None
    (name, start), (other_name, other) = (case.triage.record.start for case in (slow, fast))
    more = start.waves is not None and other.waves is not None and start.waves > other.waves
    if _setting(slow) is None and start.broadcast is None and not more:
        return None  # that it restored is not enough: how is not known
    flat = _flat(slow, abs(tasks.difference), slower_is_b, book)
    if flat is None:
        return None
    ids = [*_starts(slow, name, start, book), *tasks.evidence, *flat]
    for case, file, told in ((slow, name, start), (fast, other_name, other)):
        if told.waves is not None:
            says = f"{case.job.id}: communicators were made in {told.waves} waves"
            source = f"{file}: lines of the lowest rank with 'NCCL WARN MSCCL++' or 'Init COMPLETE'"
            ids.append(book.add("log", source, says, {"waves": float(told.waves)}))
    return Leak(abs(tasks.difference), (start.waves, other.waves), tuple(ids))


def _starts(case: Case, file: str, start: Start, book: EvidenceBook) -> list[str]:
    ids = []
    for found in (start.restored, start.broadcast):
        if found is not None:
            ids.append(book.add("log", f"{file}:{found.line}", " ".join(found.text.split())))
    stated = settings_of(case).get(_SETTING)
    if stated is not None:
        ids.append(book.add("log", stated.source, f"{_SETTING}: {stated.value}"))
    return ids


def _flat(case: Case, rise: float, slower_is_b: bool, book: EvidenceBook) -> list[str] | None:
    """Evidence that the tasks were there from the first steps on and did not grow; None when they did."""
    timeline, telemetry = case.timeline, case.telemetry
    if timeline is None or telemetry is None or len(timeline) < 12:
        return None
    ends, third = timeline.ends, len(timeline) // 3
    found, ids = [], []
    for word, first, last in (("first", 2, third), ("last", len(timeline) - third, len(timeline) - 1)):
        window = max(1, round(float(ends[last] - ends[first])))
        query = f"avg(avg_over_time(hw_procs_running[{window}s] @ {float(ends[last]):.3f}))"
        values = telemetry.instant(query, float(ends[last]))
        if not values:
            return None
        found.append(values[0].value)
        says = f"{case.job.id}: {quantity(values[0].value)} runnable tasks a host in the {word} third of its steps"
        ids.append(book.add("metric", query + ("" if slower_is_b else where(case)), says, {"": values[0].value}))
    return ids if abs(found[1] - found[0]) <= _FLAT * rise else None
