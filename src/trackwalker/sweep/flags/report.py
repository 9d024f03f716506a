"""What a flag sweep says at its end, and half-way: leaderboard, confirmed effects, failures, the recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import yaml

from trackwalker.stats.selection import Contrast, best_by_luck, shrunk
from trackwalker.sweep.flags.catalogue import Variant, join
from trackwalker.sweep.flags.course import BASELINE, JOIN, PROFILED, Course, Rules, standing_of
from trackwalker.sweep.model import Conclusion, Done, Plot, Table

_TOP, _BOTTOM = 8, 5
_UNSTEADY = 0.02  # error of a confirmed effect: on nodes of one's own it is a quarter of that
_STAGES = {"screen": "screening", "again": "second runs", "confirm": "confirmation", "combine": "combination"}


def report(
    course: Course,
    variants: Mapping[str, Variant],
    done: Done,
    rules: Rules,
    condition: str,
    stopped: str,
    told: Sequence[str],
) -> Conclusion:
    """The conclusion; only confirmation rounds give an effect, whatever the screening looked like."""
    winner = join([variants[name] for name in course.winner]) if course.winner else None
    standing = {a: standing_of(d, course.noise) for a, d in course.seen.items() if a != BASELINE}
    rows = _rows(course, done, standing, rules)
    return Conclusion(
        headline=_headline(course, rules, len(standing), stopped),
        final=bool(stopped) or course.over,
        recommend=winner.words() if winner else {},
        evidence=(*_evidence(course, done, rules, len(standing)), *told),
        caveats=tuple(_caveats(course, rules)),
        tables=_tables(course, done, rows, len(variants), rules),
        plots=(_plot(course, standing, rules),) if standing or course.effects else (),
        recipe=recipe(winner, condition, course) if winner else "",
        details=_details(course, done, rules),
    )


def _headline(course: Course, rules: Rules, tried: int, stopped: str) -> str:
    if stopped:
        return f"Stopped: {stopped}"
    if not course.over:
        return f"Not finished: {_STAGES.get(course.stage, course.stage)}, {len(course.wanted)} runs to go"
    if course.winner:
        best = course.effects[course.winner[0]]
        if len(course.winner) > 1 and course.joint:
            more = f", and together with {JOIN.join(course.winner[1:])} another {_percent(course.joint.change)}"
        else:
            more = ""
        return f"{course.winner[0]} makes it {_percent(best.change)} faster ({_interval(best, rules)}){more}"
    if not course.effects:
        return "No variant could be confirmed: none of them ran"
    none = "No flag makes it faster beyond noise: keep what is deployed"
    seen = max(effect.change for effect in course.effects.values())
    if tried >= rules.bounded_after and seen <= rules.bounded:
        return f"{none}; {tried} variants, none above {_percent(rules.bounded)}: the cell is structurally bounded"
    return none


def _evidence(course: Course, done: Done, rules: Rules, tried: int) -> list[str]:
    scores = [r.score for key, r in done.items() if r.ok and r.score and _is_plain(key)]
    told = []
    if scores:
        told.append(f"baseline: {len(scores)} runs, median {np.median(scores):,.0f} tokens/s/device")
    if course.seen:
        luck = best_by_luck(tried, course.noise.sd)
        told.append(
            f"runs with the same settings differ by {_percent(course.noise.sd)} (standard deviation, drift taken out); "
            f"the best of {tried} variants that do nothing would look {_percent(luck)} faster"
        )
    for arm in course.finalists:
        if effect := course.effects.get(arm):
            word = "confirmed" if arm in course.confirmed else "not confirmed"
            told.append(
                f"{arm}: {effect.change:+.1%} in {effect.runs} confirmation runs, {_interval(effect, rules)}: {word}"
            )
    if course.joint:
        low, high = course.joint.bounds(0.025)
        add = "adds up" if len(course.winner) > 1 else "does not add up: the single one is recommended"
        told.append(
            f"{JOIN.join(course.together)} against {course.together[0]} alone: {course.joint.change:+.1%} "
            f"(95 % interval {low:+.1%} to {high:+.1%}): {add}"
        )
    return told


def _caveats(course: Course, rules: Rules) -> list[str]:
    said = ["valid for this model, mesh, node list and image only: on another mesh the sign often flips; measure there"]
    if any(effect.error > _UNSTEADY for effect in course.effects.values()):
        said.append("equal runs differ too much here to trust any of this: see who else computes on these nodes")
    if course.effects and not course.winner:
        error = max(effect.error for effect in course.effects.values())
        said.append(f"a gain below about {_percent(3 * error)} could have gone unseen among the finalists")
    lost = [a for a in course.finalists if a in course.out]
    said += [f"{arm} was fast and then failed ({course.out[arm].status}): left out" for arm in lost]
    if course.winner and course.effects[course.winner[0]].change >= rules.enough:
        said.append(f"the search ended at a confirmed gain of {_percent(rules.enough)}: there may be more")
    return said


def _rows(course: Course, done: Done, standing: Mapping[str, float], rules: Rules) -> list[tuple[str, ...]]:
    """The leaderboard: confirmed figures where there are some, else what screening leads to expect."""
    spread = float(np.std(list(standing.values()))) if len(standing) > 2 else 0.0
    expected = {a: shrunk(s, len(course.seen[a]), spread, course.noise) for a, s in standing.items()}
    order = {**expected, **{a: e.change for a, e in course.effects.items()}}
    rows: list[tuple[str, ...]] = []
    for arm in sorted(order, key=lambda a: (-order[a], a)):
        effect = course.effects.get(arm)
        jobs = [r.job for key, r in done.items() if r.job and _is_plain(key, arm)]
        rows.append((
            arm,
            f"{standing[arm]:+.1%}" if arm in standing else "",
            f"{effect.change:+.1%}" if effect else "",
            _interval(effect, rules).split(" interval ")[-1] if effect else "",
            _verdict(course, arm, expected.get(arm)),
            ", ".join(jobs),
        ))  # fmt: skip
    return rows


def _verdict(course: Course, arm: str, expected: float | None) -> str:
    if arm in course.out:
        return f"failed: {course.out[arm].status}"
    if arm in course.winner:
        return "recommended"
    if arm in course.confirmed:
        return "confirmed"
    if arm in course.effects:
        return "not confirmed"
    return f"screened only; expect {expected:+.1%}" if expected is not None else ""


def _tables(
    course: Course, done: Done, rows: Sequence[tuple[str, ...]], variants: int, rules: Rules
) -> tuple[Table, ...]:
    columns = ("variant", "screening", "confirmed", _level(rules), "verdict", "jobs")
    short = len(rows) > _TOP + _BOTTOM
    tables = [Table("Leaderboard" + (f", top {_TOP}" if short else ""), columns, tuple(rows[:_TOP] if short else rows))]
    if short:
        tables.append(Table(f"Bottom {_BOTTOM}", columns, tuple(rows[-_BOTTOM:])))
    if course.out:
        failed = tuple((arm, r.status, r.job, r.why or r.cause, _remedy(r.status)) for arm, r in course.out.items())
        tables.append(Table("Failed and dropped", ("variant", "how", "job", "why", "what it means"), failed))
    stages = Counter(key.partition(":")[0].rstrip("0123456789.") for key in done)
    ran = tuple((_STAGES.get(stage, stage), str(n)) for stage, n in stages.items())
    return (*tables, Table(f"Runs for {variants} variants", ("stage", "runs"), ran))


def _remedy(status: str) -> str:
    return {
        "oom": "needs more memory than there is: never repeated",
        "config-error": "this version does not know it: correct the variant or leave it out",
        "hang": "hung twice: out",
    }.get(status, "see its job with triage")


def _plot(course: Course, standing: Mapping[str, float], rules: Rules) -> Plot:
    shown = {**standing, **{a: e.change for a, e in course.effects.items()}}
    names = sorted(shown, key=lambda a: -shown[a])
    bounds = [course.effects[a].bounds(rules.test) if a in course.effects else (None, None) for a in names]
    return Plot(
        title="Change against the baseline; with an interval where it was confirmed or refuted",
        x_label="variant",
        y_label="change, %",
        x=tuple(names),
        y=tuple(100 * shown[a] for a in names),
        low=tuple(100 * low if low is not None else None for low, _ in bounds),
        high=tuple(100 * high if high is not None else None for _, high in bounds),
        marked=tuple(at for at, a in enumerate(names) if a in course.winner),
    )


def recipe(winner: Variant, condition: str, course: Course) -> str:
    """The lines that put a winner into the model file's own layer, bound to the mesh they were measured on."""
    gain = course.effects[course.winner[0]].change
    why = f"{gain:+.1%} measured by a flag sweep ({winner.name})"
    parts = {"config": dict(winner.config), "env": dict(winner.env), "xla_flags": dict(winner.flags)}
    parts = {name: values for name, values in parts.items() if values}
    rule = {"name": "tuned", "when": condition, "why": why, **parts}
    block = {"trackwalker": {"rules": [rule]}} if condition or winner.config else {"trackwalker": parts}
    if "rules" in block["trackwalker"] and not condition:
        rule["when"] = "nodes >= 1"
    return yaml.safe_dump(block, sort_keys=False, allow_unicode=True, width=110)


def _details(course: Course, done: Done, rules: Rules) -> dict[str, object]:
    effects = {
        arm: {"change": e.change, "low": e.bounds(rules.test)[0], "high": e.bounds(rules.test)[1], "runs": e.runs}
        for arm, e in course.effects.items()
    }
    return {
        "stage": course.stage,
        "runs": len(done),
        "noise": course.noise.sd,
        "finalists": list(course.finalists),
        "confirmed": list(course.confirmed),
        "winner": list(course.winner),
        "effects": effects,
        "failed": {arm: r.status for arm, r in course.out.items()},
    }


def _is_plain(key: str, arm: str = BASELINE) -> bool:
    return key.endswith(f":{arm}") and not key.startswith(PROFILED)


def _interval(effect: Contrast, rules: Rules) -> str:
    low, high = effect.bounds(rules.test)
    return f"{_level(rules)} {low:+.1%} to {high:+.1%}"


def _level(rules: Rules) -> str:
    """Of the intervals: it holds for all finalists and looks together, not for each alone."""
    return f"{1 - 2 * rules.alpha:.0%} interval"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
