"""The panels of the performance page: which drawings and tables stand where; a part without data has no panel."""

from __future__ import annotations

from dataclasses import replace

from trackwalker.perf.analysis.result import Level, PerfReport, ProgramPart, Series, TracePart
from trackwalker.perf.analysis.step_lanes import StepLanes
from trackwalker.report.charts.plots import thin
from trackwalker.report.perf.charts import Panel, Sheet, Stack, duration, segments, sheet_of, stack, step_plot
from trackwalker.report.perf.panels_trace import (  # fmt: skip
    collectives_panel,
    kernels_panel,
    parts_panel,
    ranks_panel,
    timeline_panel,
)
from trackwalker.report.perf.view import Grid, grids, summary
from trackwalker.report.text import clip_middle, one_line
from trackwalker.report.words import size

# Where the evidence of a rule is shown.
PLACES = {
    "exposed-communication": "collectives", "straggler": "ranks", "rank-spread": "ranks", "host-bound": "timeline",
    "idle-device": "timeline", "exposed-copies": "timeline", "device-copies": "timeline",
    "recomputation": "parts", "unfused-attention": "parts",
    "one-op": "parts", "scatter-add": "kernels", "ragged-one-shot": "kernels", "slow-phases": "throughput",
    "input-bound": "throughput", "checkpoints": "goodput", "compilation": "goodput", "lost-work": "goodput",
    "stalled": "goodput",
}  # fmt: skip


# What the log, the compiled program and the run's budget tell, as panels of the performance page.
_STEPS = 300


def memory_panel(report: PerfReport) -> Panel:
    """What the memory holds at its peak."""
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


def program_panel(report: PerfReport) -> Panel:
    """The compiled program in figures."""
    panel, program = Panel("hlo", "HLO"), report.program
    if program is None:
        return panel
    panel.items += [sheet_of(g) for g in grids(report) if g.title.startswith("Compiled program")]
    if program.planned:
        panel.items.append(_planned(program))
    if program.ops:
        most = float(max(program.ops.values()))
        rows = [[one_line(name), str(count)] for name, count in program.ops.items()]
        bars = [segments([("k-one", name, float(count))], most, 100.0) for name, count in program.ops.items()]
        panel.items.append(Sheet("Instructions", ["opcode", "instructions"], rows, {1}, bars=bars, folded=True))
    panel.notes = list(program.notes)
    if program.fingerprint:
        panel.notes.append(f"fingerprint {program.fingerprint}: the same for two compilations that do the same")
    return panel


def _planned(program: ProgramPart) -> Sheet:
    """What the compiler lets run beside each collective: where nothing does, its time is exposed by plan."""
    rows = []
    for c in program.planned:
        beside = f"{c.between} instructions, {c.between_gflop:.3g} GFLOP" if c.between else "nothing"
        if not c.asynchronous:
            beside = "nothing: it is synchronous"
        beside += " (done in the next iteration)" if c.crosses else ""
        again = "computed again" if c.recomputed else ""
        rows.append([
            clip_middle(one_line(c.name), 60), c.kind, str(c.runs), size(c.bytes), one_line(c.groups), beside, again,
            clip_middle(one_line("/".join(c.source.split("/")[-2:])), 60),
        ])  # fmt: skip
    header = ["collective", "kind", "runs", "bytes", "groups of devices", "planned beside it", "", "source"]
    grid = Grid("Collectives as compiled", header, rows, {2, 3})
    return replace(sheet_of(grid), search=len(rows) > 20)


def throughput_panel(report: PerfReport) -> Panel:
    """Step times, what was set aside, and what is left."""
    panel, through = Panel("throughput", "Throughput"), report.throughput
    if through is None:
        return panel
    plot = step_plot(through)
    if plot is not None:
        panel.items += [plot, _series(through.series)]
    if through.levels:
        rows = [
            [f"{x.first_step} to {x.last_step}", str(x.steps), duration(x.seconds), _kind(x)] for x in through.levels
        ]
        panel.items.append(Sheet("Phases of one speed", ["steps", "how many", "median", ""], rows[:50], {1, 2}))
    if through.labels:
        rows = [
            [name, str(len(at)), duration(through.label_cost_s[name]) if name in through.label_cost_s else "", _few(at)]
            for name, at in through.labels.items()
        ]
        panel.items.append(Sheet("Steps set aside", ["why", "steps", "took longer by", "which"], rows, {1, 2}))
    wanted = (
        "step time",
        "tokens/s/device",
        "TGS as MaxText logs it",
        "drift",
        "MFU",
        "HFU",
        "model FLOPs",
        "source",
        "note",
    )
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
    note = (
        f"{len(rows)} of {len(values)} steps: the shortest and the longest of each stretch"
        if len(rows) < len(values)
        else ""
    )
    header = ["step", "time", "tokens/s/device", "set aside as"]
    return Sheet("The steps as a table", header, rows, {0, 1, 2}, note, folded=True)


def goodput_panel(report: PerfReport) -> Panel:
    """Where the wall time went."""
    panel, part = Panel("goodput", "Goodput"), report.goodput
    if part is None or not part.rows:
        return panel
    sheet = next(sheet_of(g) for g in grids(report) if g.title == "Where the run's time went")
    most = max(row.hours for row in part.rows)
    if most > 0:
        style = ["g-good", *["g-bad"] * len(part.rows)]
        sheet.bars = [segments([(s, r.what, r.hours)], most, 100.0) for s, r in zip(style, part.rows, strict=False)]
    panel.items = [sheet]
    if part.gpus_from:
        panel.notes.append(f"GPUs counted from {part.gpus_from}")
    return panel


def _kind(level: Level) -> str:
    return ", ".join(word for word, is_so in (("slow", level.slow), ("judged by", level.steady)) if is_so)


def _few(steps: list[int]) -> str:
    return ", ".join(map(str, steps[:20])) + (f" and {len(steps) - 20} more" if len(steps) > 20 else "")


def panels(report: PerfReport, lanes: StepLanes | None) -> list[Panel]:
    """Every panel that the report has something for."""
    made = [timeline_panel(lanes)]
    if report.trace is not None:
        made += [kernels_panel(report.trace), parts_panel(report.trace), collectives_panel(report.trace)]
    made += [
        memory_panel(report),
        ranks_panel(report),
        program_panel(report),
        throughput_panel(report),
        goodput_panel(report),
    ]
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
            waits = ", waiting for stragglers included" if trace.stragglers else ""
            said = f"{duration(comm.seconds)} a step{hidden}{waits}"
            rows.append(("exposed comm", f"{100 * comm.share:.1f} %", said))
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
    return stack(f"One traced step: {duration(trace.step_s)}", trace.buckets, trace.step_s, note)
