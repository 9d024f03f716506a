"""Trouble that no cause describes, located all the same: who deviates since it began, in what, beyond all others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from trackwalker.diagnose.causes.states import Graph
from trackwalker.diagnose.deviations.sweep import Deviation
from trackwalker.stats.deviations import LEAST_SCORE

CAUSE = "unclassified"
_WEIGHT = {"error": 1.0, "health": 1.0, "resource": 0.9, "wait": 0.9, "activity": 0.7}
_GUESSED = 0.8  # of a metric whose meaning only its name tells
CAP = 12.0  # more standard errors make nobody surer
_CLEAR = 5.0  # strength of a culprit
_RIVAL = 0.85  # of the strongest: as good a reason
_BEYOND_FLEET = 3.0  # times what most hosts did: then it is no longer more of the same
_STORIES = 2  # that have nothing to do with each other: two troubles at once are bad luck, three are noise
_MORE = 1.5  # times as active as before, while the run does less: that is no work of the run
_MEASURES = 2  # of one host's activity that agree: one alone may be chance, or its part in the run
_FEW_WORK_ON = 8  # one host of so many may be the one that works while all others wait
_HUNDREDFOLD = 100.0
_TOTAL = 5.0  # times what was there before
_CARRIES = 0.8  # of what was lost, at least: a wait that grew by less is not what all wait for
_TOLD = 4
_GONE = "absent"


@dataclass(frozen=True)
class Suspicion:
    """The hosts, GPUs and devices to look at, and the deviations that point at them, strongest first.

    `stories`: the same apart, where hosts stand out in ways that have nothing to do with each other.
    """

    hosts: tuple[str, ...]
    gpus: tuple[str, ...]
    devices: tuple[str, ...]
    deviations: tuple[Deviation, ...]
    since: float
    stories: tuple[Suspicion, ...] = ()


@dataclass(frozen=True)
class _Group:
    """Deviations of one metric in one direction, on a few hosts."""

    members: tuple[Deviation, ...]
    strength: float

    @property
    def score(self) -> float:
        return min(CAP, max(d.score for d in self.members))

    @property
    def quantity(self) -> str:
        first = self.members[0]
        return "gpu-health" if first.kind == _GONE and first.gpu is not None else first.meaning.quantity

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset(d.host for d in self.members if d.host is not None)

    @property
    def later(self) -> bool:
        """Whether nobody showed it yet when the slow phase began."""
        return all(d.later for d in self.members)

    @property
    def everyday(self) -> bool:
        """Whether these are errors that came before, too: more of them may be weather, whatever the score."""
        return any(d.meaning.layer == "error" and d.before > 0 and not _out_of_nothing(d) for d in self.members)


def suspect(
    deviations: Sequence[Deviation], graph: Graph, named: Set[str] = frozenset(), waits: bool = False
) -> Suspicion | None:
    """Whom to look at, from deviations that no cause covers; None when nobody stands out clearly.

    Who is `named` already need not stand out from all others again: what is beyond chance there is enough. So is the
    only thing that could be a reason where all are known to wait (`waits`) for somebody.
    """
    by_episode: dict[str, list[Deviation]] = {}
    for d in deviations:
        by_episode.setdefault(d.episode.name, []).append(d)
    answers = {name: _culprits(mine, graph, named, waits) for name, mine in by_episode.items()}
    if not any(answers.values()):
        return None
    best = max((g for groups in answers.values() for g in groups), key=lambda g: (not g.everyday, g.strength))
    chosen = [g for groups in answers.values() for g in groups if _as_clear(g, best)]
    for name, mine in by_episode.items():
        # A slow phase in which none of these deviate has a story of its own, however much weaker it is.
        if len(mine[0].episode.window) == 1 and not any(_speaks(g, mine) for g in chosen):
            chosen += answers[name]
    chosen = [g for g in chosen if not g.everyday] or chosen
    stories = [_suspicion(story) for story in _apart(chosen)]
    told = tuple(d for s in stories for d in s.deviations)
    return Suspicion(
        tuple(sorted({h for s in stories for h in s.hosts})),
        tuple(sorted({g for s in stories for g in s.gpus})),
        tuple(sorted({d for s in stories for d in s.devices})),
        told,
        min(s.since for s in stories),
        tuple(stories),
    )


def _apart(groups: list[_Group]) -> list[list[_Group]]:
    """Groups that share neither a host nor a quantity are stories of their own, the clearest first."""
    stories: list[list[_Group]] = []
    for group in sorted(groups, key=lambda g: -g.strength):
        mine = [s for s in stories if any(g.hosts & group.hosts or g.quantity == group.quantity for g in s)]
        joined = [g for s in mine for g in s] + [group]
        stories = [joined if s is mine[0] else s for s in stories if s not in mine[1:]] if mine else [*stories, joined]
    return stories


def _suspicion(groups: list[_Group]) -> Suspicion:
    named = [d for g in sorted(groups, key=lambda g: -g.strength) for d in sorted(g.members, key=lambda d: -d.score)]
    told: dict[tuple[object, ...], Deviation] = {}
    for d in named:
        told.setdefault((*d.subject, *((_GONE,) if d.kind == _GONE else d.alike)), d)
    hosts = sorted({h for g in groups for h in g.hosts})
    gpus = sorted({f"{d.host}/{d.gpu}" for d in told.values() if d.gpu is not None and not d.whole})
    devices = sorted({f"{d.host}/{d.device}" for d in told.values() if d.device is not None and not d.whole})
    first = min(d.episode.since for d in named)
    return Suspicion(tuple(hosts), tuple(gpus), tuple(devices), tuple(told.values())[:_TOLD], first)


def _speaks(group: _Group, deviations: Iterable[Deviation]) -> bool:
    """Whether what a group shows is seen among these deviations too, on one of its hosts."""
    return any(d.alike == group.members[0].alike and d.host in group.hosts for d in deviations)


def reasons(deviations: Sequence[Deviation], graph: Graph) -> list[tuple[tuple[Deviation, ...], float]]:
    """What could be the reason of one episode, each with how clear it is."""
    return [(g.members, g.strength) for g in _groups(deviations, graph)]


def worked_on(deviations: Sequence[Deviation]) -> frozenset[str]:
    """Who goes on working while most others wait, by several measures: it is whom they wait for.

    Whoever waits with them is not, whatever else happens there meanwhile.
    """
    seen: dict[str, set[str]] = {}
    for d in deviations:
        active = d.host is not None and d.meaning.layer == "activity" and not d.episode.stops
        if active and _out_of_step(d, (o for o in deviations if o.episode is d.episode)):
            seen.setdefault(d.host or "", set()).add(d.meaning.quantity)
    most = max((d.of for d in deviations), default=1) // _FEW_WORK_ON
    hosts = frozenset(host for host, measures in seen.items() if len(measures) >= _MEASURES)
    return hosts if len(hosts) <= max(1, most) else frozenset()


def _culprits(deviations: Sequence[Deviation], graph: Graph, named: Set[str], waits: bool) -> list[_Group]:
    """The groups that nothing else in the episode accounts for, if they are clear and not too many."""
    groups = _groups(deviations, graph)
    if busy := worked_on(deviations):
        groups = [g for g in groups if g.hosts & busy]
    roots = [g for g in groups if not any(_explains(other, g, graph) for other in groups if other is not g)]
    only = waits and len({g.hosts for g in roots}) == 1 and not any(g.everyday for g in roots)
    roots = [g for g in roots if g.strength >= (LEAST_SCORE if only else _CLEAR) or g.hosts <= named]
    roots = [g for g in roots if g.hosts <= named or not all(map(_some_more, g.members))]
    # Who differs from peers says more than the only machine, which has none: its ranks lie on it.
    roots = [g for g in roots if g.members[0].of > 1 and g.strength >= _CLEAR] or roots
    roots = sorted(roots, key=lambda g: (g.everyday, -g.strength, g.members[0].meaning.metric))
    if any(not g.later and not g.everyday for g in roots):
        roots = [g for g in roots if not g.later]  # who was there when it began is the reason, whoever is clearer
    if not roots:
        return []
    best = roots[0]
    rivals = [g for g in roots[1:] if _as_clear(g, best) and g.everyday == best.everyday and not g.hosts <= best.hosts]
    if len({g.quantity for g in (best, *rivals)}) > _STORIES:
        return []  # everybody has something: that names nobody
    return [best, *rivals]


def _as_clear(group: _Group, best: _Group) -> bool:
    """Whether another group is as good a reason, or stands as far beyond chance, which no weight makes smaller."""
    measured = group.members[0].meaning.layer != "activity"  # whose sign has to be read first
    return group.strength >= _RIVAL * best.strength or (measured and group.score >= _RIVAL * best.score)


def _groups(deviations: Sequence[Deviation], graph: Graph) -> list[_Group]:
    fleet = {(d.meaning.metric, d.kind): d for d in deviations if d.fleet}
    alike: dict[tuple[object, ...], list[Deviation]] = {}
    for d in deviations:
        if _can_be_a_reason(d, deviations, graph):  # a card or port that is gone is gone by all its measures
            alike.setdefault((_GONE,) if d.kind == _GONE else d.alike, []).append(d)
    out = []
    for members in alike.values():
        hosts = {d.host for d in members}
        first = members[0]
        if first.of > 1 and 2 * len(hosts) > first.of:
            continue  # what most hosts show accuses nobody
        gone = first.kind == _GONE
        if first.meaning.layer == "activity" and not gone and len(hosts) > max(1, first.of // _FEW_WORK_ON):
            continue  # all wait for one, or for few: several that work on have cards that differ
        most = fleet.get((first.meaning.metric, first.kind))
        members = [d for d in members if most is None or _far_beyond(d, most)]
        if not members:
            continue
        plain = first.meaning.known or all(_out_of_nothing(d) for d in members)
        weight = _WEIGHT["health"] if gone else _WEIGHT.get(first.meaning.layer, 0.0) * (1.0 if plain else _GUESSED)
        clear = max(d.score if gone else _together(members, d.host) for d in members)
        out.append(_Group(tuple(members), weight * min(CAP, clear)))
    return out


def _together(members: Iterable[Deviation], host: str | None) -> float:
    """How far a host is beyond chance: its GPUs or ports are witnesses of their own."""
    return math.hypot(*(d.score for d in members if d.host == host))


def _out_of_nothing(d: Deviation) -> bool:
    """Whether there was next to nothing before: a hundredfold rise needs no name."""
    return d.kind == "rose" and d.after >= _HUNDREDFOLD * abs(d.before)


def _far_beyond(deviation: Deviation, fleet: Deviation) -> bool:
    """Whether a host did much more than most hosts did in the same direction."""
    return abs(deviation.after - deviation.before) >= _BEYOND_FLEET * abs(fleet.after - fleet.before)


def _can_be_a_reason(d: Deviation, deviations: Iterable[Deviation], graph: Graph) -> bool:
    meaning = d.meaning
    if d.fleet or meaning.quantity in graph.never_the_reason:
        return False
    if d.kind == "absent":
        return d.gpu is not None or d.device is not None  # beside its siblings: a whole host that is silent is not it
    if _too_little(d):
        return False
    if d.episode.first and meaning.quantity in graph.held:
        return False  # nothing but the start lies before it
    if _silent(d) and meaning.quantity in graph.shared:
        return False  # of a fabric that is silent, marks tell of others
    if d.kind not in ("rose", "fell") or (d.episode.stops and d.kind == "fell" and meaning.quantity in graph.waiting):
        return False  # what has nothing to do any more cools and clocks down
    if meaning.quantity in graph.for_others:
        return _waited_for(d, deviations)
    untold = d.episode.kind == "long-steps" and not d.episode.saves_told
    if untold and meaning.quantity in graph.follows(*graph.saving):
        return False  # steps that are long now and then may hold saves that nobody told of
    if meaning.layer == "activity":
        return not d.episode.stops and ((d.of > 1 and _out_of_step(d, deviations)) or _beside_the_run(d))
    return meaning.worse(d.kind) and (d.after > d.before) == (d.kind == "rose")  # who fell less became no worse by it


def _silent(d: Deviation) -> bool:
    return d.episode.stops or d.episode.kind == "before-stall"


def _some_more(d: Deviation) -> bool:
    """A silence is total: a little more of what was there all along stops nobody."""
    return _silent(d) and d.kind == "rose" and d.meaning.layer != "activity" and d.after < _TOTAL * d.before


def _too_little(d: Deviation) -> bool:
    """Whether seconds of each second grew by far less than each second lost: they cannot carry it."""
    whole = {"seconds": 1.0, "microseconds": 1e6}.get(d.meaning.unit)
    return bool(
        d.meaning.counts and whole and d.kind == "rose" and d.after - d.before < _CARRIES * d.episode.cost * whole
    )


def _out_of_step(d: Deviation, deviations: Iterable[Deviation]) -> bool:
    """Whether a host works on while all others wait: their activity falls, its own does not (or less)."""
    fell = any(o.fleet and o.kind == "fell" and o.meaning.metric == d.meaning.metric for o in deviations)
    return d.kind == "rose" and fell


def _waited_for(d: Deviation, deviations: Iterable[Deviation]) -> bool:
    """Whether most hosts wait more for each other and this one does not: it is the one they wait for."""
    most = [o for o in deviations if o.fleet and o.kind == "rose" and o.meaning.metric == d.meaning.metric]
    return d.kind == "fell" and any(d.after - d.before < 0.5 * (o.after - o.before) for o in most)


def _beside_the_run(d: Deviation) -> bool:
    """Whether somebody is far more active than before: a slower run asks less of its hosts, so it is not the run."""
    return d.kind == "rose" and d.after >= _MORE * max(d.before, 0.0) and d.after > 0


def _explains(one: _Group, other: _Group, graph: Graph) -> bool:
    """Whether the second group follows from the first; of two that follow from each other the better reason stays."""
    forth, back = _leads(one, other, graph), _leads(other, one, graph)
    if forth and back:
        if len(one.hosts) != len(other.hosts):
            return len(one.hosts) < len(other.hosts)
        return (one.strength, other.members[0].meaning.metric) > (other.strength, one.members[0].meaning.metric)
    return forth


def _leads(one: _Group, other: _Group, graph: Graph) -> bool:
    if other.hosts <= one.hosts:
        return other.quantity in graph.follows(one.quantity)
    if one.hosts & other.hosts:
        return False
    return other.quantity in graph.spreads(one.quantity)
