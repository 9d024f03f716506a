"""Throughput: which steps count, what is steady, and how sure that is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from triage_logs import ending, header, steps

from trackwalker.diagnose.triage import triage
from trackwalker.errors import EvidenceError
from trackwalker.job.layout import Job
from trackwalker.perf.analysis.report import Options, analyse
from trackwalker.perf.analysis.result import PerfReport, Throughput
from trackwalker.stats.paired import difference_interval, mean_interval

CONFIG = {"per_device_batch_size": 10, "max_target_length": 4096, "gradient_accumulation_steps": 1}


def timed(seconds: np.ndarray, nodes: int = 1, first: int = 0) -> str:
    return "".join(steps(first + n, nodes, first + n, float(s)) for n, s in enumerate(seconds))


def report(folder: Path, text: str, **options: object) -> PerfReport:
    path = folder / "77-JAX-toy.log"
    path.write_text(text)
    return analyse(Job("77", path, None), Options(with_traces=False, **options))  # type: ignore[arg-type]


def measured(folder: Path, seconds: np.ndarray, nodes: int = 1, **config: object) -> Throughput:
    text = header(nodes, steps=len(seconds), **{**CONFIG, **config}) + timed(seconds, nodes) + ending(0)
    found = report(folder, text).throughput
    assert found is not None
    return found


def noisy(n: int, level: float = 10.0, seed: int = 1) -> np.ndarray:
    return level * (1 + 0.002 * np.random.default_rng(seed).standard_normal(n))


def test_compile_checkpoint_profiler_and_eval_steps_are_set_aside_and_priced(tmp_path: Path) -> None:
    seconds = noisy(100)
    seconds[0] += 100  # compile
    seconds[[21, 41, 61, 81]] += 30  # the step after a save
    seconds[[30, 31, 32, 33]] += 5  # profiler: three steps, and the dump
    seconds[50] += 40  # evaluation
    told = {"enable_checkpointing": True, "checkpoint_period": 20, "eval_interval": 50}
    traced = {"profiler": "xplane", "skip_first_n_steps_for_profiler": 30, "profiler_steps": 3}
    found = measured(tmp_path, seconds, **told, **traced)
    assert found.seconds.mean == pytest.approx(10.0, rel=0.002)
    assert found.labels["compile"] == [0]
    assert {30, 31, 32, 33} <= set(found.labels["profiler"])
    assert {21, 41, 61, 81} <= set(found.labels["checkpoint"])
    assert 50 in found.labels["eval"]
    assert found.label_cost_s["checkpoint"] == pytest.approx(120, abs=2)
    assert found.label_cost_s["compile"] == pytest.approx(100, abs=1)


def test_the_steady_stretch_is_the_longest_level_and_upstreams_window_stands_beside_it(tmp_path: Path) -> None:
    seconds = np.concatenate([noisy(25, 12.0), noisy(75, 10.0)])
    found = measured(tmp_path, seconds)
    assert [round(x.seconds) for x in found.levels] == [12, 10]
    steady = next(x for x in found.levels if x.steady)
    assert (steady.first_step, steady.last_step) == (25, 99)
    assert found.tgs is not None
    assert found.tgs.mean == pytest.approx(4096, rel=0.002)
    assert found.positional is not None
    assert found.positional.tgs == pytest.approx(40960 / 12, rel=0.002)  # positions 5 to 14, whatever happened there
    assert found.positional.n == 10


def test_one_slow_step_in_upstreams_window_moves_its_figure_and_not_ours(tmp_path: Path) -> None:
    seconds = np.full(60, 10.0)
    seconds[8] = 20.0
    found = measured(tmp_path, seconds)
    assert found.positional is not None
    assert found.positional.tgs == pytest.approx(4096 * 0.95, rel=1e-3)
    assert found.tgs is not None
    assert found.tgs.median == pytest.approx(4096, rel=1e-3)


def test_the_interval_covers_the_truth_and_a_drift_is_named(tmp_path: Path) -> None:
    found = measured(tmp_path, noisy(200))
    assert found.seconds.low < 10.0 < found.seconds.high
    assert found.seconds.high / found.seconds.low - 1 < 0.002
    assert found.drift is not None
    assert not found.drift.certain
    slower = measured(tmp_path, noisy(200) * np.linspace(1.0, 1.015, 200))
    assert slower.drift is not None
    assert slower.drift.certain
    assert slower.drift.change == pytest.approx(-0.01, abs=0.003)


def test_a_loss_that_is_no_number_does_not_cost_the_step(tmp_path: Path) -> None:
    text = header(1, steps=30, **CONFIG) + timed(np.full(30, 10.0)).replace("loss: 9.800", "loss: nan") + ending(0)
    found = report(tmp_path, text).throughput
    assert found is not None
    assert found.steps == 30
    assert 20 in found.series.step


def test_logged_tokens_that_contradict_the_config_are_told(tmp_path: Path) -> None:
    good = measured(tmp_path, np.full(30, 10.0))
    assert good.agreement is not None
    assert good.agreement.agrees
    bad = measured(tmp_path, np.full(30, 10.0), gradient_accumulation_steps=2)
    assert bad.agreement is not None
    assert not bad.agreement.agrees
    assert any("disagreement" in note for note in bad.notes)


def test_every_rank_has_a_row_and_the_slowest_is_named(tmp_path: Path) -> None:
    text = header(2, steps=40, **CONFIG)
    for n in range(40):
        text += steps(n, 1, n, 10.0) + steps(n, 1, n, 10.5, label="1: ")
    found = report(tmp_path, text + ending(0)).throughput
    assert found is not None
    assert [r.rank for r in found.ranks] == [0, 1]
    assert found.slowest is not None
    assert (found.slowest.rank, found.slowest.host) == (1, "node002")
    assert found.rank_spread == pytest.approx(0.05)


def test_steps_redone_after_a_restart_count_once(tmp_path: Path) -> None:
    text = header(1, steps=60, **CONFIG) + timed(np.full(30, 10.0)) + timed(np.full(40, 10.0), first=20) + ending(0)
    found = report(tmp_path, text).throughput
    assert found is not None
    assert found.steps == 60
    assert found.repeated == 10


def test_progress_records_give_data_waits_and_place_a_trace_among_the_steps(tmp_path: Path) -> None:
    directory = tmp_path / "77-JAX-toy"
    directory.mkdir()
    log = tmp_path / "77-JAX-toy.log"
    log.write_text(header(2, steps=50, **CONFIG) + timed(np.full(50, 1.0), 2) + ending(0, wall="0h 2m 0s"))
    lines = []
    for rank in (0, 1):
        for n in range(50):
            record = {"v": 1, "t": 1000.0 + n, "rank": rank, "phase": "train", "step": n, "seconds": 1.0}
            lines.append(record | {"tokens_per_s": 40960.0, "data_wait_s": 0.25})
        lines.append(
            {"v": 1, "t": 1022.5, "rank": rank, "phase": "capture", "state": "end", "seconds": 2.4, "step": 22}
        )
    (directory / "progress.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    found = analyse(Job("77", log, directory))
    assert found.throughput is not None
    assert found.throughput.source == "progress.jsonl"
    assert found.throughput.data_wait_share == pytest.approx(0.25)
    assert found.throughput.labels["profiler"] == [21, 22, 23]
    assert found.fixes[0].rule == "input-bound"
    assert any(m.what == "traces" and "capture" in m.do for m in found.missing)


def test_a_log_without_steps_is_one_clear_error_or_a_report_that_says_so(tmp_path: Path) -> None:
    found = report(tmp_path, header(1, steps=60, **CONFIG) + ending(1))
    assert found.throughput is None
    assert any(m.what == "throughput" and "step" in m.why for m in found.missing)
    with pytest.raises(EvidenceError):
        analyse(Job("78", None, None), Options())


def test_compilation_inside_initialisation_is_counted_once(tmp_path: Path) -> None:
    directory = tmp_path / "77-JAX-toy"
    directory.mkdir()
    log = tmp_path / "77-JAX-toy.log"
    log.write_text(header(1, steps=20, **CONFIG) + timed(np.full(20, 1.0)) + ending(0, wall="0h 1m 30s"))
    lines: list[dict[str, object]] = [
        {"v": 1, "t": 1050.0, "rank": 0, "phase": "compile", "state": "end", "seconds": 40.0},
        {"v": 1, "t": 1060.0, "rank": 0, "phase": "init", "state": "end", "seconds": 55.0},
    ]
    lines += [{"v": 1, "t": 1061.0 + n, "rank": 0, "phase": "train", "step": n, "seconds": 1.0} for n in range(20)]
    (directory / "progress.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    spent = {p.what: p.seconds for p in triage(Job("77", log, directory)).goodput.parts}
    assert spent["compile"] == 40.0
    assert spent["init"] <= 15.0  # 55 s less the 40 s of compilation inside it
    assert sum(spent.values()) == pytest.approx(90.0, abs=0.2)


def test_goodput_has_hours_gpu_hours_and_money(tmp_path: Path) -> None:
    banner = "".join(f"0: \tUsing (GB) 1.0 / 2.0 (50%) on rocm:{d}\n" for d in range(8))
    text = header(1, steps=60, **CONFIG) + banner + timed(np.full(60, 10.0)) + ending(0, wall="0h 20m 0s")
    found = report(tmp_path, text, price=2.5).goodput
    assert found is not None
    train = found.rows[0]
    assert (train.what, found.gpus) == ("train", 8)
    assert train.hours == pytest.approx(600 / 3600, rel=0.01)
    assert train.gpu_hours == pytest.approx(train.hours * 8)
    assert train.money == pytest.approx(train.hours * 8 * 2.5)
    assert sum(r.share or 0 for r in found.rows) == pytest.approx(1.0, abs=1e-3)


def test_bootstrap_intervals_cover_and_grow_with_memory() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(60):
        low, high = mean_interval(rng.standard_normal(80) + 5)
        covered += low <= 5 <= high
    assert covered >= 52
    white = rng.standard_normal(300)
    slow = np.convolve(rng.standard_normal(340), np.ones(41) / np.sqrt(41), "valid")
    spread = [np.subtract(*mean_interval(x)[::-1]) for x in (white, slow)]
    assert spread[1] > 2 * spread[0]
    low, high = difference_interval(white, white + 1)
    assert low < 1 < high
    assert low > 0
