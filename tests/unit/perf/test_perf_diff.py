"""Two runs compared: what may not be compared, a waterfall that adds up, effects of count and time, noise, the gate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from trackwalker.perf.analysis.diff import diff, op_deltas, waterfall
from trackwalker.perf.analysis.diff_result import DiffReport
from trackwalker.perf.analysis.result import (
    Bucket,
    JobPart,
    Level,
    OpRow,
    PerfReport,
    ProgramPart,
    Series,
    Throughput,
    TracePart,
)
from trackwalker.perf.throughput.speed import spread
from trackwalker.report.perf.diff import diff_markdown, render_diff

NAMES = ("compute", "exposed_comm", "copy", "host_gap", "idle")


def trace(buckets: dict[str, float], ops: list[OpRow], noise: float = 0.0, seed: int = 0, steps: int = 6) -> TracePart:
    rng = np.random.default_rng(seed)
    whole = sum(buckets.values())
    samples = {n: [v * (1 + noise * float(rng.standard_normal())) for _ in range(steps)] for n, v in buckets.items()}
    return TracePart(
        steps=steps,
        step_s=whole,
        step_samples=[sum(samples[n][i] for n in buckets) for i in range(steps)],
        buckets=[Bucket(name=n, seconds=v, share=v / whole) for n, v in buckets.items()],
        bucket_samples=samples,
        ops=ops,
    )


def run(
    name: str, seconds: np.ndarray, part: TracePart | None = None, tokens: float | None = 1000.0, **job: object
) -> PerfReport:
    n = len(seconds)
    through = Throughput(
        source="log", sources={"log": n}, steps=n, seconds=spread(seconds), tokens_per_step=tokens,
        levels=[Level(first_step=0, last_step=n - 1, steps=n, seconds=float(np.median(seconds)), steady=True)],
        series=Series(step=list(range(n)), seconds=seconds.tolist(), tgs=[None] * n, label=[""] * n),
    )  # fmt: skip
    return PerfReport(job=JobPart(id=name, name=name, dir="", **job), throughput=through, trace=part)  # type: ignore[arg-type]


def noisy(level: float, seed: int, n: int = 60) -> np.ndarray:
    return level * (1 + 0.01 * np.random.default_rng(seed).standard_normal(n))


def test_a_slowdown_beyond_noise_is_certain_and_trips_the_gate() -> None:
    found = diff(run("a", noisy(1.0, 1)), run("b", noisy(1.05, 2)))
    assert found.speed is not None
    assert found.speed.certain
    assert found.speed.change == pytest.approx(-0.0476, abs=0.006)
    assert found.speed.low < -0.0476 < found.speed.high
    assert found.regression(2.0)
    assert not found.regression(10.0)
    assert "slower" in found.summary


def test_noise_alone_is_no_difference_and_the_report_says_what_would_have_been_seen() -> None:
    found = diff(run("a", noisy(1.0, 1)), run("b", noisy(1.0, 2)))
    assert found.speed is not None
    assert not found.speed.certain
    assert found.speed.detectable is not None
    assert 0 < found.speed.detectable < 0.02
    assert not found.regression(0.0)
    assert "no difference beyond noise" in found.summary


def test_steps_of_different_size_are_compared_by_tokens() -> None:
    found = diff(run("a", noisy(1.0, 1), tokens=1000.0), run("b", noisy(2.0, 2), tokens=2000.0))
    assert found.speed is not None
    assert found.speed.of == "tokens/s/device"
    assert not found.speed.certain
    assert [m.what for m in found.mismatches] == ["tokens a step"]
    assert not found.refused


@pytest.mark.parametrize(("what", "left", "right"), [("device", "H200", "MI300X"), ("model", "llama", "mixtral")])
def test_other_chips_and_other_models_are_refused(what: str, left: str, right: str) -> None:
    found = diff(run("a", noisy(1, 1), **{what: left}), run("b", noisy(1, 2), **{what: right}))
    assert [m.what for m in found.refused] == [what]
    assert found.summary.startswith("Not comparable")


def test_traces_of_another_program_are_refused() -> None:
    step = {"compute": 1.0}
    one = trace(step, [OpRow(name="x", path="jit(f)/attention/dot", count=1, seconds=1.0)])
    two = trace(step, [OpRow(name="y", path="jit(g)/conv/conv", count=1, seconds=1.0)])
    assert "operations" in [m.what for m in diff(run("a", noisy(1, 1), one), run("b", noisy(1, 2), two)).refused]


seconds_ = st.floats(0.0, 10.0, allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(a=st.lists(seconds_, min_size=5, max_size=5), b=st.lists(seconds_, min_size=5, max_size=5))
def test_the_waterfall_adds_up_to_the_steps_difference(a: list[float], b: list[float]) -> None:
    left, right = (dict(zip(NAMES, x, strict=True)) for x in ([v + 1e-6 for v in a], b))
    found = waterfall(trace(left, [], steps=1), trace({**right, "idle": 1.0}, [], steps=1))
    whole = math.fsum({**right, "idle": 1.0}.values()) - math.fsum(left.values())
    assert math.fsum(r.delta_s for r in found) == pytest.approx(whole, abs=1e-12)


count_ = st.integers(0, 50)


@settings(max_examples=60, deadline=None)
@given(a=st.tuples(count_, seconds_), b=st.tuples(count_, seconds_))
def test_effects_of_count_and_time_add_up_to_an_operations_difference(
    a: tuple[int, float], b: tuple[int, float]
) -> None:
    (n_a, t_a), (n_b, t_b) = a, b
    common = OpRow(name="c", path="jit(f)/c", count=1, seconds=100.0)
    left = [common] + ([OpRow(name="x", path="jit(f)/x", count=n_a, seconds=n_a * t_a)] if n_a else [])
    right = [common] + ([OpRow(name="x", path="jit(f)/x", count=n_b, seconds=n_b * t_b)] if n_b else [])
    step = {"compute": 1.0}
    for row in op_deltas(trace(step, left, steps=1), trace(step, right, steps=1)):
        assert row.count_effect_s + row.time_effect_s == pytest.approx(row.delta_s, abs=1e-9)
        assert row.delta_s == pytest.approx(n_b * t_b - n_a * t_a, abs=1e-9)
        if not n_a or not n_b:
            assert row.only == ("B" if not n_a else "A")
            assert row.time_effect_s == 0.0


def slower_attention() -> DiffReport:
    def ops(each: float, number: int) -> list[OpRow]:
        path = "jit(step)/jvp(layer)/attention/dot_general"
        return [
            OpRow(name=path, path=path, phase="forward", count=8, seconds=8 * each),
            OpRow(name=f"fusion.{number}", count=1, seconds=0.01),  # renumbered by the compiler, the same thing
        ]

    a = trace({"compute": 0.100, "exposed_comm": 0.020}, ops(0.010, 3), 0.001, 1)
    b = trace({"compute": 0.116, "exposed_comm": 0.020}, ops(0.012, 71), 0.001, 2)
    one, two = run("a", noisy(0.120, 1), a), run("b", noisy(0.136, 2), b)
    one.program = ProgramPart(name="jit_step", fingerprint="1", collectives={"all-gather": 4}, fusions=10)
    two.program = ProgramPart(name="jit_step", fingerprint="2", collectives={"all-gather": 6}, fusions=10)
    one.config, two.config = {"remat_policy": "full", "XLA_FLAGS": "a"}, {"remat_policy": "full", "XLA_FLAGS": "b"}
    return diff(one, two)


def test_the_operation_that_got_slower_is_named_with_its_effect_and_renumbering_is_no_change() -> None:
    found = slower_attention()
    assert [row.path for row in found.ops] == ["jit(step)/jvp(layer)/attention/dot_general"]
    assert found.ops[0].time_effect_s == pytest.approx(0.016)
    assert found.ops[0].count_effect_s == 0.0
    worst = max(found.waterfall, key=lambda r: r.delta_s)
    assert (worst.name, worst.certain) == ("compute", True)
    comm = next(r for r in found.waterfall if r.name == "exposed_comm")
    assert not comm.certain or abs(comm.delta_s) < 1e-4
    assert [c.name for c in found.program] == ["all-gather a run"]
    assert [c.name for c in found.config] == ["XLA_FLAGS"]
    assert {m.what for m in found.mismatches} == {"compiled program", "XLA_FLAGS"}


def test_both_views_show_the_same_rows_and_names_are_no_markup() -> None:
    found = slower_attention()
    found.ops[0].path = "jit(f)/[bold]|x|/*evil*"
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    render_diff(found, console)
    text, md = console.export_text(), diff_markdown(found)
    for word in ("compute", "exposed communication", "+16", "XLA_FLAGS".replace("_", "")):
        assert word in text.replace("_", "")
        assert word in md.replace("\\", "").replace("_", "")
    assert "[bold]|x|" in text
    assert "|x|/*evil*" not in md
