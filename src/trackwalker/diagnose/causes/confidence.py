"""How sure a cause is: what supports it, turned into how often causes so supported were right in the lab."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ConfigDict

from trackwalker.diagnose.causes.playbook import state_of, tells_apart
from trackwalker.diagnose.causes.states import states
from trackwalker.diagnose.deviations.unclassified import CAUSE
from trackwalker.diagnose.verdict import Verdict

_MOST_PIECES, _MOST_OPEN = 5, 4  # more of the same adds nothing
_ENOUGH = 4.0  # support
_LEAD = 0.6  # margin from which on nothing else is nearly as clear
TABLE = "confidence.json"  # beside this file; `trackwalker lab calibrate` writes it


class CalibratedLevel(BaseModel):
    """Causes supported at least this well were right so often."""

    model_config = ConfigDict(extra="forbid")

    support: float
    confidence: float
    right: int
    of: int
    families: int


class Calibration(BaseModel):
    """The table with the command that made it; levels rise in support and in confidence."""

    model_config = ConfigDict(extra="forbid")

    made_by: str
    version: str
    weights: dict[str, float]  # of what `shown` names
    levels: list[CalibratedLevel]


def confidence(certain: float) -> float:
    """How often a cause that is so certain was right, on sets that nobody had looked at."""
    return look_up(calibration(), certain)


def look_up(table: Calibration, supported: float) -> float:
    """The confidence of the highest level that a support reaches."""
    at = bisect_right([level.support for level in table.levels], supported) - 1
    return table.levels[max(at, 0)].confidence


@cache
def calibration() -> Calibration:
    """The shipped table."""
    return Calibration.model_validate(json.loads((files("trackwalker.diagnose") / TABLE).read_text(encoding="utf-8")))


def shown(
    supported: float, cause: str, rivals: int, hosts: int, margin: float | None = None, explains: float | None = None
) -> dict[str, float]:
    """What a claim shows of itself that told right from wrong ones on sets that nobody had looked at.

    A rank that is gone, or all ranks that wait, can come of nearly everything (`behind`): that it is the root is the
    claim that nothing of that was so. A card that breaks comes of nothing else here. Where nobody is named though the
    cause can tell one host from another (`nobody-apart`), nothing that was measured did.
    """
    return {
        "support": min(supported, _ENOUGH),
        "behind": math.log2(1 + len(states().behind(state_of(cause)))),
        "rivals": float(rivals),
        "nobody": float(not hosts),
        "nobody-apart": float(not hosts and tells_apart(cause)),
        "hosts": math.log2(1 + hosts),
        "unnamed": float(cause == CAUSE),
        "next-best": 0.0 if margin is None else max(0.0, _LEAD - margin),
        "left-open": 0.0 if explains is None else max(0.0, 1.0 - explains),
    }


def certainty(weights: Mapping[str, float], claim: Mapping[str, float]) -> float:
    """One number of what a claim shows; only the order of these numbers counts."""
    return sum(weights[name] * value for name, value in claim.items())


def with_confidence(verdict: Verdict) -> Verdict:
    """The same verdict, every cause as sure as what the verdict shows for it."""
    plain = verdict.model_dump(include={"evidence", "untestable", "data_quality"})
    rivals = max(0, len(verdict.roots) - 1)
    sure = []
    for cause in verdict.causes:
        supported = support(plain, {"evidence": cause.evidence})
        claim = shown(supported, cause.cause, rivals, len(cause.hosts), cause.margin, cause.explains)
        # Trouble without a name claims nothing but its place: without one it is as little as can be said.
        nothing = cause.cause == CAUSE and not cause.hosts
        level = confidence(-math.inf if nothing else certainty(calibration().weights, claim))
        sure.append(cause.model_copy(update={"confidence": level}))
    return verdict.model_copy(update={"causes": sure})


def support(verdict: Mapping[str, Any], cause: Mapping[str, Any]) -> float:
    """What any recorded verdict, as JSON, shows for one of its causes: pieces of evidence and how many kinds of them.

    Less for what could not be asked or not be trusted. Only what a reader of the verdict can see counts, and only the
    order of these numbers: the table makes probabilities of them.
    """
    kinds = {e.get("id"): str(e.get("kind")) for e in verdict.get("evidence", [])}
    mine = [kinds[e] for e in cause.get("evidence", []) if e in kinds]
    untestable = min(len(verdict.get("untestable", [])), _MOST_OPEN)
    doubts = min(sum(not q.get("ok", True) for q in verdict.get("data_quality", [])), 2)
    return min(len(mine), _MOST_PIECES) + 0.5 * len(set(mine)) - 0.25 * untestable - 0.5 * doubts
