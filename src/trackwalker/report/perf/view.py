"""The tables of a performance report, as text cells: what the terminal and Markdown views both show."""

from __future__ import annotations

from dataclasses import dataclass, field

from trackwalker.perf.analysis.result import OpRow, PerfReport, Throughput, TracePart, short_path, slow_phases
from trackwalker.report import words
from trackwalker.report.text import clip, clip_middle, one_line, plain

_ROWS = 12
_RANKS = 8
_NAME = 60
BUCKETS = {
    "compute": "compute",
    "exposed_comm": "exposed communication",
    "copy": "copies",
    "host_gap": "waiting for the host",
    "idle": "idle",
}


# A performance report as Markdown, for a ticket.
def perf_markdown(report: PerfReport) -> str:
    """The same parts as the terminal view."""
    lines = [f"# Performance of job {plain(report.job.id)}", "", plain(report.headline), ""]
    if report.fixes:
        lines += ["## What to fix first", ""]
        for number, fix in enumerate(report.fixes, 1):
            of = "step" if fix.of == "step" else "run"
            lines.append(f"{number}. {plain(fix.says)} (up to {100 * fix.gain:.1f} % of the {of}): {plain(fix.do)}  ")
            lines.append(f"   *{plain(fix.evidence)}*")
        lines.append("")
    lines += ["## Figures", "", "| what | value |", "|---|---|"]
    lines += [f"| {plain(name)} | {plain(value)} |" for name, value in summary(report)]
    for grid in grids(report):
        lines += ["", *grid_lines(grid)]
    if report.missing:
        lines += ["", "## Not shown", ""]
        lines += [f"- {plain(m.what)}: {plain(m.why)}. {plain(m.do)}" for m in report.missing]
    return "\n".join(lines) + "\n"


def grid_lines(grid: Grid) -> list[str]:
    """One table, with its title."""
    rule = "".join("---:|" if number in grid.numbers else "---|" for number in range(len(grid.header)))
    lines = [f"## {plain(grid.title)}", "", f"| {' | '.join(map(plain, grid.header))} |", f"|{rule}"]
    lines += [f"| {' | '.join(map(plain, row))} |" for row in grid.rows]
    return [*lines, "", plain(grid.note)] if grid.note else lines


@dataclass
class Grid:
    """One table: a title, a header and rows of cells; columns that hold numbers are named."""

    title: str
    header: list[str]
    rows: list[list[str]]
    numbers: set[int] = field(default_factory=set)
    note: str = ""


def summary(report: PerfReport) -> list[tuple[str, str]]:
    """The figures everybody asks for first, as name and value."""
    job = report.job
    held = [f"{job.nodes} nodes" if job.nodes else "", f"{job.ranks} ranks" if job.ranks else "", job.device or ""]
    rows = [("run", ", ".join(x for x in [job.model or job.name, *held, job.status or ""] if x))]
    if report.throughput is not None:
        rows += _speed(report.throughput)
    rows += _utilisation(report)
    if report.goodput is not None and report.goodput.goodput is not None:
        part, share = report.goodput, report.goodput.goodput
        gpus = f" on {part.gpus} GPUs" if part.gpus else ""
        rows.append(("goodput", f"{pct(share)} of {words.hours(part.wall_h or 0)}{gpus}"))
    return [(name, one_line(value)) for name, value in rows]


def _speed(through: Throughput) -> list[tuple[str, str]]:
    s = through.seconds
    left = ", ".join(f"{n} {reason}" for reason, n in through.left_out.items())
    rows = []
    if through.step_s is not None:
        what = f"{through.step_s:.4g} s, median of {through.step_s_of} undisturbed steps of {through.steps}"
        rows.append(("step time", what + (f" (left out: {left})" if left else "")))
    rows += [
        (
            "steady stretch",
            f"mean {s.mean:.4g} s (95 % {s.low:.4g} to {s.high:.4g}), median {s.median:.4g}, "
            f"p5 {s.p5:.4g}, p95 {s.p95:.4g}, {s.n} of {through.steps} steps",
        ),
    ]
    if through.tgs is not None:
        t = through.tgs
        rows.append(("tokens/s/device", f"mean {t.mean:.6g} (95 % {t.low:.6g} to {t.high:.6g})"))
    if through.positional is not None:
        p = through.positional
        rows.append(("TGS as MaxText logs it", f"{p.tgs:.6g} ± {p.std:.3g}, mean of positions 5 to 14 ({p.n} steps)"))
    if through.drift is not None and through.drift.certain:
        d = through.drift
        rows.append(("drift", f"{100 * d.change:+.2f} % over the steady steps ({pct(d.low)} to {pct(d.high)})"))
    if slow := slow_phases(through):
        rows.append(("slow phases", slow))
    if through.labels:
        cost = through.label_cost_s
        each = (
            f"{name} {len(at)}" + (f" (+{cost[name]:.3g} s)" if name in cost else "")
            for name, at in through.labels.items()
        )
        rows.append(("set aside", ", ".join(each)))
    if through.slowest is not None and through.rank_spread is not None:
        where = f" ({through.slowest.host})" if through.slowest.host else ""
        rows.append(
            ("ranks", f"{len(through.ranks)}, slowest {through.slowest.rank}{where} +{pct(through.rank_spread)}")
        )
    sources = ", ".join(f"{name} {n}" for name, n in through.sources.items())
    rows.append(("source", f"{through.source} (steps reported by each: {sources})"))
    return [*rows, *(("note", note) for note in through.notes)]


def _utilisation(report: PerfReport) -> list[tuple[str, str]]:
    rows = []
    used, flops = report.utilisation, report.flops
    if used is not None and used.mfu is not None:
        peak = ", ".join(f"{v:g} TFLOP/s {k}" for k, v in used.peak_tflops.items())
        logged = f"; the trainer says {100 * used.logged_mfu:.1f} %" if used.logged_mfu else ""
        rows.append(("MFU", f"{100 * used.mfu:.1f} % of {peak} ({used.peak_from}){logged}"))
    if used is not None and used.hfu is not None:
        gap = f", {100 * (used.hfu - used.mfu):.1f} points above MFU are computed again" if used.mfu else ""
        rows.append(("HFU", f"{100 * used.hfu:.1f} %{gap}"))
    if flops is not None:
        agrees = f"; {flops.agrees}" if flops.agrees else ""
        rows.append(("model FLOPs", f"{flops.tflops:.4g} TFLOP a step and device{agrees}"))
    return rows


def grids(report: PerfReport) -> list[Grid]:
    """Every table the report has data for."""
    out: list[Grid] = []
    if report.trace is not None:
        out += _trace_grids(report.trace)
    if report.program is not None:
        out += _program_grid(report)
    if report.throughput is not None and len(report.throughput.ranks) > 1:
        out.append(_ranks(report.throughput))
    if report.goodput is not None and report.goodput.rows:
        out.append(_goodput(report))
    return out


def _trace_grids(trace: TracePart) -> list[Grid]:
    out = []
    if trace.buckets:
        rows = [[BUCKETS.get(b.name, b.name), ms(b.seconds), pct(b.share)] for b in trace.buckets]
        rows.append(["step", ms(trace.step_s), "100.0 %"])
        note = "; ".join([f"mean of {trace.steps} steps on {len(trace.devices)} devices", *trace.notes])
        if trace.overlapped_comm_s:
            note += f"; {ms(trace.overlapped_comm_s)} ms of communication are hidden under compute"
        out.append(Grid("Where the step goes", ["what", "ms", "share"], rows, {1, 2}, note))
    for title, rows_, first in (
        ("By kind of work", trace.kinds, "kind"),
        ("By part of the model", trace.parts, "part"),
        ("Operations that cost most", trace.ops, "operation"),
        ("Kernels that cost most", trace.kernels, "kernel"),
        ("Gaps that the host caused", trace.gaps, "what the host did"),
    ):
        if rows_:
            out.append(ops_grid(title, rows_, first))
    if trace.collectives:
        out.append(_collectives(trace))
    if trace.stragglers:
        rows = [[s.device, f"{s.last}/{s.of}", ms(s.cost_s), pct(s.share)] for s in trace.stragglers[:_RANKS]]
        out.append(Grid("Who the others wait for", ["device", "last", "ms a step", "share"], rows, {1, 2, 3}))
    return out


def ops_grid(title: str, rows: list[OpRow], first: str, most: int = _ROWS) -> Grid:
    """A table of operations, the dearest first."""
    columns = {"kind": [r.kind for r in rows], "part": [_part(r) for r in rows]}
    columns["source"] = ["/".join(r.source.split("/")[-2:]) for r in rows]
    told = {name: cells for name, cells in columns.items() if any(cells)}
    header = [first, "ms a step", "share", "calls", *told]
    cells = [
        [_name(row), ms(row.seconds), pct(row.share), f"{row.count:.4g}", *(one_line(c[n]) for c in told.values())]
        for n, row in enumerate(rows[:most])
    ]
    note = f"{len(rows) - most} more in --json" if len(rows) > most else ""
    return Grid(title, header, cells, {1, 2, 3}, note)


def _part(row: OpRow) -> str:
    return " ".join(dict.fromkeys(x for x in (row.part, row.phase) if x)) if row.part else ""


def _name(row: OpRow) -> str:
    """A part of the model with its pass; an operation by the scopes that tell something."""
    if not row.path:
        return clip_middle(one_line(" ".join(x for x in (row.name, row.phase if not row.part else "") if x)), _NAME)
    return clip_middle(one_line(short_path(row.path)), _NAME)


def _collectives(trace: TracePart) -> Grid:
    header = ["collective", "kind", "calls", "MB", "ranks", "ms", "exposed ms", "wait ms", "busbw GB/s"]
    rows = [
        [
            clip_middle(one_line(c.name), 40),
            c.kind,
            f"{c.count:.4g}",
            "" if c.bytes is None else f"{c.bytes / 1e6:.4g}",
            "" if c.group_size is None else str(c.group_size),
            _opt(c.seconds),
            _opt(c.exposed_s),
            _opt(c.wait_s),
            "" if c.busbw_gb_s is None else f"{c.busbw_gb_s:.4g}",
        ]
        for c in trace.collectives[:_ROWS]
    ]
    return Grid("Collectives", header, rows, {2, 3, 4, 5, 6, 7, 8})


def _program_grid(report: PerfReport) -> list[Grid]:
    program = report.program
    if program is None:
        return []
    rows = []
    if program.tflops is not None:
        rows.append(["matrix products", f"{program.tflops:.4g} TFLOP a run"])
    if program.remat_share is not None:
        rows.append(["computed again", pct(program.remat_share)])
    if program.peak_bytes is not None:
        parts = ", ".join(
            f"{name} {size / 2**30:.3g}" for name, size in program.memory.items() if size > 0.001 * program.peak_bytes
        )
        rows.append(["memory at its peak", f"{program.peak_bytes / 2**30:.3g} GiB" + (f" ({parts})" if parts else "")])
    if program.fusions is not None:
        rows.append(["fusions", str(program.fusions)])
    for kind, count in program.collectives.items():
        size = program.collective_bytes.get(kind)
        rows.append([kind, f"{count} a run" + (f", {size / 1e6:.4g} MB" if size else "")])
    return [Grid(f"Compiled program {clip(one_line(program.name), 40)}", ["what", "how much"], rows)] if rows else []


def _ranks(through: Throughput) -> Grid:
    rows = sorted(through.ranks, key=lambda r: -r.seconds)[:_RANKS]
    cells = [
        [
            str(r.rank),
            one_line(r.host or ""),
            f"{r.seconds:.4g}",
            "" if r.tgs is None else f"{r.tgs:.6g}",
            "" if r.data_wait_s is None else ms(r.data_wait_s),
        ]
        for r in rows
    ]
    note = f"the slowest of {len(through.ranks)}" if len(through.ranks) > _RANKS else ""
    return Grid("Ranks", ["rank", "host", "s a step", "tokens/s", "data wait ms"], cells, {0, 2, 3, 4}, note)


def _goodput(report: PerfReport) -> Grid:
    part = report.goodput
    rows_ = part.rows if part else []
    priced = any(r.money is not None for r in rows_)
    header = ["what", "hours", "share", "GPU-hours"] + (["money"] if priced else [])
    rows = []
    for row in rows_:
        cells = [row.what, words.amount(row.hours), "" if row.share is None else pct(row.share)]
        cells.append("" if row.gpu_hours is None else words.amount(row.gpu_hours))
        rows.append(cells + ([words.amount(row.money) if row.money is not None else ""] if priced else []))
    return Grid("Where the run's time went", header, rows, {1, 2, 3, 4})


def ms(seconds: float) -> str:
    """Milliseconds with four digits."""
    return f"{1000 * seconds:.4g}"


def _opt(seconds: float | None) -> str:
    return "" if seconds is None else ms(seconds)


def pct(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.1f} %"
