"""Metric by metric, host by host: what was higher or lower in one job than in the other, and on which hosts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.episodes.symptoms import Span
from trackwalker.job.yaml_files import shipped
from trackwalker.stats.paired import student
from trackwalker.stats.segments import robust_sigma
from trackwalker.telemetry.store import Telemetry

_UNIFORM = (0.5, 2.0)  # of the median rise: between these lies a rise that all hosts share
_UNIFORM_SHARE = 0.9
_STANDS_OUT = 6.0  # robust standard deviations of the other hosts


@dataclass(frozen=True)
class Family:
    """One quantity: how it is asked for, which direction is bad, and the smallest difference that matters."""

    name: str
    metrics: tuple[str, ...]  # alternatives, the first that both jobs have is used
    unit: str = ""
    rate: bool = False  # a counter, per second
    select: str = ""
    across: str = "avg"  # how a host's series (GPUs, devices) are put together
    bad: int = 1  # 1: more is worse, -1: less is worse
    floor: float = 0.0
    relative: bool = False  # the floor is a share of A's mean
    cause: str | None = None  # what it means on a few hosts
    common_cause: str | None = None  # what it means on all hosts


def _families() -> tuple[Family, ...]:
    told = shipped("diagnose", "deltas.yml")
    return tuple(Family(**{**family, "metrics": tuple(family["metrics"])}) for family in told)


FAMILIES = _families()


@dataclass(frozen=True)
class Delta:
    """One family in both jobs: means over hosts, the difference with its interval, and who makes it."""

    family: Family
    metric: str
    a: dict[str, float]
    b: dict[str, float]
    difference: float  # B - A, means over hosts
    low: float | None  # of a 95 % interval; None with too few hosts
    high: float | None
    floor: float
    uniform: bool  # all hosts of B (or A) are higher (lower) alike
    worse_b: tuple[str, ...]  # hosts that stand out in B and did not in A
    worse_a: tuple[str, ...]
    evidence: tuple[str, ...]

    @property
    def mean_a(self) -> float:
        """Over A's hosts."""
        return float(np.mean(list(self.a.values())))

    @property
    def mean_b(self) -> float:
        """Over B's hosts."""
        return float(np.mean(list(self.b.values())))

    @property
    def matters(self) -> bool:
        """Larger than what could make a difference, and than its own uncertainty."""
        sure = self.low is None or self.high is None or self.low > 0 or self.high < 0
        return abs(self.difference) >= self.floor and sure

    def worse(self, slower_is_b: bool) -> bool:
        """Whether the slower job has the worse value."""
        sign = 1.0 if slower_is_b else -1.0
        return self.matters and sign * self.family.bad * self.difference > 0


def measure(a: Case, b: Case, spans_a: list[Span], spans_b: list[Span], book: EvidenceBook) -> list[Delta]:
    """Every family that both databases hold, averaged by the server over the compared steps."""
    one, two = a.telemetry, b.telemetry
    if one is None or two is None or not spans_a or not spans_b:
        return []
    out = []
    for family in FAMILIES:
        metric = next((m for m in family.metrics if m in one.metrics() and m in two.metrics()), None)
        if metric is None:
            continue
        query_a, query_b = mean_query(family, metric, spans_a), mean_query(family, metric, spans_b)
        x, y = _of(one, query_a, spans_a, a.trusted), _of(two, query_b, spans_b, b.trusted)
        if x and y:
            ids = (_cite(book, "A", a, query_a, family, x, True), _cite(book, "B", b, query_b, family, y, False))
            out.append(_delta(family, metric, x, y, ids))
    return out


def missing(a: Case, b: Case) -> list[Family]:
    """Families that at least one of the two databases does not hold."""
    has = [c.telemetry.metrics() if c.telemetry is not None else frozenset[str]() for c in (a, b)]
    return [f for f in FAMILIES if not any(m in has[0] and m in has[1] for m in f.metrics)]


def mean_query(family: Family, metric: str, over: list[Span]) -> str:
    """One value for each host: the mean (or the rate) over all stretches together."""
    label = "instance" if metric.startswith("ray_") else "host"  # Ray's series carry no host
    selector = f"{metric}{family.select}"
    parts, total = [], 0
    for span in over:
        window = max(1, round(span.seconds))
        total += window
        at = f"{selector}[{window}s] @ {span.end:.3f}"
        parts.append(f"increase({at})" if family.rate else f"avg_over_time({at}) * {window}")
    return f"{family.across} by ({label}) (({' + '.join(parts)}) / {total})"


def _of(telemetry: Telemetry, query: str, over: list[Span], hosts: list[str]) -> dict[str, float]:
    values = telemetry.by_host(query, over[-1].end)
    return {h: v for h, v in sorted(values.items()) if np.isfinite(v) and (not hosts or h in hosts)}


def _cite(
    book: EvidenceBook, word: str, case: Case, query: str, family: Family, values: dict[str, float], other: bool
) -> str:
    known = list(values.values())
    says = (
        f"{word} ({case.job.id}): {family.name} {quantity(float(np.mean(known)), family.unit)} on average over "
        f"{len(known)} hosts, from {quantity(min(known), family.unit)} to {quantity(max(known), family.unit)}"
    )
    return book.add("metric", query + (where(case) if other else ""), says, values)


def where(case: Case) -> str:
    """A PromQL comment that says which of the two databases a query is for; without one it is B's."""
    return f" # in the database of {case.job.id}"


def _delta(family: Family, metric: str, a: dict[str, float], b: dict[str, float], ids: tuple[str, ...]) -> Delta:
    mean_a = float(np.mean(list(a.values())))
    floor = family.floor * (abs(mean_a) if family.relative else 1.0)
    difference = float(np.mean(list(b.values()))) - mean_a
    low, high = _interval(a, b)
    return Delta(
        family=family,
        metric=metric,
        a=a,
        b=b,
        difference=difference,
        low=low,
        high=high,
        floor=floor,
        uniform=_uniform(a, b, floor),
        worse_b=_standing_out(b, a, family.bad, floor),
        worse_a=_standing_out(a, b, family.bad, floor),
        evidence=ids,
    )


def _interval(a: dict[str, float], b: dict[str, float]) -> tuple[float | None, float | None]:
    """95 % interval of the difference of means, host against itself where all are shared."""
    shared = sorted(set(a) & set(b))
    if len(shared) >= 3 and len(shared) == len(a) == len(b):
        d = np.array([b[h] - a[h] for h in shared])
        mean, error, freedom = float(d.mean()), float(d.std(ddof=1) / np.sqrt(len(d))), len(d) - 1.0
    elif len(a) >= 3 and len(b) >= 3:
        x, y = np.array(list(a.values())), np.array(list(b.values()))
        parts = float(x.var(ddof=1) / len(x)), float(y.var(ddof=1) / len(y))
        mean, error = float(y.mean() - x.mean()), float(np.sqrt(sum(parts)))
        freedom = sum(parts) ** 2 / max(parts[0] ** 2 / (len(x) - 1) + parts[1] ** 2 / (len(y) - 1), 1e-300)
    else:
        return None, None
    half = error * student(0.975, freedom) if error > 0 else 0.0
    return mean - half, mean + half


def _rises(values: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Each host against itself in the other job; a host the other job did not have, against that job's median."""
    usual = float(np.median(list(other.values())))
    return {h: v - other.get(h, usual) for h, v in values.items()}


def _uniform(a: dict[str, float], b: dict[str, float], floor: float) -> bool:
    rises = np.array(list(_rises(b, a).values()))
    median = float(np.median(rises))
    if abs(median) < floor or len(rises) < 2:
        return False
    ratio = rises / median
    return bool(np.mean((ratio >= _UNIFORM[0]) & (ratio <= _UNIFORM[1])) >= _UNIFORM_SHARE)


def _standing_out(values: dict[str, float], other: dict[str, float], bad: int, floor: float) -> tuple[str, ...]:
    """Hosts worse than their companions and than in the other job; at most half can stand out."""
    if len(values) < 2:
        return ()
    rises = _rises(values, other)
    out = []
    for host, value in values.items():
        rest = np.array([v for h, v in values.items() if h != host])
        apart = bad * (value - float(np.median(rest)))
        if bad * rises[host] >= floor and apart >= max(floor, _STANDS_OUT * robust_sigma(rest)):
            out.append(host)
    return tuple(sorted(out)) if len(out) * 2 <= len(values) else ()


def quantity(value: float, unit: str = "") -> str:
    """A number a person can read, with its unit."""
    if unit == "B":
        return f"{value / 1e9:.1f} GB"
    digits = f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    digits = f"{value:,.0f}" if abs(value) >= 1000 else digits
    return f"{digits}{'' if unit in ('', '/s', '%') else ' '}{unit}"
