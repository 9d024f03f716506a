"""The timeline lanes of the performance page: what the script draws, and the table behind it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from trackwalker.perf.classes import Engine, kernel_classes
from trackwalker.perf.lanes import STATES, DeviceLanes, Lane, StepLanes
from trackwalker.report.perf_charts import Sheet, duration
from trackwalker.report.perf_view import BUCKETS
from trackwalker.report.text import clip_middle, one_line

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
