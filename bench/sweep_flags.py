"""How often the flag tuner is fooled by luck, and how often it finds what is there: simulated cells with a known truth.

python bench/sweep_flags.py                 the table of docs/how-to/sweeps.md: 100 seeds of each cell
python bench/sweep_flags.py --first 1000    other seeds (the figures were chosen on these, never on 0 to 99)
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass, field

import numpy as np

from trackwalker.sweep.flags.catalogue import Variant
from trackwalker.sweep.flags.course import Rules
from trackwalker.sweep.flags.strategy import FlagSweep
from trackwalker.sweep.model import Result, Template, Trial

_FLAG = "FLAG_"
_NODES = ("n1",)


@dataclass(frozen=True)
class Cell:
    """What is true of a cell: so many flags, and what some of them do."""

    name: str
    flags: int = 30
    effects: dict[int, float] = field(default_factory=dict)  # flag -> true change
    together: float | None = None  # of all helpful flags at once, where it is not the sum
    out_of_memory: tuple[int, ...] = ()
    right: tuple[tuple[int, ...], ...] = ((),)  # recommendations that are correct


CELLS = (
    Cell("30 flags that do nothing"),
    Cell("one of 30 gives +3 %", effects={7: 0.03}, right=((7,),)),
    Cell("one of 30 gives +2 %", effects={7: 0.02}, right=((7,),)),
    Cell(
        "+3 %, five that hurt, two out of memory",
        effects={7: 0.03, 1: -0.01, 2: -0.02, 3: -0.04, 4: -0.08, 5: -0.15},
        out_of_memory=(11, 12),
        right=((7,),),
    ),
    Cell("+3 % and +4 %, which add up", effects={7: 0.03, 9: 0.04}, right=((7, 9),)),
    Cell("+3 % and +4 %, which do not", effects={7: 0.03, 9: 0.04}, together=0.035, right=((9,), (7,))),
    Cell("one of 30 gives +6 %", effects={7: 0.06}, right=((7,),)),
    Cell("5 flags that do nothing", flags=5),
    Cell("one of 5 gives +3 %", flags=5, effects={3: 0.03}, right=((3,),)),
)


class World:
    """One node list over a day: runs differ by 0.5 to 1 %, nodes drift, now and then a run is slow for no reason."""

    def __init__(self, cell: Cell, seed: int) -> None:
        self._cell, self._rng = cell, np.random.default_rng(seed)
        self._sd = self._rng.uniform(0.005, 0.010)
        self._swing, self._period = self._rng.uniform(0.0, 0.01), self._rng.uniform(20, 80)
        self._phase = self._rng.uniform(0, 2 * math.pi)
        self._walk = 0.0
        self.jobs = 0

    def __call__(self, trial: Trial, before: int = 0) -> Result:
        """Run it, as the next one in time."""
        self.jobs += 1
        on = {int(name.removeprefix(_FLAG)) for name in trial.env if name.startswith(_FLAG)}
        if on & set(self._cell.out_of_memory):
            return Result(trial.key, "oom", str(self.jobs), why="RESOURCE_EXHAUSTED", phase="compile")
        self._walk += self._rng.normal(0, 0.0008)
        drift = self._walk + self._swing * math.sin(self._phase + 2 * math.pi * self.jobs / self._period)
        noise = self._rng.normal(0, self._sd)
        slow = self._rng.exponential(0.03) + 0.02 if self._rng.random() < 0.02 else 0.0
        score = 1400 * math.exp(self._gain(on) + drift + noise - slow)
        return Result(trial.key, "ok", str(self.jobs), score=score, low=0.998 * score, high=1.002 * score, steps=20)

    def _gain(self, on: set[int]) -> float:
        helpful = {f for f, change in self._cell.effects.items() if change > 0}
        if self._cell.together is not None and helpful and helpful <= on:
            return math.log1p(self._cell.together)
        return sum(math.log1p(self._cell.effects.get(f, 0.0)) for f in on)


@dataclass(frozen=True)
class Played:
    """One sweep to its end."""

    chosen: tuple[int, ...]
    jobs: int
    at_most: int
    said: float | None  # the confirmed change of the best
    covered: bool | None  # whether the truth lies in the interval


def play(cell: Cell, seed: int, rules: Rules | None = None) -> Played:
    """A flag sweep in a cell, run by run."""
    variants = [Variant(f"flag{n}", env={f"{_FLAG}{n}": "1"}) for n in range(cell.flags)]
    sweep = FlagSweep(Template("m", _NODES, {"steps": "30"}, {}), variants, rules=rules or Rules())
    world = World(cell, seed)
    done: dict[str, Result] = {}
    while wanted := sweep.next_trials(done):
        for trial in wanted:
            done[trial.key] = world(trial)
    found = sweep.conclude(done)
    chosen = tuple(sorted(int(name.removeprefix("flag")) for name in found.details["winner"]))
    effect = found.details["effects"].get(found.details["winner"][0]) if chosen else None
    truth = cell.effects.get(int(found.details["winner"][0].removeprefix("flag")), 0.0) if chosen else None
    covered = effect["low"] <= truth <= effect["high"] if effect and truth is not None else None
    return Played(chosen, world.jobs, sweep.at_most(), effect["change"] if effect else None, covered)


def _less(chosen: tuple[int, ...], cell: Cell) -> bool:
    """Whether it recommended a part of what is right: a gain that was left lying, not a mistake."""
    return bool(chosen) and chosen not in cell.right and any(set(chosen) < set(right) for right in cell.right)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cell", default="", help="only cells whose name holds this")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = []
    for cell in (c for c in CELLS if asked.cell in c.name):
        began = time.monotonic()
        played = [play(cell, seed) for seed in range(asked.first, asked.first + asked.seeds)]
        counts = sorted(p.jobs for p in played)
        said = [p.said for p in played if p.said is not None]
        covered = [p.covered for p in played if p.covered is not None]
        rows.append({
            "cell": cell.name,
            "right": sum(p.chosen in cell.right for p in played),
            "less": sum(_less(p.chosen, cell) for p in played),
            "wrong": sum(p.chosen not in cell.right and bool(p.chosen) and not _less(p.chosen, cell) for p in played),
            "seeds": asked.seeds,
            "jobs": {
                "median": counts[len(counts) // 2], "least": counts[0], "most": counts[-1], "bound": played[0].at_most,
            },
            "said": round(float(np.mean(said)), 4) if said else None,
            "covered": round(float(np.mean(covered)), 3) if covered else None,
            "seconds": round(time.monotonic() - began, 1),
        })  # fmt: skip
        if not asked.json:
            r, jobs = rows[-1], rows[-1]["jobs"]
            print(
                f"{r['cell']:42s} right {r['right']:3d}  less {r['less']:3d}  wrong {r['wrong']:3d}  of {r['seeds']}  "
                f"jobs {jobs['median']} ({jobs['least']}-{jobs['most']}, bound {jobs['bound']})  "
                f"said {r['said']}  covered {r['covered']}  {r['seconds']} s",
                flush=True,
            )
    if asked.json:
        print(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
