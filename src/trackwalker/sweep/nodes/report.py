"""What a node sweep says: a table of all nodes, whom to leave out, and what cannot be told."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from trackwalker.sweep.model import Conclusion, Plot, Table
from trackwalker.sweep.nodes.strategy import Standing

_FEW = 5
_FAST = math.log(1.05)


def conclude(found: Sequence[Standing], level: float | None, noise: float, final: bool, stopped: str) -> Conclusion:
    """The answer with its evidence; `level` is the log score that all are compared with."""
    out = [s for s in found if s.state in ("degraded", "unhealthy")]
    marginal = [s for s in found if s.state == "marginal"]
    counts = Counter(s.state for s in found)
    return Conclusion(
        headline=stopped or _headline(found, out, marginal, final),
        final=final,
        exclude=() if stopped else tuple(s.node for s in out),
        evidence=tuple(_line(s) for s in [*out, *marginal]),
        caveats=tuple(_caveats(found, noise)),
        tables=(_table(found),),
        plots=(_plot(found),),
        details={
            "median": None if level is None else round(math.exp(level), 3),
            "noise_pct": round(100.0 * noise, 2) if _repeated(found) else None,
            "counts": dict(counts),
            "nodes": [
                {
                    "node": s.node,
                    "state": s.state,
                    "score": s.score,
                    "against_pct": None if s.against is None else round(100.0 * math.expm1(s.against), 2),
                    "runs": len(s.runs),
                    "metric": s.explanation.metric if s.explanation else None,
                    "why": _why(s),
                }
                for s in found
            ],
        },
    )


def _headline(found: Sequence[Standing], out: Sequence[Standing], marginal: Sequence[Standing], final: bool) -> str:
    if not final:
        return f"{sum(bool(s.runs) for s in found)} of {len(found)} nodes measured"
    if not out and not marginal:
        return f"all {len(found)} nodes are alike: none is 2 % or more below the others"
    said = [f"leave out {_named(s)}" for s in out] + [f"watch {_named(s)}" for s in marginal]
    return f"{len(found) - len(out) - len(marginal)} of {len(found)} nodes are healthy; {'; '.join(said)}"


def _named(s: Standing) -> str:
    if s.against is None:
        return f"{s.node} ({s.state}: {s.why})" if s.why else f"{s.node} ({s.state})"
    because = f", {s.explanation.words}" if s.explanation else ""
    return f"{s.node} ({s.state}, {100 * math.expm1(s.against):+.1f} %{because})"


def _line(s: Standing) -> str:
    if s.against is None:
        return f"{s.node}: {s.why or s.state}, {len(s.runs)} job{'s' if len(s.runs) != 1 else ''}"
    scores = " and ".join(f"{r.score:,.4g}" for r in s.runs if r.ok and r.score)
    jobs = ", ".join(r.job for r in s.runs if r.job)
    return (
        f"{s.node}: {scores} tokens/s/device, {100 * math.expm1(s.against):+.1f} % ± {100 * 2 * s.error:.1f} % "
        f"against the others{f' (jobs {jobs})' if jobs else ''}; {_why(s) or 'no recorded signal explains it'}"
    )


def _why(s: Standing) -> str:
    return "; ".join(part for part in (s.explanation.words if s.explanation else "", s.why) if part)


def _repeated(found: Sequence[Standing]) -> bool:
    """Whether any node ran twice: before that, noise is a belief and no figure."""
    return any(sum(r.ok for r in s.runs) > 1 for s in found)


def _caveats(found: Sequence[Standing], noise: float) -> list[str]:
    measured = [s for s in found if s.against is not None]
    said = ["no node ran twice: how far equal runs differ here was not measured"]
    if _repeated(found):
        said = [f"runs that should be equal differ by about {100 * noise:.1f} %; smaller differences are not resolved"]
    if len(measured) == 2:
        said.append("two nodes: the slower one is compared with the faster one; whether both are slow is not known")
    elif len(measured) < _FEW:
        said.append("with so few nodes the median is easily slow itself: compare with earlier runs of the same nodes")
    fast = [s.node for s in measured if s.against is not None and s.against > _FAST]
    if fast:
        said.append(f"{', '.join(fast)} above the others by 5 % or more: perhaps most of the others are slow")
    if any(s.state in ("marginal", "degraded") and s.explanation is None for s in found):
        said.append("signals are recorded only with --observe; 'trackwalker diagnose JOB' looks deeper")
    said.append("a node that is healthy alone can still have a bad link: 'trackwalker sweep network'")
    return said


def _table(found: Sequence[Standing]) -> Table:
    order = {"unhealthy": 0, "degraded": 1, "marginal": 2, "open": 3, "healthy": 4}
    rows = []
    for s in sorted(found, key=lambda s: (order[s.state], s.against or 0.0, s.node)):
        rows.append(
            (
                s.node,
                ", ".join(r.job for r in s.runs if r.job) or "-",
                f"{s.score:,.5g}" if s.score else "-",
                "-" if s.against is None else f"{100 * math.expm1(s.against):+.1f} %",
                s.state if s.runs else "not run",
                _why(s),
            )
        )
    return Table("Nodes", ("node", "jobs", "tokens/s/device", "against median", "state", "why"), tuple(rows))


def _plot(found: Sequence[Standing]) -> Plot:
    known = [s for s in found if s.score is not None and s.against is not None]

    def share(s: Standing, sigmas: float) -> float:
        return 100.0 * math.expm1((s.against or 0.0) + sigmas * s.error)

    return Plot(
        title="Nodes against the median",
        x_label="node",
        y_label="tokens/s/device against the median, %",
        x=tuple(s.node for s in known),
        y=tuple(share(s, 0.0) for s in known),
        low=tuple(share(s, -2.0) for s in known),
        high=tuple(share(s, 2.0) for s in known),
        marked=tuple(at for at, s in enumerate(known) if s.state in ("marginal", "degraded")),
    )
