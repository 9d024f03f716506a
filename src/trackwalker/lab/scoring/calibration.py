"""How far a stated confidence can be believed, and the table that makes ours believable.

Cases of one family resemble each other, so a family counts once however many of its cases were asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from trackwalker import __version__
from trackwalker.diagnose.causes.confidence import (
    DOUBTS,
    CalibratedLevel,
    Calibration,
    Past,
    calibration,
    certainty,
    look_up,
    past,
    record_of,
    shown,
)
from trackwalker.errors import UsageError
from trackwalker.lab.scoring.grade import Claim
from trackwalker.lab.scoring.measures import Share
from trackwalker.lab.scoring.results import CaseResult, Results
from trackwalker.lab.scoring.table import Table
from trackwalker.lab.scoring.tools import OWN

_EDGES = (0.0, 0.6, 0.8, 0.9, 0.95, 1.0)
_DAMPING, _ROUNDS = 1.0, 25  # of the regression
_LEAST_FAMILIES = 25  # the standard error of a share of so many is 0.1: a level of fewer is an anecdote, and is joined


@dataclass(frozen=True)
class Stated:
    """A claim of a verdict: how sure, how well supported, whether true, in which family, of what, all that it shows."""

    confidence: float
    support: float
    right: bool
    family: str
    shown: dict[str, float] = field(default_factory=dict)
    cause: str = ""

    @property
    def set(self) -> str:
        """The author's set that its family is of."""
        return self.family.partition("-")[0]


def stated(cases: Iterable[CaseResult]) -> list[Stated]:
    """The claims of results that say how sure they are."""
    out = [
        Stated(claim.confidence, 0.0, claim.right, case.family, _shown(claim, case), claim.cause)
        for case in cases
        for claim in case.grade.claims
        if claim.confidence is not None
    ]
    return weighed(remembered(out, past()), calibration().weights)


def remembered(claims: Iterable[Stated], known: Past) -> list[Stated]:
    """The same claims with what is known of their causes."""
    return [replace(c, shown={**c.shown, "record": known.odds(c.cause)}) for c in claims]


def weighed(claims: Iterable[Stated], weights: dict[str, float]) -> list[Stated]:
    """The same claims, as certain as these weights make them."""
    return [replace(c, support=round(certainty(weights, c.shown), 1)) for c in claims]


def _shown(claim: Claim, case: CaseResult) -> dict[str, float]:
    # Sets scored before 2026-11-17 hold no hosts for each claim, those before 2026-11-18 hold 0 where nothing deviated.
    hosts = claim.hosts if "hosts" in claim.model_fields_set else len(case.grade.accused)
    margin = None if claim.margin == 0 and claim.covers == 0 else claim.margin
    return shown(claim.support, claim.cause, len(case.grade.claims) - 1, hosts, margin, claim.explains)


def fit_weights(claims: list[Stated]) -> dict[str, float]:
    """What each of the things that claims show is worth; a doubt that seems to make surer does so by chance."""
    weights, doubts = _regression(claims, list(claims[0].shown)), set(DOUBTS)
    while any(weights.get(n, 0.0) > 0 for n in doubts):
        doubts = {n for n in doubts if weights.get(n, 0.0) <= 0}
        kept = [n for n in claims[0].shown if n not in DOUBTS or n in doubts]
        weights = _regression(claims, kept)
    return {n: weights.get(n, 0.0) for n in claims[0].shown}


def _regression(claims: list[Stated], names: list[str]) -> dict[str, float]:
    """A logistic regression of right and wrong, slightly damped."""
    values = np.array([[c.shown[n] for n in names] for c in claims])
    right = np.array([c.right for c in claims], dtype=float)
    spread = np.where(values.std(axis=0) > 0, values.std(axis=0), 1.0)
    x = np.column_stack([np.ones(len(claims)), (values - values.mean(axis=0)) / spread])
    damping = np.diag([1e-6] + [_DAMPING] * len(names))
    slopes = np.zeros(x.shape[1])
    for _ in range(_ROUNDS):
        chance = 1.0 / (1.0 + np.exp(-x @ slopes))
        curve = (x.T * np.maximum(chance * (1.0 - chance), 1e-6)) @ x + damping
        slopes = slopes + np.linalg.solve(curve, x.T @ (right - chance) - damping @ slopes)
    return {n: round(float(w), 2) for n, w in zip(names, slopes[1:] / spread, strict=True)}


def left_out(claims: list[Stated]) -> list[Stated]:
    """Every claim as sure as a table says that never saw its author's set."""
    out = []
    for name in sorted({c.set for c in claims}):
        others = [c for c in claims if c.set != name]
        table = fitted(others)
        mine = weighed(remembered((c for c in claims if c.set == name), Past(table.record)), table.weights)
        out += [replace(c, confidence=look_up(table, c.support)) for c in mine]
    return out


def fitted(claims: list[Stated], made_by: str = "") -> Calibration:
    """The table of these claims: what their causes were worth, then all they show, then how sure that makes."""
    record = record_of((c.cause, c.right) for c in claims)
    told = remembered(claims, Past(record))
    weights = fit_weights(told)
    levels = fit(weighed(told, weights))
    return Calibration(made_by=made_by, version=__version__, weights=weights, record=record, levels=levels)


def calibrate(results: list[Results], first_sight: bool = False) -> Calibration:
    """The table of our own claims: on the tuning families, or on families scored before anybody looked at them.

    The second is what a stranger's incident will be like: a family that the engine was mended for flatters it.
    """
    own = [c for r in results for c in r.cases if c.tool == OWN]
    claims = stated(c for c in own if first_sight or c.split == "tune")
    if _families(claims) < 2 * _LEAST_FAMILIES:
        raise UsageError(f"{_families(claims)} families made claims; 'lab score --suite full' asks all of them")
    if first_sight:
        made_by = f"trackwalker lab calibrate --first-sight, sets {' '.join(sorted({c.set for c in claims}))}"
        return fitted(claims, made_by)
    suites = " ".join(dict.fromkeys(f"--suite {name}" for r in results for name in r.suite))
    variants = [c.variant for r in results for c in r.cases]
    seeds = len({c.seed for r in results for c in r.cases if not c.variant})
    worlds, stress = (len({v for v in variants if v.startswith(kind)}) for kind in ("world-", "stress-"))
    asked = f"trackwalker lab score {suites} --seeds {seeds} --variants {worlds} --stress {stress}"
    shipped = calibration()
    return shipped.model_copy(
        update={"made_by": f"{asked}; trackwalker lab calibrate", "version": __version__, "levels": fit(claims)}
    )


def tables(results: list[Results], made: Calibration, first_sight: bool = False) -> list[Table]:
    """The levels, and for each split how often claims were right that the table is so sure of."""
    rows = [
        [f"{level.support:g}", f"{level.confidence:.2f}", f"{level.right}/{level.of}", str(level.families)]
        for level in made.levels
    ]
    out = [Table("Levels", ["support from", "confidence", "right", "families"], rows)]
    cases = [c for r in results for c in r.cases if c.tool == OWN]
    for split in sorted({c.split for c in cases}):
        claims = stated(c for c in cases if c.split == split)
        sure = weighed(remembered(claims, Past(made.record)), made.weights)
        sure = [replace(c, confidence=look_up(made, c.support)) for c in sure]
        if sure:
            out.append(reliability(f"Confidence: {split} families", sure))
        if first_sight:
            out.append(reliability(f"Confidence: {split} families, each set left out in turn", left_out(claims)))
    return out


def brier(claims: list[Stated]) -> float:
    """Mean squared distance between the confidence and what was true: 0 is perfect, a coin gets 0.25."""
    return sum((c.confidence - c.right) ** 2 for c in claims) / len(claims)


def calibration_error(claims: list[Stated]) -> float:
    """How far confidence and accuracy lie apart on average (ECE over the bins of the reliability table)."""
    gaps = [abs(sum(c.confidence for c in b) - sum(c.right for c in b)) for _, _, b in _bins(claims)]
    return sum(gaps) / len(claims)


def reliability(title: str, claims: list[Stated]) -> Table:
    """By the confidence stated: families, mean confidence, share right; Brier score and calibration error below."""
    rows = []
    for low, high, held in _bins(claims):
        share = Share(sum(c.right for c in held), len(held))
        mean = sum(c.confidence for c in held) / len(held)
        families = len({c.family for c in held})
        rows.append(
            [f"{low:.2f}-{high:.2f}", str(families), f"{mean:.3f}", f"{share.right / share.of:.3f}", str(share)]
        )
    note = f"Brier score {brier(claims):.4f}, expected calibration error {calibration_error(claims):.3f}."
    sure = [[c.confidence for c in claims if c.right is right] for right in (True, False)]
    if all(sure):
        where = [sum(held) / len(held) for held in sure]
        note += f" Mean where right {where[0]:.3f}, where wrong {where[1]:.3f}: {where[0] - where[1]:+.3f}."
    return Table(title, ["confidence", "families", "mean confidence", "share right", "right"], rows, [note])


def _bins(claims: list[Stated]) -> list[tuple[float, float, list[Stated]]]:
    out = []
    for low, high in pairwise(_EDGES):
        held = [c for c in claims if low <= c.confidence < high or (high == 1.0 and c.confidence == 1.0)]
        if held:
            out.append((low, high, held))
    return out


def fit(claims: list[Stated]) -> list[CalibratedLevel]:
    """The rising table of support against how often it was right: neighbours that fall are joined (isotonic)."""
    by: dict[float, list[Stated]] = defaultdict(list)
    for claim in claims:
        by[claim.support].append(claim)
    pools = [by[support] for support in sorted(by)]
    while (at := _unfit(pools)) is not None:
        pools[at : at + 2] = [pools[at] + pools[at + 1]]
    return [
        CalibratedLevel(
            support=min(c.support for c in p),
            confidence=min(round(_rate(p), 2), 0.99),  # nothing is certain at first sight
            right=sum(c.right for c in p),
            of=len(p),
            families=_families(p),
        )
        for p in pools
    ]


def _unfit(pools: list[list[Stated]]) -> int | None:
    """The first two neighbours that have to be joined: the better supported is not better, or one is an anecdote."""
    for i, (lower, upper) in enumerate(pairwise(pools)):
        if (
            round(_rate(lower), 2) >= round(_rate(upper), 2)
            or min(_families(lower), _families(upper)) < _LEAST_FAMILIES
        ):
            return i
    return None


def _families(claims: list[Stated]) -> int:
    return len({c.family for c in claims})


def _rate(claims: list[Stated]) -> float:
    """Share right with every family counted once, and half a family right and half wrong added: never 0, never 1."""
    by: dict[str, list[bool]] = defaultdict(list)
    for c in claims:
        by[c.family].append(c.right)
    return (sum(sum(r) / len(r) for r in by.values()) + 0.5) / (len(by) + 1.0)
