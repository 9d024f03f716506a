"""What a batch sweep says: the value to take, why not the next ones, and every size with its job."""

from __future__ import annotations

from collections.abc import Sequence

from trackwalker.stats.selection import Noise
from trackwalker.sweep.batch.judge import SMALL, Point, lead, mean, noise_of, results_of, runs_of
from trackwalker.sweep.model import Conclusion, Done, Plot, Result, Table

_ENDS = {"oom": "out of memory", "hang": "hung, read as too large", "node-fault": "a node failed"}
_UNSTEADY = 0.05  # between equal runs: on nodes of one's own it is a tenth of that
_COLUMNS = ("job", "tokens/s/device", "against the best", "MFU", "status")


def report(
    points: Sequence[Point], close: Sequence[Point], done: Done, name: str, memory: str, stopped: str, final: bool
) -> Conclusion:
    """The conclusion; `close` are the values that were repeated because they were too close to call."""
    good = [p for p in points if runs_of(p, done, 9) and all(r.ok for r in results_of(p, done))]
    noise = noise_of(points, done)
    best = max(good, key=lambda p: mean(p, done), default=None)
    equal = [p for p in close if best is not None and p != best and _equal(best, p, done, noise)]
    chosen = next((p for p in good if p in equal or p == best), None)
    return Conclusion(
        headline=_headline(chosen, best, equal, points, done, name, stopped, final),
        final=final,
        recommend={chosen.name: chosen.value, **dict(chosen.fixed)} if chosen and final else {},
        evidence=tuple(_evidence(points, best, chosen, close, done, noise, memory)),
        caveats=tuple(_caveats(points, best, chosen, close, done, noise)),
        tables=(_table(points, best, done, name),),
        plots=(_plot(points, chosen, done, name),) if good else (),
        details={
            "noise": noise.sd if any(len(runs_of(p, done, 9)) > 1 for p in points) else None,
            "best": best.key(1).rpartition("#")[0] if best else None,
            "equal": [p.label for p in equal],
            "bounds": [p.label for p in points if _bound(p, done)],
            "jobs": len(done),
        },
    )


def _headline(
    chosen: Point | None,
    best: Point | None,
    equal: Sequence[Point],
    points: Sequence[Point],
    done: Done,
    name: str,
    stopped: str,
    final: bool,
) -> str:
    if stopped:
        return f"Stopped: {stopped}"
    if chosen is None or best is None:
        return f"No value of {name} ran: the smallest that was tried failed" if points else "Nothing has run yet"
    what = f"{name}={chosen.label}"
    if not final:
        return f"Not finished: {what} leads with {mean(chosen, done):,.0f} tokens/s/device"
    if chosen != best:
        others = " and ".join(p.label for p in [*equal, best] if p != chosen)
        return f"{what} is recommended: {others} is not faster beyond noise, and the smaller one leaves more memory"
    return f"{what} is the fastest: {mean(best, done):,.0f} tokens/s/device"


def _evidence(
    points: Sequence[Point],
    best: Point | None,
    chosen: Point | None,
    close: Sequence[Point],
    done: Done,
    noise: Noise,
    memory: str,
) -> list[str]:
    told = [memory] if memory else []
    for point in points:
        if bound := _bound(point, done):
            where = f" in {bound.phase}" if bound.phase else ""
            told.append(f"{point.label} is too large: {_ENDS[bound.status]}{where}{_job(bound)}")
    for point in close if best is not None and chosen is not None else ():
        if point == best or best is None:
            continue
        ahead, by_luck = lead(best, point, done, noise)
        told.append(
            f"{best.label} against {point.label}: {ahead:+.1%} in {len(runs_of(best, done, 9))} and "
            f"{len(runs_of(point, done, 9))} runs, ± {by_luck:.1%} by noise: "
            + ("no difference that counts" if _equal(best, point, done, noise) else "faster")
        )
    if best is not None:
        repeated = any(len(runs_of(p, done, 9)) > 1 for p in points)
        told.append(
            f"runs with the same settings differ by {noise.sd:.1%}, from repeated runs"
            if repeated
            else "nothing was close enough to repeat: how far equal runs differ here was not measured"
        )
    return told


def _caveats(
    points: Sequence[Point],
    best: Point | None,
    chosen: Point | None,
    close: Sequence[Point],
    done: Done,
    noise: Noise,
) -> list[str]:
    if best is None or chosen is None:
        return []
    said = ["valid for these nodes, this mesh and this sequence length"]
    if noise.sd > _UNSTEADY:
        said.append(f"equal runs differ by {noise.sd:.0%}: too unsteady to tell sizes apart, see who else computes")
    line = [p for p in points if p.fixed == best.fixed and p.value.isdecimal()]
    if best in line and not any(int(p.value) > int(best.value) for p in line):
        said.append(f"nothing above {best.value} was tried: a larger one may be faster still")
    for point in close:
        if point in (best, chosen):
            continue
        ahead, by_luck = lead(best, point, done, noise)
        if ahead <= by_luck and not _equal(best, point, done, noise):
            said.append(f"{point.label} may be as fast: {ahead:.1%} behind, and noise alone makes {by_luck:.1%}")
    for point in points:
        if (bound := _bound(point, done)) and bound.status == "hang" and bound.phase == "init":
            said.append(f"{point.label} hung before it took memory: read as a bound, but the network may be the cause")
    lost = [p.label for p in points if _lost(p, done)]
    if lost:
        said.append(f"{', '.join(lost)} failed for another reason than memory and is not judged")
    return said


def _table(points: Sequence[Point], best: Point | None, done: Done, name: str) -> Table:
    rows = []
    for point in points:
        results, scores = results_of(point, done), runs_of(point, done, 9)
        mfu = [r.mfu for r in results if r.ok and r.mfu is not None]
        several = f" ({len(scores)} runs)" if len(scores) > 1 else ""
        top = mean(best, done) if best else None
        rows.append((
            point.label,
            ", ".join(r.job for r in results if r.job),
            f"{sum(scores) / len(scores):,.0f}{several}" if scores else "",
            f"{sum(scores) / len(scores) / top - 1:+.1%}" if scores and top else "",
            f"{sum(mfu) / len(mfu):.2%}" if mfu else "",
            _status(results, point == best),
        ))  # fmt: skip
    return Table(f"Throughput by {name}", (name, *_COLUMNS), tuple(rows))


def _status(results: Sequence[Result], best: bool) -> str:
    bad = next((r for r in results if not r.ok), None)
    if bad is None:
        return "ok, fastest" if best else "ok"
    return _ENDS.get(bad.status, bad.status) + (f" ({bad.why})" if bad.why else "")


def _plot(points: Sequence[Point], chosen: Point | None, done: Done, name: str) -> Plot:
    numbers = all(p.value.isdecimal() and not p.fixed for p in points)
    runs = [runs_of(p, done, 9) for p in points]
    return Plot(
        title=f"Steady throughput by {name}",
        x_label=name,
        y_label="tokens/s/device",
        x=tuple(float(p.value) if numbers else p.label for p in points),
        y=tuple(sum(r) / len(r) if r else None for r in runs),
        low=tuple(min(r) if len(r) > 1 else None for r in runs),
        high=tuple(max(r) if len(r) > 1 else None for r in runs),
        marked=tuple(at for at, p in enumerate(points) if p == chosen),
    )


def _equal(best: Point, other: Point, done: Done, noise: Noise) -> bool:
    """As fast for all purposes: the difference is inside the noise, and too small to pay for with memory."""
    ahead, by_luck = lead(best, other, done, noise)
    return ahead <= by_luck and ahead < SMALL


def _bound(point: Point, done: Done) -> Result | None:
    return next((r for r in results_of(point, done) if r.status in ("oom", "hang")), None)


def _lost(point: Point, done: Done) -> bool:
    return any(not r.ok and r.status not in ("oom", "hang") for r in results_of(point, done))


def _job(result: Result) -> str:
    return f" (job {result.job})" if result.job else ""
