"""A verdict as an agent reads it: brief (below 3 kB) or full (below 8 kB), the strongest first; what is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Literal

from trackwalker.agent import answers as a
from trackwalker.diagnose.causes.playbook import PlaybookAction
from trackwalker.diagnose.verdict import Action, Cause, Evidence, Verdict
from trackwalker.diagnose.views.asked import Asked
from trackwalker.errors import UsageError
from trackwalker.report.changed import deviation_line
from trackwalker.report.words import further_facts

Detail = Literal["brief", "full"]
BRIEF = 2_950  # bytes of a brief verdict


@dataclass(frozen=True)
class _Room:
    """How much of each part is shown."""

    limit: int  # bytes
    names: int  # of hosts, values
    causes: int
    evidence: int
    lists: int  # of what was ruled out, could not be tested
    deviations: int
    words: int  # characters of a sentence


# The first that fits is taken: with a thousand hosts at fault their names alone would fill an answer.
_ROOMS: dict[Detail, tuple[_Room, ...]] = {
    "brief": (
        _Room(BRIEF, 16, 4, 6, 12, 4, 300),
        _Room(BRIEF, 8, 3, 4, 8, 3, 220),
        _Room(BRIEF, 4, 3, 3, 5, 3, 160),
        _Room(BRIEF, 3, 2, 2, 3, 2, 100),
        _Room(BRIEF, 1, 1, 1, 1, 1, 60),
    ),
    "full": (
        _Room(a.LIMIT, 16, 6, 12, 48, 12, 400),
        _Room(a.LIMIT, 6, 6, 12, 18, 6, 300),
        _Room(a.LIMIT, 2, 3, 12, 6, 3, 200),
    ),
}


def verdict_answer(
    verdict: Verdict,
    asked: Asked,
    damage: Sequence[str] = (),
    detail: Detail = "full",
    baseline: str | None = None,
    settings: Sequence[str] = (),
) -> a.VerdictAnswer:
    """The verdict in one answer: as much of it as fits, and how much that is."""
    if detail not in _ROOMS:  # a model may say anything
        raise UsageError(f"detail is {' or '.join(_ROOMS)}")
    *roomy, tight = _ROOMS[detail]
    made = partial(_with, verdict, asked, damage, detail, baseline, settings)
    for room in roomy:
        shown = _fitted(made, detail, room)
        if shown is not None:
            return shown
    return made(tight, min(1, tight.evidence))


def cited(item: Evidence, most: int = 16, words: int = 400) -> a.Cited:
    """One piece of evidence; of many values those that differ most from the others come first."""
    own = item.kind in ("metric", "progress")  # our own words around numbers; the others are the job's words
    values = dict(by_deviation(item.values)[:most])
    return a.Cited(
        id=item.id,
        kind=item.kind,
        source=a.short(item.source, min(words, 300)),
        says=a.short(item.says, words) if own else None,
        quote=None if own else a.quoted(item.says, words),
        values={a.short(k, 80): v for k, v in values.items()} or None,
        values_shown=_shown(len(values), len(item.values)),
    )


def by_deviation(values: Mapping[str, float]) -> list[tuple[str, float]]:
    """Values, those first that differ most from the median of all.

    Where a value has a partner from another window (`n1` and `n1/fast`), what counts is how much it changed, against
    how much the others did; the partner follows its value.
    """
    partners = {name: key for key in values for name in [key.rpartition("/")[0]] if name in values}
    alone = [name for name in values if name not in partners.values()]
    moved = {n: values[n] - (values[partners[n]] if n in partners else 0.0) for n in alone}
    middle = median(moved.values()) if moved else 0.0
    order = sorted(alone, key=lambda n: (-abs(moved[n] - middle), n))
    return [(key, values[key]) for n in order for key in ([n, partners[n]] if n in partners else [n])]


def advice(action: Action | PlaybookAction, most: int = 16) -> a.Advice:
    """An action of a verdict or a playbook."""
    hosts = a.few(action.hosts, most) if isinstance(action, Action) else []
    why = a.short(action.why, 300)
    return a.Advice(do=action.do, why=why, risk=action.risk, needs_approval=action.needs_approval, hosts=hosts)


def _fitted(made: Callable[[_Room, int], a.VerdictAnswer], detail: Detail, room: _Room) -> a.VerdictAnswer | None:
    """With as much evidence as this room holds; none where not even one piece of it fits."""
    least = 2 if detail == "brief" else 0  # evidence counts more than the last name of a list
    for count in range(room.evidence, least - 1, -1):
        shown = made(room, count)
        if (a.plain_size(shown) if detail == "brief" else a.size(shown)) <= room.limit:
            return shown
    return None


def _with(
    verdict: Verdict,
    asked: Asked,
    damage: Sequence[str],
    detail: Detail,
    baseline: str | None,
    settings: Sequence[str],
    room: _Room,
    count: int,
) -> a.VerdictAnswer:
    causes = verdict.causes[: room.causes]
    strongest = _strongest(verdict, causes)
    items = [cited(item, room.names, room.words) for item in strongest[:count]]
    shown_ids = {item.id for item in items}
    unexplained = sorted(verdict.deviations, key=lambda d: d.explained_by is not None)
    deviating = [a.short(deviation_line(d, *_why(d.explained_by)), room.words) for d in unexplained[: room.deviations]]
    bad = [q for q in verdict.data_quality if not q.ok]
    failure = _failure(verdict, room.words)
    uncovered = {r.cause: missed for r in verdict.ruled_out if (missed := asked.not_covered(r.cause))}
    return a.VerdictAnswer(
        notice=a.NOTICE if any(i.quote for i in items) or "quote" in failure else None,
        job=verdict.job.id,
        baseline=baseline,
        status=verdict.status,
        outcome=verdict.outcome,
        summary=a.short(verdict.summary, 4 * room.words),
        failure=failure,
        causes=[_named(c, verdict, asked, room, shown_ids) for c in causes],
        actions=[advice(action, room.names) for action in verdict.actions[: max(1, min(room.lists // 2, 5))]],
        evidence=items,
        deviations=deviating,
        ruled_out=[r.cause for r in verdict.ruled_out[: room.lists]],
        not_covered={cause: a.names(hosts, room.names) for cause, hosts in list(uncovered.items())[: room.lists]},
        untestable={
            u.cause: a.short(", ".join(u.missing[:8]), min(120, room.words))
            for u in verdict.untestable[: room.lists // 2]
        },
        data_quality=[f"{q.check}: {a.short(q.says, min(160, room.words))}" for q in bad[:5]],
        evidence_ends=asked.ends,
        progress=verdict.progress.model_dump(exclude_none=True),
        facts=dict(further_facts(verdict)),
        window=verdict.window.model_dump(exclude_none=True) if detail == "full" else {},
        settings=[a.short(line, 160) for line in settings[:8]],
        damage=[a.short(line, min(200, room.words)) for line in damage[:4]],
        shown=_counts(
            causes=(len(causes), len(verdict.causes)),
            evidence=(len(items), len(verdict.evidence)),
            deviations=(len(deviating), len(verdict.deviations)),
            ruled_out=(min(room.lists, len(verdict.ruled_out)), len(verdict.ruled_out)),
            untestable=(min(room.lists // 2, len(verdict.untestable)), len(verdict.untestable)),
            data_quality=(min(5, len(bad)), len(bad)),
            settings=(min(8, len(settings)), len(settings)),
        ),
    )


def _failure(verdict: Verdict, words: int) -> dict[str, Any]:
    """The first failure of the log: class and place; its line, as a quote, where no cause is named that cites it."""
    if verdict.failure is None:
        return {}
    told = verdict.failure.model_dump(by_alias=True, exclude_none=True, exclude={"subject", "says"})
    return told if verdict.failure.named else {**told, "quote": a.short(verdict.failure.says, words)}


def _strongest(verdict: Verdict, causes: Sequence[Cause]) -> list[Evidence]:
    """The evidence of the causes, the roots' first; of each, what speaks of its culprits before the rest."""
    known = {item.id: item for item in verdict.evidence}

    def of(cause: Cause) -> Iterator[Evidence]:
        mine = [known[e] for e in cause.evidence if e in known]
        yield from sorted(mine, key=lambda item: not any(h in item.values or h in item.says for h in cause.hosts))

    found = {item.id: item for cause in causes for item in of(cause)}
    first = {item.source: item.id for item in reversed(found.values())}  # the same numbers again come last
    found = {i: found[i] for i in sorted(found, key=lambda i: first[found[i].source] != i)}
    if not found:  # nobody is suspect: what speaks against a healthy run, or what little there is
        found = {item.id: item for item in verdict.evidence}
    return list(found.values())


def _named(cause: Cause, verdict: Verdict, asked: Asked, room: _Room, shown: set[str]) -> a.Named:
    said = {item.id: item.says for item in verdict.evidence if item.kind in ("metric", "progress")}
    against = [
        f"{r.test.id}: {a.short('; '.join(said[e] for e in r.evidence if e in said) or 'no', room.words // 2)}"
        for r in asked.contradicts(cause.cause)
    ]
    return a.Named(
        cause=cause.cause,
        role=cause.role,
        confidence=round(cause.confidence, 3),
        explains=cause.explains,
        hosts=a.few(cause.hosts, room.names),
        hosts_shown=_shown(min(room.names, len(cause.hosts)), len(cause.hosts)),
        gpus=a.few(cause.gpus, room.names),
        devices=a.few(cause.devices, room.names),
        onset=cause.onset.model_dump(exclude_none=True) if cause.onset else None,
        magnitude=cause.magnitude.model_dump(by_alias=True) if cause.magnitude else None,
        evidence=[e for e in cause.evidence if e in shown] or cause.evidence[: max(room.names, 6)],
        contradicts=against[: max(1, room.lists // 3)],
    )


def _why(explained_by: str | None) -> list[str]:
    return [f"explained by {explained_by}"] if explained_by else ["nothing explains it"]


def _shown(count: int, of: int) -> str | None:
    """How much of a list is there; nothing where all of it is."""
    return f"{count} of {of}" if count < of else None


def _counts(**parts: tuple[int, int]) -> dict[str, str]:
    return {name: told for name, (count, of) in parts.items() if (told := _shown(count, of)) is not None}
