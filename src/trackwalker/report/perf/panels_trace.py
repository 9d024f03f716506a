"""What traces tell, as panels of the performance page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from trackwalker.perf.analysis.classes import Engine, kernel_classes
from trackwalker.perf.analysis.parts import BACKWARD, FORWARD, OTHER, RECOMPUTE
from trackwalker.perf.analysis.result import OpRow, PerfReport, TracePart, short_path
from trackwalker.perf.analysis.step_lanes import STATES, DeviceLanes, Lane, StepLanes
from trackwalker.report.perf.charts import Panel, Sheet, duration, heat_map, segments, sheet_of
from trackwalker.report.perf.view import BUCKETS, grids, pct
from trackwalker.report.text import clip_middle, one_line
from trackwalker.report.words import size

_OPS = 200
_COLLECTIVES = 100
_DEVICES = 64
_PASSES = (FORWARD, BACKWARD, RECOMPUTE, OTHER)


# The timeline lanes of the performance page: what the script draws, and the table behind it.
_NAME = 120
_NAMES = 5_000  # distinct ones in the drawing; what comes after is told by its kind
_LONGEST = 60
# What kernels are painted as: few colours, each with a word in the legend.
GROUPS = {
    "gemm": "matrix products", "attention": "attention kernels", "reduce": "softmax, norms, reductions",
    "loops": "element-wise, data movement", "comm": "communication", "copy": "copies", "other": "other",
}  # fmt: skip
_GROUP_OF = {
    "gemm": "gemm", "grouped-gemm": "gemm", "convolution": "gemm", "attention-forward": "attention",
    "attention-backward": "attention", "softmax": "reduce", "normalisation": "reduce", "reduction": "reduce",
    "other": "other",
}  # fmt: skip


@dataclass
class Lanes:
    """The drawing's data for the script, and its legend."""

    kind = "lanes"
    says: str
    data: dict[str, object]
    legends: list[tuple[str, list[tuple[str, str]]]]  # of state rows and of streams: style and word
    notes: list[str]


def lanes_chart(lanes: StepLanes) -> Lanes:
    """All bars, with names said once."""
    names = _Names()
    styles = [*(f"b-{s}" for s in STATES), *(f"g-{g}" for g in GROUPS)]
    rows = []
    for device in lanes.devices:
        rows.append(_row(device, device.state, names, styles, True))
        rows += [_row(device, lane, names, styles, False) for lane in device.streams]
    states = [(f"b-{s}", BUCKETS[s]) for s in STATES]
    kinds = [(f"g-{g}", word) for g, word in GROUPS.items()]
    used = {styles[k] for row in rows for k in row["bars"][3::6]}  # type: ignore[index]
    notes = list(lanes.left_out)
    more = sum(device.more_streams for device in lanes.devices)
    if more:
        notes.append(f"{more} streams that did least are not drawn")
    number = lanes.devices[0].step
    many = f"{len(lanes.devices)} device{'s' if len(lanes.devices) != 1 else ''}"
    says = f"{'One step' if number is None else f'Step {number}'} on {many}"
    legends = [("state", [p for p in states if p[0] in used]), ("streams", [p for p in kinds if p[0] in used])]
    data = {"span": lanes.span_ns, "names": list(names.shown), "styles": styles, "lanes": rows}
    return Lanes(says, data, legends, notes)


class _Names:
    """Each name once, made fit to be shown once."""

    def __init__(self) -> None:
        self.shown: dict[str, int] = {}
        self._known: dict[str, int] = {}

    def place(self, name: str, kind: str) -> int:
        """Where a bar's name stands in the list."""
        known = self._known.get(name)
        if known is None:
            said = clip_middle(one_line(BUCKETS.get(name, name)), _NAME)
            if said not in self.shown and len(self.shown) >= _NAMES:
                said = kind
            known = self._known[name] = self.shown.setdefault(said, len(self.shown))
        return known


def _row(device: DeviceLanes, lane: Lane, names: _Names, styles: list[str], state: bool) -> dict[str, object]:
    number = {style: n for n, style in enumerate(styles)}
    bars: list[int] = []
    for i, (name, kind) in enumerate(zip(lane.name, lane.kind, strict=True)):
        style = f"b-{kind}" if state else f"g-{group_of(kind)}"
        bars += [int(lane.start[i]), int(lane.length[i]), names.place(name, kind), number[style]]
        bars += [int(lane.count[i]), int(lane.busy[i])]
    title = "state" if state else one_line(lane.title)
    return {"device": clip_middle(one_line(device.device), 60), "title": clip_middle(title, 40), "bars": bars}


@cache
def group_of(kind: str) -> str:
    """The colour group of a class of kernels."""
    engine = next((c.engine for c in kernel_classes() if c.id == kind), Engine.COMPUTE)
    if engine != Engine.COMPUTE:
        return "comm" if engine == Engine.COLLECTIVE else "copy"
    return _GROUP_OF.get(kind, "loops")


def lanes_sheet(lanes: StepLanes) -> Sheet:
    """The longest bars as a table."""
    found = [
        (int(lane.length[i]), device.device, lane, i)
        for device in lanes.devices
        for lane in device.streams
        for i in range(len(lane.name))
    ]
    found.sort(key=lambda row: (-row[0], row[1], int(row[2].start[row[3]])))
    rows = [
        [
            clip_middle(one_line(device), 40), clip_middle(one_line(lane.title), 30),
            duration(int(lane.start[i]) / 1e9), duration(length / 1e9), str(int(lane.count[i])), lane.kind[i],
            clip_middle(one_line(lane.name[i]), 90),
        ]
        for length, device, lane, i in found[:_LONGEST]
    ]  # fmt: skip
    header = ["device", "stream", "from", "length", "kernels", "kind", "what"]
    note = f"the longest {len(rows)} of {len(found)} bars"
    return Sheet("The timeline as a table", header, rows, {2, 3, 4}, note, search=True, folded=True)


def timeline_panel(lanes: StepLanes | None) -> Panel:
    """The lanes of one step."""
    panel = Panel("timeline", "Timeline")
    if lanes is not None and lanes.devices:
        panel.items = [lanes_chart(lanes), lanes_sheet(lanes)]
    return panel


def kernels_panel(trace: TracePart) -> Panel:
    """By kind, by kernel, and the gaps between them."""
    made = [
        ops_sheet("By kind of work", trace.kinds, "kind"),
        ops_sheet("Kernels that cost most", trace.kernels, "kernel", search=True),
        ops_sheet("Gaps that the host caused", trace.gaps, "what the host did"),
    ]
    notes = [
        f"sums of {trace.steps} steps; kernels on two streams count twice, so shares may add up to more than 100 %"
    ]
    return Panel(
        "kernels",
        "Kernels",
        [sheet for sheet in made if sheet.rows],
        notes + [n for n in trace.notes if "memory" not in n],
    )


def parts_panel(trace: TracePart) -> Panel:
    """By part of the model and pass, and by operation."""
    panel = Panel("parts", "Parts")
    if not trace.parts:
        return panel
    cost: dict[str, dict[str, float]] = {}
    share: dict[str, float] = {}
    for row in trace.parts:
        phase = row.phase if row.phase in _PASSES else OTHER
        part = cost.setdefault(row.name, {})
        part[phase] = part.get(phase, 0.0) + row.seconds
        share[row.name] = share.get(row.name, 0.0) + row.share
    phases = [p for p in _PASSES if any(p in part for part in cost.values())]
    total = {name: sum(part.values()) for name, part in cost.items()}
    most = max(total.values())
    rows, bars = [], []
    for name in sorted(cost, key=lambda name: -total[name]):
        each = [cost[name].get(p, 0.0) for p in phases]
        rows.append([name, *(duration(x) if x else "" for x in each), duration(total[name]), pct(share[name])])
        bars.append(segments([(f"p-{p}", p, x) for p, x in zip(phases, each, strict=True)], most, 100.0))
    header = ["part of the model", *phases, "total", "of the step"]
    sheet = Sheet("By part of the model", header, rows, set(range(1, len(header))), bars=bars)
    sheet.legend = [(f"p-{p}", p) for p in phases]
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
            duration(r.seconds), pct(r.share), f"{r.count:.4g}", *(one_line(cells[n]) for cells in told.values()),
        ]
        for n, r in enumerate(shown)
    ]  # fmt: skip
    most = max((r.share for r in shown), default=0.0)
    bars = [segments([("k-one", r.name, r.share)], most, 100.0) for r in shown]
    note = f"{len(ops) - _OPS} more in --json" if len(ops) > _OPS else ""
    return Sheet(title, [first, "a step", "share", "calls", *told], rows, {1, 2, 3}, note, bars, search=search)


def collectives_panel(trace: TracePart) -> Panel:
    """Every collective with its bytes and bandwidth."""
    panel = Panel("collectives", "Collectives")
    shown = trace.collectives[:_COLLECTIVES]
    if not shown:
        return panel
    most = max((c.seconds or 0.0 for c in shown), default=0.0)
    rows, bars = [], []
    for c in shown:
        spent = c.seconds or 0.0
        exposed = min(c.exposed_s or 0.0, spent)
        bars.append(
            segments([("b-exposed_comm", "exposed", exposed), ("c-hidden", "hidden", spent - exposed)], most, 100)
        )
        rows.append([
            clip_middle(one_line(c.name), 50), c.kind, f"{c.count:.4g}", "" if c.bytes is None else size(c.bytes),
            "" if c.group_size is None else str(c.group_size), _time(c.seconds), _time(c.exposed_s), _time(c.wait_s),
            *("" if x is None else f"{x:.4g}" for x in (c.algbw_gb_s, c.busbw_gb_s)),
            clip_middle(one_line(short_path(c.path) if c.path else c.source), 50),
        ])  # fmt: skip
    header = [
        "collective",
        "kind",
        "calls",
        "bytes",
        "ranks",
        "a step",
        "exposed",
        "waiting",
        "algbw GB/s",
        "busbw GB/s",
    ]
    if any(row[-1] for row in rows):
        header.append("where")
    else:
        rows = [row[:-1] for row in rows]
    sheet = Sheet("By collective", header, rows, set(range(2, 10)), bars=bars, search=True)
    sheet.legend = [("b-exposed_comm", "exposed"), ("c-hidden", "hidden under compute")]
    panel.items = [sheet]
    panel.notes = ["waiting: for the last rank to come; bandwidths count the transfer alone, without the waiting"]
    if trace.alignment_us is not None:
        panel.notes.append(f"clocks of the files agree to {trace.alignment_us:.3g} µs")
    if len(trace.collectives) > _COLLECTIVES:
        panel.notes.append(f"{len(trace.collectives) - _COLLECTIVES} more in --json")
    return panel


def ranks_panel(report: PerfReport) -> Panel:
    """Who is late, step by step."""
    panel, trace = Panel("ranks", "Ranks"), report.trace
    if trace is not None:
        for s in trace.stragglers:
            panel.notes.append(s.says or f"the others wait for {s.device}")
        heat = heat_map(trace.rank_steps) if trace.rank_steps else None
        if heat is not None and trace.rank_steps is not None:
            table = (
                trace.rank_steps.late_s
                if any(v for r in trace.rank_steps.late_s for v in r)
                else trace.rank_steps.step_s
            )
            rows = [
                [clip_middle(one_line(device), 60), *("" if v is None else f"{1e3 * v:.4g}" for v in values)]
                for device, values in list(zip(trace.rank_steps.devices, table, strict=True))[:_DEVICES]
            ]
            header = ["device (ms)", *(f"step {s}" for s in trace.rank_steps.steps)]
            panel.items += [heat, Sheet("The map as a table", header, rows, set(range(1, len(header))), folded=True)]
        if len(trace.devices) > 1:
            panel.items.append(_devices(trace))
    for grid in grids(report):
        if grid.title == "Ranks":
            panel.items.append(replace(sheet_of(grid), title="Ranks by their own step times"))
    return panel


def _devices(trace: TracePart) -> Sheet:
    shown = sorted(trace.devices, key=lambda d: -next((b.seconds for b in d.buckets if b.name == "compute"), 0.0))
    shown = shown[:_DEVICES]
    most = max((d.step_s for d in shown), default=0.0)
    names = [b.name for b in trace.buckets]
    rows, bars = [], []
    for d in shown:
        by = {b.name: b.seconds for b in d.buckets}
        rows.append(
            [clip_middle(one_line(d.device), 60), duration(d.step_s), *(duration(by.get(n, 0.0)) for n in names)]
        )
        bars.append(segments([(f"b-{n}", n, by.get(n, 0.0)) for n in names], most, 100.0))
    words = {"exposed_comm": "exposed comm", "host_gap": "host gaps"}
    legend = [(f"b-{n}", BUCKETS.get(n, n)) for n in names]
    header = ["device", "step", *(words.get(n, n) for n in names)]
    note = f"the {_DEVICES} of {len(trace.devices)} that compute longest" if len(trace.devices) > _DEVICES else ""
    return Sheet("Where the step goes on each device", header, rows, set(range(1, len(header))), note, bars, legend)


def _time(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)
