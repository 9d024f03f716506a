"""What changed between two runs: settings first, then the step as a waterfall that adds up, then the operations."""

from __future__ import annotations

import re
from typing import Literal

import numpy as np

from trackwalker.perf.analysis.diff_result import Changed, DiffReport, Fall, Mismatch, OpDelta, Speed
from trackwalker.perf.analysis.result import PerfReport, ProgramPart, TracePart, short_path
from trackwalker.record.speeds import Series, compare_speeds
from trackwalker.stats.paired import difference_interval
from trackwalker.stats.segments import Floats

_FEWEST = 3  # samples of each side: fewer have no interval
_NUMBER = re.compile(r"(?:\.|_)\d+(?=$|[.\s/])")
_SMALL = 1e-9  # seconds
_LEAST_COMMON = 0.1  # of the kernel time: less is another program


def diff(a: PerfReport, b: PerfReport) -> DiffReport:
    """Compare two reports; a mismatch that makes numbers meaningless is named, and the caller decides."""
    out = DiffReport(a=a.job, b=b.job, mismatches=mismatches(a, b), config=_changes(a.config, b.config))
    out.speed = _speed(a, b)
    if a.trace is not None and b.trace is not None:
        out.waterfall = waterfall(a.trace, b.trace)
        out.step_delta_s = sum(row.delta_s for row in out.waterfall)
        out.ops = op_deltas(a.trace, b.trace)
        out.collectives = _collectives(a.trace, b.trace)
    else:
        lacking = " and ".join(name for name, r in (("A", a), ("B", b)) if r.trace is None)
        out.missing.append(f"no trace of {lacking}: where the difference lies cannot be said")
    if a.program is not None and b.program is not None:
        out.program = _program(a.program, b.program)
    out.summary = _summary(out)
    return out


def mismatches(a: PerfReport, b: PerfReport) -> list[Mismatch]:
    """Every rule of a fair comparison that the two break."""
    out: list[Mismatch] = []

    def check(what: str, left: object, right: object, refuse: bool, why: str) -> None:
        if left is not None and right is not None and left != right:
            out.append(Mismatch(what=what, a=str(left), b=str(right), refuse=refuse, why=why))

    check("device", a.job.device, b.job.device, True, "another chip: times do not compare")
    check("model", a.job.model, b.job.model, True, "another model: operations do not correspond")
    check("devices", a.job.devices, b.job.devices, False, "other groups: collectives do not compare one to one")
    check("nodes", a.job.nodes, b.job.nodes, False, "communication crosses other links")
    tokens = [r.throughput.tokens_per_step if r.throughput else None for r in (a, b)]
    check("tokens a step", tokens[0], tokens[1], False, "steps of different size: tokens/s compare, seconds do not")
    traced = [r.trace.steps if r.trace else None for r in (a, b)]
    check("traced steps", traced[0], traced[1], False, "samples of different size")
    files = [len(r.trace.files) if r.trace else None for r in (a, b)]
    check(
        "trace files",
        files[0],
        files[1],
        False,
        "not the same ranks were traced, or another number of processes a node",
    )
    prints = [r.program.fingerprint or None if r.program else None for r in (a, b)]
    check("compiled program", prints[0], prints[1], False, "the compiler made another program: see its differences")
    if a.trace is not None and b.trace is not None and a.trace.ops and b.trace.ops:
        common = _common(a.trace, b.trace)
        if common < _LEAST_COMMON:
            why = "the traces have hardly an operation in common: another program"
            out.append(Mismatch(what="operations", a="", b=f"{100 * common:.0f} % in common", refuse=True, why=why))
    for name in ("jax_version", "jaxlib_version", "XLA_FLAGS"):
        check(name, a.config.get(name), b.config.get(name), False, "may explain the difference")
    return out


def _changes(a: dict[str, str], b: dict[str, str]) -> list[Changed]:
    names = sorted(a.keys() | b.keys())
    return [Changed(name=n, a=a.get(n), b=b.get(n)) for n in names if a.get(n) != b.get(n)]


def _speed(a: PerfReport, b: PerfReport) -> Speed | None:
    """By the steps that `compare` uses; of reports without a log, by the steps of their traces."""
    one, two = _series(a), _series(b)
    if one is None or two is None:
        return _traced_speed(a, b)
    found = compare_speeds(one, two)
    if found is None:
        return _few_steps(one, two)
    low, high = found.difference.interval()
    return Speed(
        of="tokens/s/device" if found.of == "tgs" else "steps/s",
        a=found.level_a, b=found.level_b, change=found.difference.change, low=low, high=high,
        certain=found.difference.differs(), detectable=found.difference.detectable, steps_a=len(found.steps_a),
        steps_b=len(found.steps_b), left_out_a=found.left_out_a, left_out_b=found.left_out_b,
    )  # fmt: skip


def _series(report: PerfReport) -> Series | None:
    through = report.throughput
    if through is None or not any(through.series.seconds):
        return None
    s = through.series
    seconds, tgs = (np.array([np.nan if v is None else v for v in column], float) for column in (s.seconds, s.tgs))
    if through.tokens_per_step is not None:
        tgs = np.where(np.isfinite(tgs), tgs, through.tokens_per_step / seconds)
    return Series(np.array(s.step, np.int64), seconds, tgs, np.array(s.label, str))


def _few_steps(one: Series, two: Series) -> Speed | None:
    """Of runs too short for the statistics of series: their undisturbed steps, as far as they go."""
    both = [1.0 / run.seconds[(run.reason == "") & (run.seconds > 0)] for run in (one, two)]
    both = [own if len(own) else 1.0 / run.seconds[run.seconds > 0] for own, run in zip(both, (one, two), strict=True)]
    return _of_samples(both[0], both[1], "steps/s")


def _traced_speed(a: PerfReport, b: PerfReport) -> Speed | None:
    left, right = (1.0 / np.array(r.trace.step_samples if r.trace else [], float) for r in (a, b))
    return _of_samples(left, right, "steps/s")


def _of_samples(left: Floats, right: Floats, of: Literal["steps/s"]) -> Speed | None:
    if not len(left) or not len(right):
        return None
    low, high = (d / float(left.mean()) for d in difference_interval(left, right))
    return Speed(
        of=of, a=float(left.mean()), b=float(right.mean()), change=float(right.mean() / left.mean() - 1.0), low=low,
        high=high, certain=min(len(left), len(right)) >= _FEWEST and (low > 0 or high < 0), steps_a=len(left),
        steps_b=len(right),
    )  # fmt: skip


def waterfall(a: TracePart, b: TracePart) -> list[Fall]:
    """The step's buckets side by side; their deltas are all of the step's delta."""
    left, right = ({x.name: x.seconds for x in t.buckets} for t in (a, b))
    names = list(dict.fromkeys([*left, *right]))
    rows = []
    for name in names:
        a_s, b_s = left.get(name, 0.0), right.get(name, 0.0)
        row = Fall(name=name, a_s=a_s, b_s=b_s, delta_s=b_s - a_s, share=(b_s - a_s) / a.step_s if a.step_s else 0.0)
        samples = [np.array(t.bucket_samples.get(name, []), float) for t in (a, b)]
        if min(map(len, samples)) >= _FEWEST:
            row.low_s, row.high_s = difference_interval(samples[0], samples[1])
            row.certain = row.low_s > 0 or row.high_s < 0
        rows.append(row)
    return rows


def op_deltas(a: TracePart, b: TracePart) -> list[OpDelta]:
    """Operations by path and shape, because the compiler's names are not stable; the largest change first."""
    left, right = (
        _gather([(_key(o.path or o.name, o.phase, o.shape), o.count, o.seconds) for o in t.ops]) for t in (a, b)
    )
    return _deltas(left, right, a.step_s)


def _common(a: TracePart, b: TracePart) -> float:
    """Share of A's kernel time in operations that B has, too."""
    theirs = {_key(o.path or o.name, "", "")[0] for o in b.ops}
    mine = sum(o.seconds for o in a.ops if _key(o.path or o.name, "", "")[0] in theirs)
    return mine / max(sum(o.seconds for o in a.ops), 1e-15)


def _collectives(a: TracePart, b: TracePart) -> list[OpDelta]:
    left, right = (
        _gather(
            [(_key(c.path or c.name, c.kind, str(c.bytes or "")), c.count, c.seconds or 0.0) for c in t.collectives]
        )
        for t in (a, b)
    )
    return _deltas(left, right, a.step_s)


Key = tuple[str, str, str]


def _key(path: str, phase: str, shape: str) -> Key:
    return _NUMBER.sub("", path), phase, shape


def _gather(rows: list[tuple[Key, float, float]]) -> dict[Key, tuple[float, float]]:
    out: dict[Key, tuple[float, float]] = {}
    for key, count, seconds in rows:
        before = out.get(key, (0.0, 0.0))
        out[key] = (before[0] + count, before[1] + seconds)
    return out


def _deltas(
    left: dict[Key, tuple[float, float]], right: dict[Key, tuple[float, float]], step_s: float
) -> list[OpDelta]:
    rows = []
    for key in left.keys() | right.keys():
        (a_n, a_s), (b_n, b_s) = left.get(key, (0.0, 0.0)), right.get(key, (0.0, 0.0))
        each_a, each_b = a_s / a_n if a_n else None, b_s / b_n if b_n else None
        # An operation that one side lacks came or went: all of it is an effect of its count.
        each_a, each_b = (
            each_a if each_a is not None else each_b or 0.0,
            each_b if each_b is not None else each_a or 0.0,
        )
        by_count = (b_n - a_n) * (each_a + each_b) / 2
        by_time = (each_b - each_a) * (a_n + b_n) / 2
        delta = b_s - a_s
        if abs(delta) < _SMALL and a_n == b_n:
            continue
        only: Literal["", "A", "B"] = "B" if key not in left else "A" if key not in right else ""
        rows.append(
            OpDelta(
                name=key[0].rsplit("/", 1)[-1], path=key[0], phase=key[1], shape=key[2], a_count=a_n, b_count=b_n,
                a_s=a_s, b_s=b_s, delta_s=delta, count_effect_s=by_count, time_effect_s=by_time,
                share=delta / step_s if step_s else 0.0, only=only,
            )
        )  # fmt: skip
    return sorted(rows, key=lambda r: (-abs(r.delta_s), r.path, r.shape))


def _program(a: ProgramPart, b: ProgramPart) -> list[Changed]:
    left, right = (
        {
            **{f"{kind} a run": n for kind, n in p.collectives.items()},
            **{f"{kind} bytes": n for kind, n in p.collective_bytes.items()},
            **{f"instructions: {op}": n for op, n in p.ops.items()},
            "fusions": p.fusions or 0,
            "peak bytes": p.peak_bytes or 0,
            "computed again, % of FLOPs": round(100 * (p.remat_share or 0.0), 1),
            "TFLOP a run": float(f"{p.tflops or 0.0:.4g}"),
        }
        for p in (a, b)
    )
    return _changes({k: str(v) for k, v in left.items()}, {k: str(v) for k, v in right.items()})


def _summary(out: DiffReport) -> str:
    if out.refused:
        return "Not comparable: " + "; ".join(f"{m.what} {m.a} against {m.b} ({m.why})" for m in out.refused)
    said = []
    if out.speed is not None:
        s = out.speed
        if s.certain:
            word = "slower" if s.change < 0 else "faster"
            said.append(
                f"B is {100 * abs(s.change):.1f} % {word} than A "
                f"(95 % interval of the change {100 * s.low:+.1f} to {100 * s.high:+.1f} %)"
            )
        else:
            seen = f"; a change of {100 * s.detectable:.1f} % would have been seen" if s.detectable is not None else ""
            said.append(f"no difference beyond noise ({100 * s.low:+.1f} to {100 * s.high:+.1f} %{seen})")
        said.append(s.steps_words)
    if out.waterfall:
        top = max(out.waterfall, key=lambda r: abs(r.delta_s))
        if abs(top.share) >= 0.005:
            said.append(f"most of it in {top.name.replace('_', ' ')} ({1000 * top.delta_s:+.3g} ms a step)")
    if out.ops and abs(out.ops[0].share) >= 0.005:
        said.append(f"largest operation: {short_path(out.ops[0].path)} ({1000 * out.ops[0].delta_s:+.3g} ms a step)")
    return "; ".join(said) + "." if said else "Nothing could be compared."
