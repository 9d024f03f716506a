"""What to fix first: rules as data, asked of the facts of a report, ranked by what mending would give."""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict

from trackwalker.job.yaml_files import shipped
from trackwalker.perf.analysis.parts import RECOMPUTE
from trackwalker.perf.analysis.result import Fix, GoodputPart, PerfReport, TracePart, short_path, slow_phases

Facts = dict[str, float | str]
_WALL = {
    "checkpoint": "checkpoint_wall_share",
    "compile": "compile_wall_share",
    "lost work": "lost_wall_share",
    "stalled": "stalled_wall_share",
    "slowdown": "slowdown_wall_share",
}


_WITH_HOST = ("copy-h2d", "copy-d2h")  # classes.yml
_LOOPS = ("elementwise", "cast", "layout", "reduction")  # classes.yml: what a fused loop does


class Rule(BaseModel):
    """One rule of fixes.yml."""

    model_config = ConfigDict(extra="forbid")

    id: str
    fact: str
    least: float
    of: Literal["step", "wall"] = "step"
    says: str
    do: str
    evidence: str


@cache
def rules() -> list[Rule]:
    """The rules, in the order of the file."""
    return [Rule(**row) for row in shipped("perf", "fixes.yml")]


def fixes_for(report: PerfReport) -> list[Fix]:
    """Every rule that fires, the largest gain first."""
    facts = facts_of(report)
    words = _Words({name: _word(name, value) for name, value in facts.items()})
    found = []
    for rule in rules():
        gain = facts.get(rule.fact)
        if not isinstance(gain, float) or gain < rule.least:
            continue
        says, do, evidence = (text.format_map(words) for text in (rule.says, rule.do, rule.evidence))
        found.append(Fix(rule=rule.id, says=says, do=do, gain=round(gain, 4), of=rule.of, evidence=evidence))
    return sorted(found, key=lambda fix: -fix.gain)


def facts_of(report: PerfReport) -> Facts:
    """The numbers that rules may ask for; what the report lacks is not there."""
    facts: Facts = {}
    if report.trace is not None:
        facts |= _from_trace(report.trace)
    program, through = report.program, report.throughput
    if program is not None:
        facts["peak_gib"] = f"{program.peak_bytes / 2**30:.1f}" if program.peak_bytes else "unknown"
        if program.remat_share is not None:
            facts["remat_share"] = program.remat_share
    if through is not None:
        if through.data_wait_share is not None:
            facts["data_wait_share"] = through.data_wait_share
        if through.slowest is not None and through.rank_spread is not None:
            facts |= {"slowest_rank": str(through.slowest.rank), "rank_spread_share": through.rank_spread}
        facts["slow_steps"] = slow_phases(through) or "single slow steps, no slow phase"
    if report.goodput is not None:
        facts |= _from_budget(report.goodput)
    return facts


def _from_budget(goodput: GoodputPart) -> Facts:
    return {_WALL[row.what]: row.share for row in goodput.rows if row.what in _WALL and row.share is not None}


def _from_trace(trace: TracePart) -> Facts:
    facts: Facts = {
        "traced_ms": _ms(trace.step_s),
        "traced_steps": str(trace.steps),
        "traced_devices": str(len(trace.devices)),
        "top_collective": "one that the trace does not name",
        "top_gap": "",
    }
    for bucket in trace.buckets:
        facts[f"{bucket.name}_share"], facts[f"{bucket.name}_ms"] = bucket.share, _ms(bucket.seconds)
    facts |= _copies(trace)
    exposed = [c for c in trace.collectives if c.exposed_s]
    if exposed:
        top = max(exposed, key=lambda c: c.exposed_s or 0.0)
        facts["top_collective"] = f"{top.kind} {top.name}" if top.kind not in top.name else top.name
    again = sum(row.share for row in trace.parts if row.phase == RECOMPUTE)
    if again:
        facts["remat_step_share"] = again
    if trace.gaps:
        facts["top_gap"] = f", most often in {trace.gaps[0].name}"
    if trace.stragglers:
        worst = max(trace.stragglers, key=lambda s: s.cost_s)
        facts |= {
            "straggler_says": worst.says or f"the others wait for {worst.device}",
            "straggler_share": worst.share,
        }
        # Who waits for a straggler waits inside a collective: the same time is not promised twice.
        exposed_share = facts.get("exposed_comm_share", 0.0)
        if isinstance(exposed_share, float):
            left = max(exposed_share - worst.share, 0.0)
            facts |= {"exposed_comm_share": left, "exposed_comm_ms": _ms(left * trace.step_s)}
    for name, part in (
        ("ragged_one_shot_share", "RaggedAllToAllKernelImpl"),
        ("scatter_share", "input_scatter_fusion"),
    ):
        share = sum(kernel.share for kernel in trace.kernels if part in kernel.name)
        if share:
            facts[name] = share
    softmax = [op for op in trace.ops if op.kind == "softmax" and op.part == "attention"]
    if softmax:
        facts |= {"attention_softmax_share": sum(op.share for op in softmax), "softmax_source": softmax[0].source}
    loops = [op for op in trace.ops if op.kind in _LOOPS]
    if loops:
        top_op = max(loops, key=lambda op: op.share)
        facts |= {
            "top_loop_op": short_path(top_op.name),
            "top_loop_op_share": top_op.share,
            "top_loop_source": top_op.source or top_op.path or "the trace does not tell",
        }
    return facts


class _Words(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "unknown"


def _copies(trace: TracePart) -> Facts:
    """The exposed copies, shared out as the table of kinds has them: a copy within the device blames no host."""
    exposed = next((bucket for bucket in trace.buckets if bucket.name == "copy"), None)
    kinds = {row.name: row.share for row in trace.kinds if row.name.startswith("copy-")}
    if exposed is None:
        return {}
    on_device = sum(share for name, share in kinds.items() if name not in _WITH_HOST)
    part = on_device / sum(kinds.values()) if any(kinds.values()) else 0.0
    return {
        "host_copy_share": exposed.share * (1.0 - part),
        "host_copy_ms": _ms(exposed.seconds * (1.0 - part)),
        "device_copy_share": exposed.share * part,
        "device_copy_ms": _ms(exposed.seconds * part),
    }


def _word(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{100 * value:.1f} %" if name.endswith("_share") else f"{value:g}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g}"
