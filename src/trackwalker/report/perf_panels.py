"""The panels of the performance page: which drawings and tables stand where; a part without data has no panel."""

from __future__ import annotations

from dataclasses import dataclass, field

from trackwalker.perf.lanes import StepLanes
from trackwalker.perf.names import short_path
from trackwalker.perf.parts import PHASES
from trackwalker.perf.result import OpRow, PerfReport, Series, TracePart
from trackwalker.report.perf_charts import (
    Heat, Plot, Segment, Sheet, Stack, duration, heat_map, segments, stack, step_plot,
)  # fmt: skip
from trackwalker.report.perf_lanes import Lanes, lanes_chart, lanes_sheet
from trackwalker.report.perf_view import grids, summary
from trackwalker.report.plots import thin
from trackwalker.report.text import clip_middle, one_line
from trackwalker.report.words import size

Item = Stack | Sheet | Plot | Heat | Lanes
_OPS = 200
_COLLECTIVES = 100
_DEVICES = 64
_STEPS = 300
_PHASE_STYLE = {"forward": "p-forward", "backward": "p-backward", "recompute": "p-recompute"}
# Where the evidence of a rule is shown.
PLACES = {
    "exposed-communication": "collectives", "straggler": "ranks", "rank-spread": "ranks", "host-bound": "timeline",
    "idle-device": "timeline", "exposed-copies": "timeline", "recomputation": "parts", "unfused-attention": "parts",
    "one-op": "parts", "scatter-add": "kernels", "ragged-one-shot": "kernels", "slow-phases": "throughput",
    "input-bound": "throughput", "checkpoints": "goodput", "compilation": "goodput", "lost-work": "goodput",
    "stalled": "goodput",
}  # fmt: skip


@dataclass
class Panel:
    """One tab of the page."""

    id: str
    title: str
    items: list[Item] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def panels(report: PerfReport, lanes: StepLanes | None) -> list[Panel]:
    """Every panel that the report has something for."""
    made = [_timeline(lanes)]
    if report.trace is not None:
        made += [_kernels(report.trace), _parts(report.trace), _collectives(report.trace)]
    made += [_memory(report), _ranks(report), _program(report), _throughput(report), _goodput(report)]
    return [panel for panel in made if panel.items]


def tiles(report: PerfReport) -> list[tuple[str, str, str]]:
    """The headline figures: name, value, and how sure it is."""
    rows: list[tuple[str, str, str]] = []
    through, used, trace = report.throughput, report.utilisation, report.trace
    if through is not None and through.tgs is not None:
        t = through.tgs
        rows.append(("TGS", f"{t.mean:,.6g}", f"tokens/s/device, 95 % {t.low:,.6g} to {t.high:,.6g}"))
    if used is not None and used.mfu is not None:
        rows.append(("MFU", f"{100 * used.mfu:.1f} %", f"of the {used.device or 'device'}'s peak"))
    elif used is not None and used.hfu is not None:
        rows.append(("HFU", f"{100 * used.hfu:.1f} %", "of the peak, recomputation included"))
    if through is not None:
        s = through.seconds
        rows.append(
            ("step", duration(s.mean), f"95 % {duration(s.low)} to {duration(s.high)}, {s.n} steps of {through.steps}")
        )
    elif trace is not None:
        rows.append(("step", duration(trace.step_s), f"traced, {trace.steps} steps"))
    if trace is not None:
        shares = {b.name: b for b in trace.buckets}
        if "exposed_comm" in shares:
            hidden = f", {duration(trace.overlapped_comm_s)} hidden" if trace.overlapped_comm_s else ""
            comm = shares["exposed_comm"]
            rows.append(("exposed comm", f"{100 * comm.share:.1f} %", f"{duration(comm.seconds)} a step{hidden}"))
        rest = [shares[n] for n in ("idle", "host_gap") if n in shares]
        if rest:
            share, host = sum(b.share for b in rest), shares.get("host_gap")
            rows.append(("idle", f"{100 * share:.1f} %", f"{duration(host.seconds if host else 0)} of it: the host"))
    if report.goodput is not None and report.goodput.goodput is not None:
        rows.append(("goodput", f"{100 * report.goodput.goodput:.1f} %", "of the run's wall time"))
    return rows


def step_bar(trace: TracePart | None) -> Stack | None:
    """The step as one bar."""
    if trace is None or not trace.buckets:
        return None
    note = f"mean of {trace.steps} steps on {len(trace.devices)} device{'s' if len(trace.devices) != 1 else ''}"
    if trace.overlapped_comm_s:
        note += f"; {duration(trace.overlapped_comm_s)} of communication are hidden under compute and not in the bar"
    return stack(f"One step: {duration(trace.step_s)}", trace.buckets, trace.step_s, note)


def figures(report: PerfReport) -> list[tuple[str, str]]:
    """All figures in words, as the terminal shows them."""
    return summary(report)


def _timeline(lanes: StepLanes | None) -> Panel:
    panel = Panel("timeline", "Timeline")
    if lanes is not None and lanes.devices:
        panel.items = [lanes_chart(lanes), lanes_sheet(lanes)]
    return panel


def _kernels(trace: TracePart) -> Panel:
    made = [
        ops_sheet("By kind of work", trace.kinds, "kind"),
        ops_sheet("Kernels that cost most", trace.kernels, "kernel", search=True),
        ops_sheet("Gaps that the host caused", trace.gaps, "what the host did"),
    ]
    notes = [f"sums of {trace.steps} steps; kernels on two streams count twice, so shares may add up to more than 100 %"]
    return Panel("kernels", "Kernels", [sheet for sheet in made if sheet.rows], notes + trace.notes)


def _parts(trace: TracePart) -> Panel:
    panel = Panel("parts", "Parts")
    if not trace.parts:
        return panel
    phases = [p for p in (*PHASES, "") if any(r.phase == p for r in trace.parts)]
    names = list(dict.fromkeys(r.name for r in trace.parts))
    cost = {(r.name, r.phase): r for r in trace.parts}
    total = {name: sum(r.seconds for r in trace.parts if r.name == name) for name in names}
    names.sort(key=lambda name: -total[name])
    most, share = max(total.values(), default=0.0), {r.name: 0.0 for r in trace.parts}
    for row in trace.parts:
        share[row.name] += row.share
    rows, bars = [], []
    for name in names:
        each = [cost[(name, p)].seconds if (name, p) in cost else 0.0 for p in phases]
        rows.append([name, *(duration(x) if x else "" for x in each), duration(total[name]), _pct(share[name])])
        styled = [(_PHASE_STYLE.get(p, "p-other"), p or "other", x) for p, x in zip(phases, each, strict=True)]
        bars.append(segments(styled, most, 100.0))
    header = ["part of the model", *(p or "other" for p in phases), "total", "of the step"]
    sheet = Sheet("By part of the model", header, rows, set(range(1, len(header))), bars=bars)
    sheet.bar_title = "forward, backward, computed again, other"
    panel.items = [sheet, ops_sheet("Operations that cost most", trace.ops, "operation", search=True)]
    return panel


def ops_sheet(title: str, ops: list[OpRow], first: str, search: bool = False) -> Sheet:
    """A table of operations, the dearest first, with a bar for each."""
    shown = ops[:_OPS]
    told = {
        "kind": [r.kind for r in shown],
        "part": [" ".join(x for x in (r.part, r.phase) if x) if r.part else "" for r in shown],
        "source": ["/".join(r.source.split("/")[-2:]) for r in shown],
    }
    told = {name: cells for name, cells in told.items() if any(cells)}
    rows = [
        [
            clip_middle(one_line(short_path(r.path) if r.path else " ".join(x for x in (r.name, r.phase) if x)), 90),
            duration(r.seconds), _pct(r.share), f"{r.count:.4g}", *(one_line(cells[n]) for cells in told.values()),
        ]
        for n, r in enumerate(shown)
    ]  # fmt: skip
    most = max((r.share for r in shown), default=0.0)
    bars = [segments([("k-one", r.name, r.share)], most, 100.0) for r in shown]
    note = f"{len(ops) - _OPS} more in --json" if len(ops) > _OPS else ""
    return Sheet(title, [first, "a step", "share", "calls", *told], rows, {1, 2, 3}, note, bars, search=search)


def _collectives(trace: TracePart) -> Panel:
    panel = Panel("collectives", "Collectives")
    shown = trace.collectives[:_COLLECTIVES]
    if not shown:
        return panel
    most = max((c.seconds or 0.0 for c in shown), default=0.0)
    rows, bars = [], []
    for c in shown:
        spent = c.seconds or 0.0
        exposed = min(c.exposed_s or 0.0, spent)
        bars.append(segments([("b-exposed_comm", "exposed", exposed), ("c-hidden", "hidden", spent - exposed)], most, 100))
        rows.append([
            clip_middle(one_line(c.name), 50), c.kind, f"{c.count:.4g}", "" if c.bytes is None else size(c.bytes),
            "" if c.group_size is None else str(c.group_size), _time(c.seconds), _time(c.exposed_s), _time(c.wait_s),
            "" if c.algbw_gb_s is None else f"{c.algbw_gb_s:.4g}", "" if c.busbw_gb_s is None else f"{c.busbw_gb_s:.4g}",
            clip_middle(one_line(short_path(c.path) if c.path else c.source), 50),
        ])  # fmt: skip
    header = ["collective", "kind", "calls", "bytes", "ranks", "a step", "exposed", "waiting", "algbw GB/s", "busbw GB/s"]
    sheet = Sheet("Collectives", [*header, "where"], rows, set(range(2, 10)), bars=bars, search=True)
    sheet.bar_title = "exposed, hidden under compute"
    panel.items = [sheet]
    panel.notes = ["waiting: for the last rank to come; bandwidths count the transfer alone, without the waiting"]
    if trace.alignment_us is not None:
        panel.notes.append(f"clocks of the files agree to {trace.alignment_us:.3g} µs")
    if len(trace.collectives) > _COLLECTIVES:
        panel.notes.append(f"{len(trace.collectives) - _COLLECTIVES} more in --json")
    return panel


def _memory(report: PerfReport) -> Panel:
    panel = Panel("memory", "Memory")
    program = report.program
    if program is not None and program.peak_bytes:
        parts = [(name, count) for name, count in program.memory.items() if count > 0]
        whole = float(sum(count for _, count in parts))
        styled = [(f"m-{n}", name, float(count)) for n, (name, count) in enumerate(parts)]
        made = segments(styled, whole)
        for piece, (_, count) in zip(made, parts, strict=True):
            piece.value = size(count)
        says = ", ".join(f"{s.label} {s.value}" for s in made)
        title = f"Memory of the compiled program: {size(program.peak_bytes)} at its peak"
        panel.items.append(Stack(title, says, made, "by what the buffers are for"))
    if program is not None and program.live_at_peak:
        most = float(max(count for _, count in program.live_at_peak))
        rows = [[clip_middle(one_line(name), 90), size(count)] for name, count in program.live_at_peak]
        bars = [segments([("k-one", name, float(count))], most, 100.0) for name, count in program.live_at_peak]
        panel.items.append(Sheet("Largest buffers at the worst moment", ["instruction", "bytes"], rows, {1}, bars=bars))
    panel.notes = [n for n in (report.trace.notes if report.trace else []) if "memory" in n]
    return panel


def _ranks(report: PerfReport) -> Panel:
    panel, trace = Panel("ranks", "Ranks"), report.trace
    if trace is not None:
        for s in trace.stragglers:
            panel.notes.append(s.says or f"the others wait for {s.device}")
        heat = heat_map(trace.rank_steps) if trace.rank_steps else None
        if heat is not None and trace.rank_steps is not None:
            table = trace.rank_steps.late_s if any(v for r in trace.rank_steps.late_s for v in r) else trace.rank_steps.step_s
            rows = [
                [clip_middle(one_line(device), 60), *("" if v is None else f"{1e3 * v:.4g}" for v in values)]
                for device, values in list(zip(trace.rank_steps.devices, table, strict=True))[:_DEVICES]
            ]
            header = ["device (ms)", *(f"step {s}" for s in trace.rank_steps.steps)]
            panel.items += [heat, Sheet("The map as a table", header, rows, set(range(1, len(header))), folded=True)]
        if len(trace.devices) > 1:
            panel.items.append(_devices(trace))
    if report.throughput is not None:
        panel.items += [_sheet(g) for g in grids(report) if g.title == "Ranks"]
    return panel


def _devices(trace: TracePart) -> Sheet:
    shown = sorted(trace.devices, key=lambda d: -next((b.seconds for b in d.buckets if b.name == "compute"), 0.0))
    shown = shown[:_DEVICES]
    most = max((d.step_s for d in shown), default=0.0)
    names = [b.name for b in trace.buckets]
    rows, bars = [], []
    for d in shown:
        by = {b.name: b.seconds for b in d.buckets}
        rows.append([clip_middle(one_line(d.device), 60), duration(d.step_s), *(duration(by.get(n, 0.0)) for n in names)])
        bars.append(segments([(f"b-{n}", n, by.get(n, 0.0)) for n in names], most, 100.0))
    words = {"exposed_comm": "exposed comm", "host_gap": "host gaps"}
    header = ["device", "step", *(words.get(n, n) for n in names)]
    note = f"the {_DEVICES} of {len(trace.devices)} that compute longest" if len(trace.devices) > _DEVICES else ""
    return Sheet("Where the step goes on each device", header, rows, set(range(1, len(header))), note, bars)


def _program(report: PerfReport) -> Panel:
    panel, program = Panel("hlo", "HLO"), report.program
    if program is None:
        return panel
    panel.items += [_sheet(g) for g in grids(report) if g.title.startswith("Compiled program")]
    if program.ops:
        most = float(max(program.ops.values()))
        rows = [[one_line(name), str(count)] for name, count in program.ops.items()]
        bars = [segments([("k-one", name, float(count))], most, 100.0) for name, count in program.ops.items()]
        panel.items.append(Sheet("Instructions", ["opcode", "instructions"], rows, {1}, bars=bars, folded=True))
    panel.notes = list(program.notes)
    if program.fingerprint:
        panel.notes.append(f"fingerprint {program.fingerprint}: the same for two compilations that do the same")
    return panel


def _throughput(report: PerfReport) -> Panel:
    panel, through = Panel("throughput", "Throughput"), report.throughput
    if through is None:
        return panel
    plot = step_plot(through)
    if plot is not None:
        panel.items += [plot, _series(through.series)]
    if through.levels:
        rows = [
            [f"{x.first_step} to {x.last_step}", str(x.steps), duration(x.seconds), "steady" if x.steady else ""]
            for x in through.levels
        ]
        panel.items.append(Sheet("Levels of speed", ["steps", "how many", "median", ""], rows[:50], {1, 2}))
    if through.labels:
        rows = [
            [name, str(len(at)), duration(through.label_cost_s[name]) if name in through.label_cost_s else "", _few(at)]
            for name, at in through.labels.items()
        ]
        panel.items.append(Sheet("Steps set aside", ["why", "steps", "took longer by", "which"], rows, {1, 2}))
    wanted = ("step time", "tokens/s/device", "upstream's TGS", "drift", "MFU", "HFU", "model FLOPs", "source", "note")
    rows = [[name, value] for name, value in summary(report) if name in wanted]
    panel.items.append(Sheet("Figures", ["what", "value"], rows))
    return panel


def _series(series: Series) -> Sheet:
    values = [s if s is not None else 0.0 for s in series.seconds]
    rows = [
        [
            str(series.step[i]),
            "" if series.seconds[i] is None else duration(values[i]),
            "" if series.tgs[i] is None else f"{series.tgs[i]:.6g}",
            series.label[i],
        ]
        for i in thin(values, _STEPS)
    ]
    note = f"{len(rows)} of {len(values)} steps: the shortest and the longest of each stretch" if len(rows) < len(values) else ""
    header = ["step", "time", "tokens/s/device", "set aside as"]
    return Sheet("The steps as a table", header, rows, {0, 1, 2}, note, folded=True)


def _goodput(report: PerfReport) -> Panel:
    panel, part = Panel("goodput", "Goodput"), report.goodput
    if part is None or not part.rows:
        return panel
    sheet = next(_sheet(g) for g in grids(report) if g.title == "Where the run's time went")
    most = max(row.hours for row in part.rows)
    if most > 0:
        style = ["g-good", *["g-bad"] * len(part.rows)]
        sheet.bars = [segments([(s, r.what, r.hours)], most, 100.0) for s, r in zip(style, part.rows, strict=False)]
    panel.items = [sheet]
    if part.gpus_from:
        panel.notes.append(f"GPUs counted from {part.gpus_from}")
    return panel


def _sheet(grid: object) -> Sheet:
    return Sheet(grid.title, grid.header, grid.rows, grid.numbers, grid.note)  # type: ignore[attr-defined]


def _few(steps: list[int]) -> str:
    return ", ".join(map(str, steps[:20])) + (f" and {len(steps) - 20} more" if len(steps) > 20 else "")


def _time(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def _pct(share: float) -> str:
    return f"{100 * share:.1f} %"


__all__ = ["PLACES", "Item", "Panel", "Segment", "figures", "ops_sheet", "panels", "step_bar", "tiles"]
