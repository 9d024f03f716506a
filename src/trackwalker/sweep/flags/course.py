"""The course of a flag sweep: screen all, repeat the better ones, confirm three in rounds with the baseline, combine.

Everything here follows from the finished results alone. Screening only chooses; what it saw never counts as an effect,
because the best of many equal settings looks good by luck. Effects come from the confirmation rounds.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trackwalker.stats.selection import USUAL, Contrast, Noise, contrasts, local_level, run_noise
from trackwalker.sweep.model import Done, Result

BASELINE = "baseline"
PROFILED = "profile"
JOIN = " + "
Parts = Mapping[str, Mapping[str, str]]  # variant -> what it sets
# How a run of a variant can end so that the variant is out; a node's fault or a cancelled run says nothing about it.
_OUT = ("oom", "hang", "config-error", "failed")


@dataclass(frozen=True)
class Rules:
    """The figures of a flag sweep; bench/sweep_flags.py measures what they give."""

    wave: int = 6  # variants between two baselines of the screening
    again: int = 8  # variants that are run a second time
    finalists: int = 3
    rounds: int = 3  # of each look at the finalists
    looks: int = 3
    undecided: int = 2  # finalists that a later look takes on
    pairs: int = 5  # rounds of a combination against its best part
    alpha: float = 0.01  # chance that any of the finalists is confirmed by luck
    worthwhile: float = 0.01  # a smaller gain is not recommended
    enough: float = 0.05  # a confirmed gain of this size ends the search
    bounded: float = 0.02
    bounded_after: int = 25  # variants without a gain of `bounded`: the cell is bounded by something else

    @property
    def test(self) -> float:
        """The chance of one test: shared out among finalists and looks."""
        return self.alpha / (self.finalists * self.looks)


@dataclass(frozen=True)
class Slot:
    """One run: of what, and in which block of runs that are close in time."""

    key: str
    arm: str
    block: int = 0


@dataclass
class Course:
    """How far a sweep is: what to run next, and what is known."""

    stage: str = "screen"
    wanted: list[Slot] = field(default_factory=list)
    out: dict[str, Result] = field(default_factory=dict)  # variants that failed, and how
    seen: dict[str, list[float]] = field(default_factory=dict)  # deviations from the level around them
    noise: Noise = field(default_factory=lambda: Noise(USUAL, 3.0))
    finalists: tuple[str, ...] = ()
    effects: dict[str, Contrast] = field(default_factory=dict)  # of the confirmation alone, against the baseline
    confirmed: tuple[str, ...] = ()  # best first
    together: tuple[str, ...] = ()  # the combination that was tried
    joint: Contrast | None = None  # against its best part
    winner: tuple[str, ...] = ()  # what is recommended

    @property
    def over(self) -> bool:
        """Whether there is nothing more to run."""
        return self.stage == "done"


def follow(parts: Parts, done: Done, rules: Rules = Rules(), profile: bool = False) -> Course:  # noqa: B008
    """Where a sweep over these variants stands; `parts` says what each sets, to see which can be combined."""
    runs = [Slot(key, key.partition(":")[2]) for key in done if not key.startswith(PROFILED)]
    course = Course(out=_failed(done, runs))
    for stage in (_screen, _again, _confirm, _combine):
        stage(course, parts, done, rules)
        if course.wanted:
            return course
    if any(arm in course.out for arm in course.winner):
        course.winner = ()  # it was fast and then it failed: nobody wants that
    if profile and course.winner:
        _ask(course, PROFILED, [Slot(f"{PROFILED}:{arm}", arm) for arm in (BASELINE, JOIN.join(course.winner))], done)
    if not course.wanted:
        course.stage = "done"
    return course


def at_most(variants: int, rules: Rules, profile: bool) -> int:
    """The most runs that a sweep over so many variants can come to."""
    last = min(variants, rules.finalists)
    screening = variants + math.ceil(variants / rules.wave) + 1 if variants > rules.finalists else 0
    second = min(variants, rules.again) if variants > rules.finalists else 0
    later = min(last, rules.undecided)
    rounds = rules.rounds * (last + _baselines(last) + (rules.looks - 1) * (later + _baselines(later)))
    return screening + second + rounds + (2 * rules.pairs if last > 1 else 0) + (2 if profile else 0)


def _screen(course: Course, parts: Parts, done: Done, rules: Rules) -> None:
    """Every variant once, in an order that has nothing to do with their kind, baselines in between."""
    if len(parts) <= rules.finalists:
        course.finalists = tuple(parts)
        return
    arms = [BASELINE]
    for at, arm in enumerate(sorted(parts, key=lambda a: zlib.crc32(a.encode())), 1):
        arms += [arm, BASELINE] if at % rules.wave == 0 or at == len(parts) else [arm]
    slots = [Slot(f"screen{at}:{arm}", arm) for at, arm in enumerate(arms, 1)]
    if _ask(course, "screen", slots, done):
        return
    logs = np.array([_log(done, s.key) for s in slots])
    deviations = logs - local_level(logs)
    course.noise = run_noise(deviations)
    for slot, deviation in zip(slots, deviations, strict=True):
        if np.isfinite(deviation):
            course.seen.setdefault(slot.arm, []).append(float(deviation))


def _again(course: Course, parts: Parts, done: Done, rules: Rules) -> None:
    """The better ones a second time; the best by both runs are the finalists."""
    if len(parts) <= rules.finalists:
        return
    better = _best(course, course.seen, rules.again)
    if len(better) > rules.finalists:
        slots = [Slot(f"again{at}:{arm}", arm) for at, arm in enumerate(better, 1)]
        if _ask(course, "again", slots, done):
            return
        logs = np.array([_log(done, s.key) for s in slots])
        level = np.nanmedian(logs) if np.isfinite(logs).any() else np.nan
        for slot, log in zip(slots, logs, strict=True):
            if np.isfinite(log):
                course.seen[slot.arm].append(float(log - level))
        better = tuple(a for a in better if a not in _failed(done, slots))
    course.finalists = _best(course, better, rules.finalists)


def _confirm(course: Course, parts: Parts, done: Done, rules: Rules) -> None:
    """Rounds of finalists and baseline; after each look the hopeless leave, and those that are sure are confirmed."""
    slots: list[Slot] = []
    alive = list(course.finalists)
    sure: set[str] = set()
    for look in range(rules.looks if alive else 0):
        first = look * rules.rounds + 1
        slots += [s for r in range(first, first + rules.rounds) for s in _round(r, alive)]
        if _ask(course, "confirm", slots, done, course.out):
            return
        found = _effects(slots, done, course.noise)
        course.effects |= {arm: found[arm] for arm in alive if arm in found}
        alive = [a for a in alive if a in found and a not in _failed(done, slots)]
        sure = {a for a in {*sure, *alive} if a not in _failed(done, slots) and (a in sure or _sure(found[a], rules))}
        alive = [a for a in alive if a not in sure and found[a].change >= rules.worthwhile / 2]
        alive = sorted(alive, key=lambda a: -found[a].change)[: rules.undecided]
        if not alive or any(course.effects[a].change >= rules.enough for a in sure):
            break
    course.confirmed = tuple(sorted(sure, key=lambda a: -course.effects[a].change))
    course.winner = course.confirmed[:1]


def _combine(course: Course, parts: Parts, done: Done, rules: Rules) -> None:
    """Several winners together against the best of them: gains seldom add up, and sometimes cancel."""
    together: list[str] = []
    for arm in course.confirmed:
        taken = {name for chosen in together for name in parts[chosen]}
        if not taken & parts[arm].keys():
            together.append(arm)
    if len(together) < 2 or course.effects[together[0]].change >= rules.enough:
        return
    course.together = tuple(together)
    best, joint = together[0], JOIN.join(together)
    rounds = range(1, rules.pairs + 1)
    slots = [Slot(f"combine{r}:{a}", a, r) for r in rounds for a in ((best, joint) if r % 2 else (joint, best))]
    if joint in course.out or _ask(course, "combine", slots, done):
        return
    course.joint = _effects(slots, done, course.noise, against=best).get(joint)
    if course.joint is not None and course.joint.bounds(0.05)[0] > 0:
        course.winner = course.together


def _sure(effect: Contrast, rules: Rules) -> bool:
    return effect.bounds(rules.test)[0] > 0 and effect.change >= rules.worthwhile


def _round(number: int, arms: Sequence[str]) -> list[Slot]:
    """One round: every finalist once, the baseline once or twice, and another order in every round."""
    order = [BASELINE, *arms]
    if _baselines(len(arms)) > 1:
        order.insert(1 + len(arms) // 2 + 1, BASELINE)
    turn = (number - 1) % len(order)
    order = order[turn:] + order[:turn]
    return [Slot(f"confirm{number}.{at}:{arm}", arm, number) for at, arm in enumerate(order, 1)]


def _baselines(arms: int) -> int:
    """Everybody is compared with the baseline: with three finalists it is worth two runs a round."""
    return 2 if arms > 2 else 1


def _best(course: Course, among: Iterable[str], most: int) -> tuple[str, ...]:
    standing = {a: standing_of(course.seen[a], course.noise) for a in among if a != BASELINE}
    return tuple(sorted(standing, key=lambda a: (-standing[a], a))[:most])


def standing_of(deviations: Sequence[float], noise: Noise) -> float:
    """What the screening runs of a variant come to; of two that contradict each other the faster one counts.

    A neighbour's job, a hot node or a slow file system make a run slow by accident; nothing makes it fast by accident.
    """
    apart = max(deviations) - min(deviations)
    return max(deviations) if apart > 4 * noise.sd else float(np.mean(deviations))


def _effects(slots: Iterable[Slot], done: Done, noise: Noise, against: str = BASELINE) -> dict[str, Contrast]:
    rows = [(s.block, s.arm, _log(done, s.key)) for s in slots]
    rows = [r for r in rows if np.isfinite(r[2])]
    blocks, arms, logs = zip(*rows, strict=True) if rows else ((), (), ())
    return contrasts(blocks, arms, logs, against, noise)


def _ask(course: Course, stage: str, slots: list[Slot], done: Done, out: Collection[str] = ()) -> list[Slot]:
    """The slots that are still to be run; a variant that is out is not run again."""
    course.stage = stage
    course.wanted = [s for s in slots if s.key not in done and s.arm not in out]
    return course.wanted


def _failed(done: Done, slots: Iterable[Slot]) -> dict[str, Result]:
    """Variants that failed in these runs: only in these, so that a later failure does not rewrite the past."""
    keyed = {s.arm: done[s.key] for s in slots if s.key in done and done[s.key].status in _OUT}
    return {arm: result for arm, result in keyed.items() if arm != BASELINE}


def _log(done: Done, key: str) -> float:
    result = done.get(key)
    good = result is not None and result.ok and result.score is not None and result.score > 0
    return math.log(result.score) if good and result is not None and result.score else math.nan
