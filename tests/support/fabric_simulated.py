"""A simulated fabric with known bad nodes and links: what the network sweep is measured on, a thousand times."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from trackwalker.sweep.model import Result, Trial

STEPS = 25  # steady ones
WITHIN = 0.02  # noise of a step within a run
DISTURBED = 0.01  # share of runs that something else slows down for a while


@dataclass
class Fabric:
    """Step times of groups: the slowest node and the slowest link of a group count, then noise."""

    names: list[str]
    nodes: Mapping[str, float] = field(default_factory=dict)  # slow-down of a bad node: 0.05 is 5 %
    links: Mapping[frozenset[str], float] = field(default_factory=dict)
    noise: float = 0.008  # between runs
    seed: int = 0
    disturbed: float = DISTURBED

    def __call__(self, trial: Trial, before: int) -> Result:
        """One run; the same trial gives the same result, whenever it is run."""
        rng = random.Random(f"{self.seed}/{trial.key}/{before}")
        members = set(trial.nodes)
        node = max((slow for name, slow in self.nodes.items() if name in members), default=0.0)
        link = max((slow for ends, slow in self.links.items() if ends <= members), default=0.0)
        size = len(members)
        ideal = 10.0 * (1.0 + 0.25 * (size - 1) / size + 0.02 * math.log2(size))
        seconds = ideal * (1.0 + node + link) * math.exp(rng.gauss(0.0, self.noise))
        if rng.random() < self.disturbed:
            seconds *= 1.0 + rng.uniform(0.03, 0.15)
        error = WITHIN / math.sqrt(STEPS)
        seconds *= math.exp(rng.gauss(0.0, error))
        score = 8192.0 / seconds
        band = math.exp(1.96 * error)
        return Result(
            trial.key, "ok", score=score, low=score / band, high=score * band, step_s=seconds, steps=STEPS, minutes=8.0
        )


def random_fabric(count: int, seed: int, smallest: float = 0.05, largest: float = 0.4) -> Fabric:
    """A cluster with no fault up to a few, each a node or a link, each slower by 5 to 40 %."""
    rng = random.Random(f"fabric/{count}/{seed}")
    names = [f"n{at:03d}" for at in range(count)]
    weights = [15, 40, 25, 15, 5] if count >= 32 else [15, 50, 35]
    faults = rng.choices(range(len(weights)), weights)[0]
    nodes: dict[str, float] = {}
    links: dict[frozenset[str], float] = {}
    for _ in range(faults):
        slow = math.exp(rng.uniform(math.log(smallest), math.log(largest)))
        good = [name for name in names if name not in nodes and not any(name in link for link in links)]
        if rng.random() < 0.5:
            nodes[rng.choice(good)] = slow
        else:
            links[frozenset(rng.sample(good, 2))] = slow
    return Fabric(names, nodes, links, noise=rng.uniform(0.005, 0.01), seed=seed)


def switch_fabric(count: int, seed: int, slow: float = 0.15) -> Fabric:
    """A cluster in which all links between two blocks of neighbours are slow: a switch, not a node."""
    rng = random.Random(f"switch/{count}/{seed}")
    names = [f"n{at:03d}" for at in range(count)]
    width = max(count // 8, 3)
    leaves = [names[at : at + width] for at in range(0, count - width + 1, width)]
    one, other = rng.sample(leaves, 2)
    links = {frozenset((a, b)): slow for a in one for b in other}
    return Fabric(names, {}, links, noise=rng.uniform(0.005, 0.01), seed=seed)
