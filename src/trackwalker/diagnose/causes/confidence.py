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

from trackwalker.diagnose.causes.playbook import state_of
from trackwalker.diagnose.causes.states import states
from trackwalker.diagnose.deviations.unclassified import CAUSE
from trackwalker.diagnose.verdict import Verdict

_MOST_PIECES, _MOST_OPEN = 5, 4  # more of the same adds nothing
_ENOUGH, _RIVAL, _NOBODY = 4.0, 0.5, 1.5  # by the pooled sets of docs/first-sight, each left out in turn
# Less for a next best explanation that is nearly as clear, and for lost time that is not accounted for. By the two sets
# whose claims hold a margin (bd, be), chosen among six pairs: coarse on purpose.
_LEAD, _CLOSE, _LEFT_OPEN = 0.6, 4.0, 6.0
# Of culprits that were located and not named, on worlds of a simulator that shares no code with us: 48 of 57 right.
_LOCATED = 0.84
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


def certainty(
    supported: float, cause: str, rivals: int, named: bool, margin: float | None = None, explains: float | None = None
) -> float:
    """Support as far as more of it counts; less for all that can stand behind the cause, and for roots beside it.

    And less where nobody is `named`: then nothing that was measured tells one host from another.

    A rank that is gone, or all ranks that wait, can come of nearly everything: that it is the root is the claim that
    nothing of that was so. A card that breaks comes of nothing else here.
    """
    return (
        min(supported, _ENOUGH)
        - math.log2(1 + len(states().behind(state_of(cause))))
        - _RIVAL * rivals
        - _NOBODY * (not named)
        - (0.0 if margin is None else _CLOSE * max(0.0, _LEAD - margin))
        - (0.0 if margin is None or explains is None else _LEFT_OPEN * max(0.0, 1.0 - explains))
    )


def with_confidence(verdict: Verdict) -> Verdict:
    """The same verdict, every cause as sure as what the verdict shows for it."""
    plain = verdict.model_dump(include={"evidence", "untestable", "data_quality"})
    rivals = max(0, len(verdict.roots) - 1)
    sure = []
    for cause in verdict.causes:
        supported = support(plain, {"evidence": cause.evidence})
        # Trouble without a name claims nothing but its place: without one it is as little as can be said.
        most = 1.0 if cause.cause != CAUSE else _LOCATED if cause.hosts else confidence(-math.inf)
        sure_of = certainty(supported, cause.cause, rivals, bool(cause.hosts), cause.margin, cause.explains)
        level = confidence(sure_of)
        sure.append(cause.model_copy(update={"confidence": min(most, level)}))
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
