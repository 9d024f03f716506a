"""What to fix first: every rule can fire, its sentences have all their words, and the order is by gain."""

from __future__ import annotations

import string

import pytest

from trackwalker.perf.analysis.classes import kernel_classes
from trackwalker.perf.analysis.fixes import _LOOPS, Rule, facts_of, fixes_for, rules
from trackwalker.perf.analysis.result import (
    Bucket,
    BudgetRow,
    CollectiveRow,
    GoodputPart,
    JobPart,
    Level,
    OpRow,
    PerfReport,
    ProgramPart,
    RankRow,
    Spread,
    StragglerRow,
    Throughput,
    TracePart,
)


def everything_wrong() -> PerfReport:
    shares = {"compute": 0.3, "exposed_comm": 0.3, "copy": 0.1, "host_gap": 0.2, "idle": 0.1}
    trace = TracePart(
        steps=3,
        step_s=0.2,
        buckets=[Bucket(name=n, seconds=0.2 * s, share=s) for n, s in shares.items()],
        kinds=[OpRow(name="copy-h2d", share=0.05), OpRow(name="copy-d2d", share=0.05)],
        parts=[OpRow(name="attention", phase="recompute", share=0.12)],
        ops=[
            OpRow(name="jit(f)/mlp/mul", path="jit(f)/mlp/mul", kind="elementwise", share=0.15, source="a.py:1"),
            OpRow(name="jit(f)/attention/exp", kind="softmax", part="attention", share=0.11, source="a.py:2"),
        ],
        kernels=[
            OpRow(name="input_scatter_fusion_3", share=0.06),
            OpRow(name="void RaggedAllToAllKernelImpl<4>", share=0.05),
        ],
        gaps=[OpRow(name="train.py:12 log", share=0.1)],
        collectives=[CollectiveRow(name="all-gather.1", kind="all-gather", count=4, exposed_s=0.04)],
        stragglers=[StragglerRow(device="n7 gpu 3", last=9, of=9, cost_s=0.02, share=0.1, says="n7 gpu 3 is late")],
    )
    ranks = [RankRow(rank=0, seconds=1.0, steps=9), RankRow(rank=1, seconds=1.2, steps=9)]
    level = [
        Level(first_step=0, last_step=9, steps=10, seconds=1.0, steady=True),
        Level(first_step=10, last_step=19, steps=10, seconds=1.5),
    ]
    through = Throughput(
        source="log", sources={}, steps=20, levels=level, ranks=ranks, slowest=ranks[1], rank_spread=0.2,
        data_wait_share=0.07, seconds=Spread(n=9, mean=1, median=1, p5=1, p95=1, mad=0, low=1, high=1),
    )  # fmt: skip
    spent = {"train": 0.4, "checkpoint": 0.1, "compile": 0.1, "lost work": 0.1, "stalled": 0.1, "slowdown": 0.2}
    rows = [BudgetRow(what=what, hours=share, share=share) for what, share in spent.items()]
    return PerfReport(
        job=JobPart(id="1", name="x", dir=""), throughput=through, trace=trace,
        program=ProgramPart(name="p", remat_share=0.2, peak_bytes=2**30), goodput=GoodputPart(rows=rows),
    )  # fmt: skip


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.id)
def test_every_rule_can_fire_and_has_a_fact_for_each_of_its_words(rule: Rule) -> None:
    report = everything_wrong()
    fired = {fix.rule: fix for fix in fixes_for(report)}
    assert rule.id in fired
    words = [name for text in (rule.says, rule.do, rule.evidence) for _, name, _, _ in string.Formatter().parse(text)]
    assert {w for w in words if w} <= set(facts_of(report))
    assert "unknown" not in fired[rule.id].says


def test_the_largest_gain_comes_first_and_waiting_for_a_straggler_is_promised_once() -> None:
    found = fixes_for(everything_wrong())
    assert [f.gain for f in found] == sorted((f.gain for f in found), reverse=True)
    gains = {f.rule: f.gain for f in found}
    assert gains["straggler"] + gains["exposed-communication"] == pytest.approx(0.3)


def test_a_report_without_a_trace_or_a_problem_has_nothing_to_fix() -> None:
    assert fixes_for(PerfReport(job=JobPart(id="1", name="x", dir=""))) == []


def test_the_kinds_that_rules_name_are_classes() -> None:
    assert set(_LOOPS) <= {known.id for known in kernel_classes()}
