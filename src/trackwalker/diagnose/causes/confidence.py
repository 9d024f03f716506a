"""How sure a cause is: what supports it, turned into how often causes so supported were right in the lab."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ConfigDict

from trackwalker.diagnose.causes.playbook import state_of, tells_apart
from trackwalker.diagnose.causes.states import states
from trackwalker.diagnose.deviations.unclassified import CAUSE
from trackwalker.diagnose.verdict import Verdict
from trackwalker.job.causes import about

_MOST_PIECES, _MOST_OPEN = 5, 4  # more of the same adds nothing
_ENOUGH = 4.0  # support
_LEAD = 0.6  # margin from which on nothing else is nearly as clear
_PRIOR = 64.0  # claims: the group of a rare cause counts as much as so many of its own
DOUBTS = ("behind", "rivals", "nobody", "nobody-apart", "hosts", "unnamed", "next-best", "left-open")  # of `shown`
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
    weights: dict[str, float]  # of what `shown` names, and of `record`
    record: dict[str, tuple[int, int]] = {}  # of each cause: how many claims were right, of how many
    levels: list[CalibratedLevel]


class Past:
    """How often claims of each cause were right on sets that nobody had looked at: some are told from others worse."""

    def __init__(self, record: Mapping[str, tuple[int, int]]) -> None:
        self._own = record
        self._right, self._of = Counter[str](), Counter[str]()
        for cause, (right, of) in record.items():
            self._right[_group(cause)] += right
            self._of[_group(cause)] += of

    def odds(self, cause: str) -> float:
        """The log odds of a cause. A rare one is as its group was, and a small group as all causes were."""
        everywhere = (self._right.total() + 1.0) / (self._of.total() + 2.0)
        group = _group(cause)
        alike = _drawn_to(everywhere, self._right[group], self._of[group])
        rate = _drawn_to(alike, *self._own.get(cause, (0, 0)))
        return math.log(rate / (1.0 - rate))


def _drawn_to(prior: float, right: int, of: int) -> float:
    return (right + _PRIOR * prior) / (of + _PRIOR)


def _group(cause: str) -> str:
    told = about(cause)
    return told.group if told else ""


def record_of(claims: Iterable[tuple[str, bool]]) -> dict[str, tuple[int, int]]:
    """Causes and whether they were right, counted."""
    right, of = Counter[str](), Counter[str]()
    for cause, true in claims:
        right[cause] += true
        of[cause] += 1
    return {cause: (right[cause], of[cause]) for cause in sorted(of)}


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


@cache
def past() -> Past:
    """What the shipped table holds of each cause."""
    return Past(calibration().record)


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
    """One number of what a claim shows; only the order of these numbers counts. An older table weighs less."""
    return sum(weights.get(name, 0.0) * value for name, value in claim.items())


def with_confidence(verdict: Verdict) -> Verdict:
    """The same verdict, every cause as sure as what the verdict shows for it."""
    plain = verdict.model_dump(include={"evidence", "untestable", "data_quality"})
    rivals = max(0, len(verdict.roots) - 1)
    sure = []
    for cause in verdict.causes:
        supported = support(plain, {"evidence": cause.evidence})
        claim = shown(supported, cause.cause, rivals, len(cause.hosts), cause.margin, cause.explains)
        claim["record"] = past().odds(cause.cause)
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
