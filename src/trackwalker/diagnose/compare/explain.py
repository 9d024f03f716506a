"""Why one of two jobs is slower: settings, its own faults, single hosts, a leak, or nothing that was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.causes.states import states
from trackwalker.diagnose.compare import deltas as measured
from trackwalker.diagnose.compare.aligned import Aligned, percent
from trackwalker.diagnose.compare.config_diff import Change
from trackwalker.diagnose.compare.deltas import Delta, where
from trackwalker.diagnose.compare.pair import Pair, clean, not_collected
from trackwalker.diagnose.facts.restore_leak import Leak, find_leak
from trackwalker.diagnose.verdict import Action, Cause, Outcome, RuledOut, Untestable, Verdict
from trackwalker.job.causes import about
from trackwalker.record.status import ENDED_BADLY

_LEAST = 0.005  # less is no fault's doing that anyone could prove
_WITH_A_SIGNATURE = 0.8  # of the interval, where everything else speaks for the leak
SPREAD = 0.01  # two runs of one job differ by up to this without a reason that could be found
_SURE = 0.99  # of the interval, where nothing else speaks for a difference
_HOW_IT_ENDED = frozenset({"cancelled", "time-limit", "preempted"})  # as another attempt sees it
_TROUBLE = frozenset({"incident", "insufficient-evidence"})
_NOT_SPEED = frozenset({"training", "observer", "expected"})  # groups of causes


@dataclass(frozen=True)
class Explanation:
    """What became of the difference in speed."""

    outcome: Outcome
    summary: str
    causes: list[Cause] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    ruled_out: list[RuledOut] = field(default_factory=list)
    untestable: list[Untestable] = field(default_factory=list)


def explain(
    a: Case,
    b: Case,
    own_a: Verdict,
    own_b: Verdict,
    aligned: Aligned | None,
    changes: list[Change],
    deltas: list[Delta],
    book: EvidenceBook,
) -> Explanation:
    """The smallest explanation of the difference between two jobs."""
    failed = _failure(a, b, own_a, own_b, book)
    if aligned is None:
        return failed or _no_steps(a, b)
    pair = Pair(a, b, own_a, own_b, aligned, changes, deltas, book)
    speed = _speed(pair)
    if failed is None:
        ill = _stopped(b, own_b) or _slow_elsewhere(b, own_a, own_b, aligned)
        return _not_well(b, own_b, speed, book) if speed.outcome == "healthy" and ill else speed
    causes = [*failed.causes, *[c for c in speed.causes if speed.outcome == "incident"]]
    actions = [*failed.actions, *(speed.actions if speed.outcome == "incident" else [])]
    return Explanation("incident", f"{failed.summary} {speed.summary}", causes, actions)


def _failure(a: Case, b: Case, own_a: Verdict, own_b: Verdict, book: EvidenceBook) -> Explanation | None:
    """B died or stopped and A did not: that is the difference, whatever their speeds."""
    if not _stopped(b, own_b) or _stopped(a, own_a) or own_b.outcome != "incident":
        return None
    roots = [c for c in own_b.roots if not _how_it_ended(c) and not _slow_only(c)]
    if not roots:
        return None
    causes = [adopt(c, own_b, book, "") for c in roots]
    said = own_b.status if own_b.status in ENDED_BADLY else f"stopped and was {own_b.status}"
    return Explanation("incident", f"B ({b.job.id}) {said}, A did not: {own_b.summary}", causes, own_b.actions)


def _stopped(case: Case, own: Verdict) -> bool:
    """Whether a job died, hangs, or hung until somebody ended it."""
    return own.status in ENDED_BADLY or case.stall is not None


def _slow_elsewhere(b: Case, own_a: Verdict, own_b: Verdict, aligned: Aligned) -> bool:
    """Whether B has trouble that A has not, and steps of its own that A never did: it may lie in those."""
    if own_b.outcome not in _TROUBLE or own_b.outcome == own_a.outcome:
        return False
    return b.timeline is not None and int(b.timeline.steps[-1]) > int(aligned.steps_b[-1])


def _not_well(b: Case, own_b: Verdict, speed: Explanation, book: EvidenceBook) -> Explanation:
    """The steps that both did are alike, but B is ill in others or ended badly: that is no healthy run."""
    stopped = _stopped(b, own_b)
    causes = [adopt(c, own_b, book, "") for c in own_b.roots if not (stopped and _slow_only(c))]
    outcome: Outcome = "incident" if own_b.outcome == "incident" and causes else "insufficient-evidence"
    how = f" ({own_b.status})" if stopped else " in steps that A never did"
    text = f"B ({b.job.id}) is not well{how}: {own_b.summary} {speed.summary}"
    return Explanation(
        outcome, text, causes if outcome == "incident" else [], own_b.actions, untestable=speed.untestable
    )


def _slow_only(cause: Cause) -> bool:
    return cause.magnitude is not None


def _no_steps(a: Case, b: Case) -> Explanation:
    few = " and ".join(
        f"{word} ({case.job.id})"
        for word, case in (("A", a), ("B", b))
        if case.timeline is None or len(case.timeline) < 12
    )
    text = f"Too few steps to compare{f' in {few}' if few else ''}: the difference in speed is within noise."
    need = ["a dozen timed steps of both jobs after their start-up"]
    missing = [Untestable(cause=states().cause("settings-differ"), missing=need)]
    return Explanation("insufficient-evidence", text, untestable=missing)


def _speed(pair: Pair) -> Explanation:
    difference = pair.aligned.difference
    leak = None
    if difference.differs(_WITH_A_SIGNATURE):
        leak = find_leak(pair.slow, pair.fast, pair.deltas, pair.slower_is_b, difference.change, pair.book)
    if not difference.differs() and leak is None:
        return _same(pair)
    told = [c for c in pair.changes if c.effect == "speed"]
    own = _own_roots(pair) if abs(difference.change) >= _LEAST else []
    if told:
        return _settings(pair, told, own, 0.9)
    if own:
        return _faults(pair, own)
    if abs(difference.change) >= _LEAST and (local := _local(pair)) is not None:
        return local
    if leak is not None:
        return _leak(pair, leak)
    if abs(difference.change) < SPREAD or not difference.differs(_SURE):
        return _same(pair)
    if (common := _common(pair)) is not None:
        return common
    perhaps = [c for c in pair.changes if c.effect == "perhaps"]
    if perhaps:
        return _settings(pair, perhaps, [], 0.6)
    return _unexplained(pair)


def _same(pair: Pair) -> Explanation:
    """No difference worth an explanation, and how large one could have hidden."""
    d = pair.aligned.difference
    seen = f"a difference of {percent(d.detectable, False)} or more would have been seen"
    if d.differs():
        text = (
            f"No difference worth a cause: {pair.speed_words}; {seen}. Two runs of one job differ by up to "
            f"{percent(SPREAD, False)}, and nothing that was measured explains more."
        )
    else:
        text = f"No significant difference: {pair.speed_words}; {seen}."
    if told := [c for c in pair.changes if c.effect == "speed"]:
        text += f" The settings do differ ({told[0].says})."
    return Explanation("healthy", text, untestable=not_collected(pair) if not pair.deltas else [])


def _settings(pair: Pair, told: list[Change], own: list[tuple[Cause, Verdict]], confidence: float) -> Explanation:
    ids = list(pair.aligned.evidence)
    for c in told[:6]:
        for source, value in ((c.source_a, c.a), (c.source_b, c.b)):
            if source and value is not None:
                ids.append(pair.book.add("log", source, f"{c.name}: {value}"))
    cause = _cause(pair, states().cause("settings-differ"), confidence, list(dict.fromkeys(ids)))
    cause = cause.model_copy(update={"role": "contributing"}) if own else cause
    names = "; ".join(c.says for c in told[:3]) + (f"; and {len(told) - 3} more" if len(told) > 3 else "")
    can = "explain" if confidence > 0.8 else "may explain"
    text = f"The settings {can} the difference ({names}): {pair.speed_words}."
    if pair.confounded:
        text += f" {pair.confounded}; their shares cannot be separated."
    why = f"compare again with {', '.join(c.name for c in told[:3])} equal to see what is left"
    action = Action(do="repeat-with-equal-settings", why=why, risk="none", needs_approval=False)
    if not own:
        return Explanation("expected", text, [cause], [action], untestable=not_collected(pair))
    fault = _faults(pair, own)
    told_by = dict(zip([c.cause for c, _ in own], [c.magnitude for c, _ in own], strict=True))
    causes = [c.model_copy(update={"magnitude": told_by[c.cause]}) for c in fault.causes]  # its own share, not all
    text = f"{fault.summary} The settings differ, too, and explain the rest ({names})."
    return Explanation("incident", text, [*causes, cause], fault.actions)


def _own_roots(pair: Pair) -> list[tuple[Cause, Verdict]]:
    """What is wrong with the slower job on its own and not with the faster one."""
    slow, fast = (pair.own_b, pair.own_a) if pair.slower_is_b else (pair.own_a, pair.own_b)
    if slow.outcome != "incident":
        return []
    theirs = {(c.cause, tuple(c.hosts)) for c in fast.causes}
    mine = [c for c in slow.roots if (c.cause, tuple(c.hosts)) not in theirs and not _how_it_ended(c)]
    return [(c, slow) for c in mine if (told := about(c.cause)) is None or told.group not in _NOT_SPEED]


def _how_it_ended(cause: Cause) -> bool:
    told = about(cause.cause)
    return told is not None and told.retry in _HOW_IT_ENDED


def _faults(pair: Pair, own: list[tuple[Cause, Verdict]]) -> Explanation:
    suffix = "" if pair.slower_is_b else where(pair.a)
    causes, verdict = [], own[0][1]
    for cause, slow in own:
        adopted = adopt(cause, slow, pair.book, suffix)
        evidence = list(dict.fromkeys([*adopted.evidence, *pair.aligned.evidence]))
        causes.append(adopted.model_copy(update={"magnitude": pair.magnitude, "evidence": evidence}))
    text = f"{pair.word} is the slower one: {pair.speed_words}. {verdict.summary}"
    return Explanation("incident", text, causes, verdict.actions, clean(pair, {c.cause for c in causes}))


def adopt(cause: Cause, verdict: Verdict, book: EvidenceBook, suffix: str) -> Cause:
    """A cause of a single job's verdict with its evidence copied into this book."""
    items = {e.id: e for e in verdict.evidence}
    ids = []
    for key in cause.evidence:
        if (e := items.get(key)) is not None:
            source = e.source + (suffix if e.kind == "metric" else "")
            ids.append(book.add(e.kind, source, e.says, dict(e.values)))
    return cause.model_copy(update={"evidence": ids})


def _cause(pair: Pair, name: str, sure: float, evidence: list[str], hosts: Sequence[str] = ()) -> Cause:
    return Cause(
        cause=name, role="root", confidence=sure, hosts=list(hosts), magnitude=pair.magnitude, evidence=evidence
    )


def _local(pair: Pair) -> Explanation | None:
    """A few hosts of the slower job that are worse than the others, and were not in the faster one."""
    causes: dict[str, tuple[set[str], list[str]]] = {}
    words = []
    for d in pair.deltas:
        hosts = d.worse_b if pair.slower_is_b else d.worse_a
        if d.family.cause is not None and hosts:
            who, ids = causes.setdefault(d.family.cause, (set(), []))
            who |= set(hosts)
            ids += d.evidence
            values = d.b if pair.slower_is_b else d.a
            rest = [v for h, v in values.items() if h not in hosts]
            most = measured.quantity(max((values[h] for h in hosts), key=abs), d.family.unit)
            usual = measured.quantity(sum(rest) / len(rest), d.family.unit)
            words.append(f"{', '.join(hosts)}: {d.family.name} {most}, the others {usual}")
    if not causes:
        return None
    _thermal(pair, causes)
    found = [
        _cause(pair, name, 0.8, [*ids, *pair.aligned.evidence], sorted(who))
        for name, (who, ids) in sorted(causes.items())
    ]
    text = f"{pair.word} is the slower one: {pair.speed_words}. In it {'; '.join(words)}."
    named = sorted({h for c in found for h in c.hosts})
    action = Action(do="inspect-hosts", hosts=named, why="; ".join(words), risk="none", needs_approval=False)
    return Explanation("incident", text, found, [action], clean(pair, set(causes)))


def _thermal(pair: Pair, causes: dict[str, tuple[set[str], list[str]]]) -> None:
    """Slow clocks on hosts that are hotter than the others, too, are slow because of the heat."""
    heat = next((d for d in pair.deltas if d.metric == "hw_gpu_temperature_celsius"), None)
    low, hot = states().cause("clock-low"), states().cause("heat")
    if heat is not None and low in causes:
        who, ids = causes[low]
        if who <= set(heat.worse_b if pair.slower_is_b else heat.worse_a):
            del causes[low]
            causes[hot] = (who, [*ids, *heat.evidence])


def _leak(pair: Pair, leak: Leak) -> Explanation:
    same_nodes = not pair.confounded
    more = leak.waves[0] is not None and leak.waves[1] is not None and leak.waves[0] > leak.waves[1]
    sure = round(0.82 + (0.08 if more else 0.0) + (0.05 if same_nodes else 0.0), 2)
    cause = _cause(pair, states().cause("threads-left"), sure, [*leak.evidence, *pair.aligned.evidence])
    waves = f", in {leak.waves[0]} waves of communicators instead of {leak.waves[1]}" if more else ""
    text = (
        f"{pair.word} restored its checkpoint with the single-replica restore{waves}, and since its first step every "
        f"host has {leak.rise:.0f} more runnable tasks, flat and alike: {pair.speed_words}. "
        "The restore broadcast left its communicators and their polling threads behind."
    )
    if pair.confounded:
        text += f" {pair.confounded}; the rise is the same on those they share."
    why = (
        "the threads stay as long as the process: restore by an explicit broadcast whose communicator is destroyed, or "
        "with enable_single_replica_ckpt_restoring=false, at the next restart"
    )
    action = Action(do="restore-without-leak", why=why, risk="a slower restore", needs_approval=False)
    return Explanation("incident", text, [cause], [action], clean(pair, {cause.cause}))


def _common(pair: Pair) -> Explanation | None:
    """Something that all hosts of the slower job share and the faster one does not have."""
    for d in pair.deltas:
        if d.family.common_cause is not None and d.uniform and d.worse(pair.slower_is_b):
            cause = _cause(pair, d.family.common_cause, 0.7, [*d.evidence, *pair.aligned.evidence])
            values = f"{_mean(d, True)} in B, {_mean(d, False)} in A"
            text = f"{pair.speed_words}. {d.family.name} is worse on all hosts of {pair.word}: {values}."
            return Explanation("incident", text, [cause], [], clean(pair, {cause.cause}))
    return None


def _mean(delta: Delta, of_b: bool) -> str:
    return measured.quantity(delta.mean_b if of_b else delta.mean_a, delta.family.unit)


def _unexplained(pair: Pair) -> Explanation:
    """Sure that they differ, and honest that nothing measured says why."""
    differing = [d.family.name for d in pair.deltas if d.worse(pair.slower_is_b)]
    text = f"{pair.word} is the slower one: {pair.speed_words}. "
    if pair.deltas:
        only = f" (only {', '.join(differing)} differ)" if differing else ""
        text += f"Nothing that was measured explains it{only}"
    else:
        text += "What would tell why was not recorded in both jobs"
    untestable = not_collected(pair)
    actions = []
    if pair.confounded:
        text += f". {pair.confounded}: only a run of the same job on the same nodes separates nodes from job"
        untestable.append(Untestable(cause=states().cause("clock-low"), missing=["the same job on the same nodes"]))
        why = "swap the node lists: a difference that moves with the nodes is theirs"
        actions.append(Action(do="repeat-on-the-same-nodes", why=why, risk="capacity", needs_approval=True))
    elif not pair.deltas:
        why = "record both jobs and compare again"
        actions.append(Action(do="record-next-run", why=why, risk="none", needs_approval=False))
    else:
        why = "a second pair shows whether the difference comes back; profile a few steps of both"
        actions.append(Action(do="repeat-and-profile", why=why, risk="none", needs_approval=False))
    return Explanation("insufficient-evidence", text + ".", [], actions, clean(pair, set()), untestable)
