"""The panels of the performance page: which drawings and tables stand where; a part without data has no panel."""

from __future__ import annotations

from trackwalker.perf.lanes import StepLanes
from trackwalker.perf.result import PerfReport, TracePart
from trackwalker.report.perf_charts import Panel, Stack, duration, stack
from trackwalker.report.perf_panels_run import goodput_panel, memory_panel, program_panel, throughput_panel
from trackwalker.report.perf_panels_trace import (
    collectives_panel,
    kernels_panel,
    parts_panel,
    ranks_panel,
    timeline_panel,
)  # fmt: skip

# Where the evidence of a rule is shown.
PLACES = {
    "exposed-communication": "collectives", "straggler": "ranks", "rank-spread": "ranks", "host-bound": "timeline",
    "idle-device": "timeline", "exposed-copies": "timeline", "device-copies": "timeline",
    "recomputation": "parts", "unfused-attention": "parts",
    "one-op": "parts", "scatter-add": "kernels", "ragged-one-shot": "kernels", "slow-phases": "throughput",
    "input-bound": "throughput", "checkpoints": "goodput", "compilation": "goodput", "lost-work": "goodput",
    "stalled": "goodput",
}  # fmt: skip


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
