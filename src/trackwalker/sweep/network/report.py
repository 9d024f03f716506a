"""What a network sweep says: who is at fault, which pairs prove it, and how many jobs noise has cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trackwalker.stats.groups import SMALLEST, Fit, Timing, fit
from trackwalker.sweep.model import Conclusion, Done, Plot, Result, Table
from trackwalker.sweep.network.book import MOST_RUNS, Book, Group, Seen
from trackwalker.sweep.network.design import Faults
from trackwalker.sweep.network.search import solve

_MATTERS = math.expm1(SMALLEST)  # the slow-down that has to be found, as a share
_SIGMAS = 2.0  # half of an interval, in standard errors
_LEAST_EFFECT = 1.2 * SMALLEST  # of a fault when it is played without noise: a smaller one might not be seen
_USES = (
    "a group is taken to use the link between any two of its nodes; a ring uses only some, so a link that no group "
    "used is not judged. The suspects were measured in pairs, where this is exact"
)


@dataclass(frozen=True)
class Findings:
    """Everything a report needs."""

    names: Sequence[str]
    faults: Faults
    final: bool
    cut_short: bool
    done: Done
    groups: Mapping[Group, Sequence[str]]  # keys of their runs
    slow: Mapping[Group, bool]
    noise: float
    most_faults: int
    expect: float | None = None
    stopped: str = ""

    def name(self, group: Group) -> str:
        """Nodes as spans of the node list."""
        return spans(self.names, group)

    def runs(self, group: Group) -> list[Result]:
        """Its finished runs."""
        return [self.done[key] for key in self.groups.get(group, ()) if key in self.done]


def conclude(found: Findings) -> Conclusion:
    """The answer with its evidence."""
    model = _fit(found)
    faults = found.faults
    jobs = len(found.done)
    told = found.final and not found.stopped and not faults.shared
    plain = played_jobs(found, model) if told else None
    details = {
        "jobs": jobs,
        "jobs_without_noise": plain,
        "noise_pct": round(100.0 * found.noise, 2) if _repeated(found) else None,
        "faults": [
            {
                "kind": "node" if len(f) == 1 else "link",
                "nodes": [found.names[n] for n in f],
                "slower_pct": _slower(model, f),
            }
            for f in _all(faults)
        ],
        "shared": [[found.names[n] for n in pair] for pair in faults.shared],
        "undecided": [[found.names[n] for n in group] for group in sorted(faults.given_up)],
    }
    evidence = [*_evidence(found, model), _cost(jobs, plain)]
    return Conclusion(
        headline=_headline(found, model),
        final=found.final,
        exclude=tuple(found.names[n] for n in sorted(faults.nodes)),
        pairs=tuple((found.names[a], found.names[b]) for a, b in sorted(faults.links)),
        evidence=tuple(line for line in evidence if line),
        caveats=tuple(_caveats(found)),
        tables=(_table(found, model),),
        plots=(_plot(found, model),),
        details=details,
    )


def played_jobs(found: Findings, model: Fit) -> int:
    """Jobs that the search takes for the same faults in a world without noise: played, not guessed."""
    effects = {frozenset(f): max(model.effects.get(frozenset(f), 0.0), _LEAST_EFFECT) for f in _all(found.faults)}
    world = Fit(dict.fromkeys(range(2, len(found.names) + 1), 0.0), effects, 0.0)
    book = Book(lambda group: [Seen(world.expected(frozenset(group)), 0.0)] * MOST_RUNS)
    solve(book, len(found.names), found.most_faults)
    return sum(book.asked.values())


def spans(names: Sequence[str], group: Group) -> str:
    """Nodes of a group for people: neighbours of the node list as first..last."""
    parts: list[str] = []
    at = 0
    while at < len(group):
        end = at
        while end + 1 < len(group) and group[end + 1] == group[end] + 1:
            end += 1
        first, last = names[group[at]], names[group[end]]
        parts += [first] if end == at else [first, last] if end == at + 1 else [f"{first}..{last}"]
        at = end + 1
    return ", ".join(parts)


def _all(faults: Faults) -> list[Group]:
    return [*((node,) for node in sorted(faults.nodes)), *sorted(faults.links)]


def _fit(found: Findings) -> Fit:
    timings = [
        Timing(frozenset(group), math.log(r.step_s or 1.0 / (r.score or 1.0)))
        for group in found.groups
        for r in found.runs(group)
        if r.ok
    ]
    return fit(timings, [frozenset(f) for f in [*_all(found.faults), *found.faults.shared]])


def _slower(model: Fit, fault: Group) -> float | None:
    effect = model.effects.get(frozenset(fault))
    return None if not effect else round(100.0 * math.expm1(effect), 1)


def _size(model: Fit, fault: Group) -> str:
    slower = _slower(model, fault)
    return "its jobs fail" if slower is None else f"{slower:+.1f} % step time"


def _headline(found: Findings, model: Fit) -> str:
    faults, names = found.faults, found.names
    if found.stopped:
        return found.stopped
    if faults.shared:
        pairs = ", ".join(f"{names[a]}-{names[b]}" for a, b in faults.shared)
        return (
            f"links between neighbours are slow together ({pairs}): something they share, a leaf, uplink or spine; "
            "no node is suspect, ask the network team"
        )
    said = [f"{names[n]} is slow with everybody ({_size(model, (n,))}): leave it out" for n in sorted(faults.nodes)]
    said += [
        f"the link {names[a]}-{names[b]} is slow ({_size(model, (a, b))}), both nodes are good with others"
        for a, b in sorted(faults.links)
    ]
    if said:
        return "; ".join(said)
    if not found.final:
        return f"nothing is named yet after {len(found.done)} jobs"
    if len(names) == 2:
        return "two nodes make one pair: nothing of its size to compare it with, so nobody can be called slow"
    if faults.given_up:
        return f"slow, but nobody can be named: {found.name(min(faults.given_up, key=len))}"
    short = _below_expected(found)
    if short is not None:
        return (
            f"no node or link stands out, but all groups are {100 * short:.1f} % below the expected {found.expect:g} "
            "tokens/s/device: something all share (fabric, storage, software); ask the network team"
        )
    return f"all {len(names)} nodes and their links are alike: none is slow by {100 * _MATTERS:.0f} % or more"


def _below_expected(found: Findings) -> float | None:
    """How far the largest groups are below what was expected of them; None when they are not, or nobody said."""
    largest = max((len(group) for group in found.groups), default=0)
    scores = [r.score for g in found.groups if len(g) == largest for r in found.runs(g) if r.ok and r.score]
    if found.expect is None or not scores:
        return None
    short = 1.0 - sorted(scores)[len(scores) // 2] / found.expect
    return short if short >= _MATTERS else None


def _evidence(found: Findings, model: Fit) -> list[str]:
    lines = []
    good = [group for group in found.groups if len(group) == 2 and _verdict(found, model, group) == "good"]
    for fault in [*_all(found.faults), *found.faults.shared]:
        pairs = [g for g in found.groups if len(g) == 2 and set(fault) <= set(g)]
        seen = [f"{found.name(pair)} {_against(found, model, pair)}" for pair in pairs]
        lines.append(f"measured in pairs: {'; '.join(seen)}; {len(good)} other pairs are good")
    return lines


def _against(found: Findings, model: Fit, group: Group) -> str:
    """A group against the level of its size, with the number of runs."""
    runs = found.runs(group)
    times = [r.step_s for r in runs if r.ok and r.step_s]
    if not times:
        return f"fails ({runs[0].cause or runs[0].status})" if runs else "not run yet"
    base = model.base.get(len(group))
    mean = math.exp(sum(map(math.log, times)) / len(times))
    told = f"{mean:.4g} s" if base is None else f"{100 * math.expm1(math.log(mean) - base):+.1f} %"
    return told if len(runs) == 1 else f"{told} in {len(runs)} runs"


def _verdict(found: Findings, model: Fit, group: Group) -> str:
    """A group by the interval of its difference from the good groups of its size, as all the runs have it now.

    The search judged it by what was known then; a table is read beside its own figures.
    """
    runs = found.runs(group)
    times = [math.log(r.step_s) for r in runs if r.ok and r.step_s]
    if runs and not times:
        return "fails"
    base = model.base.get(len(group))
    if not times or base is None or group not in found.slow:
        return "open"
    others = sum(len(found.runs(g)) for g in found.groups if len(g) == len(group) and g != group)
    error = found.noise * math.sqrt(1.0 / len(times) + 1.0 / max(others, 1))
    apart = sum(times) / len(times) - base
    if apart + _SIGMAS * error < SMALLEST:
        return "good"
    return "slow" if apart - _SIGMAS * error > 0.0 else "unclear"


def _repeated(found: Findings) -> bool:
    """Whether any group ran twice: before that, noise is a belief and no figure."""
    return any(sum(r.ok for r in found.runs(group)) > 1 for group in found.groups)


def _cost(jobs: int, plain: int | None) -> str:
    return f"{jobs} jobs, {jobs - plain} of them against noise" if plain is not None and jobs > plain else ""


def _caveats(found: Findings) -> list[str]:
    said = [_USES]
    if found.cut_short:
        said.append("the announced number of jobs is used up: more may be wrong than is named here")
    if found.faults.shared:
        said.append("other faults may hide behind what is shared: sweep again when it is repaired")
    if found.faults.count >= found.most_faults:
        said.append(f"{found.faults.count} faults are named and more may be there: so many suggest a cause they share")
    said += [
        f"{found.name(g)} stays slow and nobody in it could be proven at fault" for g in sorted(found.faults.given_up)
    ]
    if found.expect is None and not found.faults.count:
        said.append("groups are compared with each other: if all are slow alike, only --expect can tell")
    if len(found.names) < 4:
        said.append("with so few nodes one good pair is the only yardstick")
    return said


def _table(found: Findings, model: Fit) -> Table:
    rows = []
    for group in sorted(found.groups, key=lambda g: (-len(g), g)):
        runs = found.runs(group)
        times = [r.step_s for r in runs if r.ok and r.step_s]
        comm = [r.comm_s for r in runs if r.ok and r.comm_s]
        rows.append(
            (
                found.name(group),
                str(len(group)),
                ", ".join(r.job for r in runs if r.job) or "-",
                f"{sum(times) / len(times):.4g}" if times else "-",
                f"{sum(comm) / len(comm):.4g}" if comm else "-",
                _against(found, model, group),
                _verdict(found, model, group),
            )
        )
    columns = ("nodes", "count", "jobs", "step s", "collectives s", "against good groups of its size", "verdict")
    return Table("Groups", columns, tuple(rows))


def _plot(found: Findings, model: Fit) -> Plot:
    groups = sorted((g for g in found.groups if len(g) in model.base), key=lambda g: (-len(g), g))
    y: list[float | None] = []
    for group in groups:
        times = [math.log(r.step_s) for r in found.runs(group) if r.ok and r.step_s]
        y.append(100.0 * math.expm1(sum(times) / len(times) - model.base[len(group)]) if times else None)
    marked = tuple(at for at, group in enumerate(groups) if _verdict(found, model, group) == "slow")
    return Plot(
        title="Step time of each group against good groups of its size",
        x_label="group",
        y_label="slower, %",
        x=tuple(
            f"{len(g)}: {found.name(g)}" if len(g) <= 2 else f"{len(g)} nodes, {at + 1}" for at, g in enumerate(groups)
        ),
        y=tuple(y),
        marked=marked,
    )
