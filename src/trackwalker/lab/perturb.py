"""A scenario in another world: more or fewer nodes, more or less noise, an earlier or later onset, a larger or smaller
fault. One draw of a family may be right by luck; many are not."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trackwalker.lab.scenario import Scenario, Truth
from trackwalker.lab.variants import FAMILIES, Variant
from trackwalker.lab.world import WorldSpec

_NAME = re.compile(r"(world|stress)-(\d+)")
_NODES = (0.5, 0.75, 1.0, 1.5, 2.0)
_MOST_NODES = 64
_MOST_NOISE = 0.012  # louder worlds are families of their own: what is small there is not to be seen
_LEAST_EFFECT, _LEAST_OF_NOISE = 0.06, 6.0  # a fault is never made smaller than this: nobody could see it
_PLACES = ("begin", "end", "at")
_MUCH = ("seconds", "retx", "cnp", "procs")


@dataclass(frozen=True)
class World(Variant):
    """One perturbed world of a scenario."""

    noise: float = 0.0
    bend: float = 1.0  # of the places in the run: share ** bend
    much: float = 1.0  # of the fault
    harsh: bool = False  # faults down to nothing, as hard to see as may be
    dark: tuple[str, ...] = ()  # metrics that are not collected

    def world(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The world's own settings over the scenario's."""
        return super().world(asked) | {"noise": self.noise}

    def fault(self, filled: dict[str, Any]) -> dict[str, Any]:
        """The same fault, larger or smaller, earlier or later; what follows what stays so."""
        out = dict(filled)
        for key in _PLACES:
            if isinstance(out.get(key), float):
                out[key] = out[key] ** self.bend  # 0 and 1 stay where they are, the order too
        if isinstance(out.get("factor"), float):
            effect = out["factor"] - 1.0
            least = 0.0 if self.harsh else max(_LEAST_EFFECT, _LEAST_OF_NOISE * self.noise)
            out["factor"] = 1.0 + max(effect * self.much, min(effect, least))
        for key in _MUCH:
            if isinstance(out.get(key), float | int):
                out[key] = float(out[key]) * (self.much if self.harsh else max(self.much, 0.7))
        return out

    def dropped(self, seed: int) -> tuple[str, ...]:
        """The metrics that this world does not collect."""
        return self.dark

    def truth(self, truth: Truth) -> Truth:
        """In a harsh world what would decide may not be there: then abstaining is right too."""
        return truth.model_copy(update={"or_abstain": True}) if self.harsh else truth


def perturbed(scenario: Scenario, number: int) -> World:
    """The world of a number; the same number always gives the same one."""
    rng = np.random.default_rng([number, scenario.seed, 77])
    spec = WorldSpec.model_validate({k: v for k, v in scenario.world.items() if not str(v).startswith("$")})
    return World(
        name=f"world-{number}",
        nodes=_nodes(scenario, spec.nodes, float(rng.choice(_NODES))),
        noise=min(spec.noise * float(rng.uniform(0.5, 2.0)), max(spec.noise, _MOST_NOISE)),
        bend=float(np.exp(rng.uniform(-0.25, 0.25))),
        much=float(np.exp(rng.uniform(np.log(0.5), np.log(2.0)))),
    )


def stressed(scenario: Scenario, number: int) -> World:
    """A world in which a diagnoser has to go wrong now and then: small faults, much noise, half the metrics gone."""
    usual = perturbed(scenario, number)
    rng = np.random.default_rng([number, scenario.seed, 78])
    dark = rng.choice(len(FAMILIES), int(rng.integers(1, 4)), replace=False)
    return replace(
        usual,
        name=f"stress-{number}",
        noise=usual.noise * float(rng.uniform(1.0, 4.0)),
        much=float(np.exp(rng.uniform(np.log(0.15), np.log(1.5)))),
        lost_scrapes=float(rng.choice([0.01, 0.05, 0.1])),
        skew_s=float(rng.choice([0.0, 60.0])),
        harsh=True,
        dark=tuple(pattern for i in sorted(dark.tolist()) for pattern in FAMILIES[i]),
    )


def named(scenario: Scenario, name: str) -> World | None:
    """The world that a case's variant names, where it names one."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return (perturbed if found[1] == "world" else stressed)(scenario, int(found[2]))


def _nodes(scenario: Scenario, nodes: int, share: float) -> int | None:
    """So many nodes that the drawn hosts stay a minority; one or two nodes stay what they are."""
    if nodes <= 2:
        return None
    drawn = sum(int(rule["hosts"]) for rule in scenario.draw.values() if isinstance(rule, dict) and "hosts" in rule)
    least = max(min(nodes, 3 * drawn + 2), min(nodes, 4))
    return max(least, min(round(nodes * share), max(nodes, _MOST_NODES)))
