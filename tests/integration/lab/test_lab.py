"""The lab with real parts: Prometheus reads what is simulated, the scorer runs commands, bundles hold no secrets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_here import call_here

from conftest import tree_hash
from trackwalker.cli.app import main
from trackwalker.lab.scenario import Truth, load_scenario
from trackwalker.lab.scoring.results import read_results
from trackwalker.lab.simulate import simulate
from trackwalker.observe.prometheus import find_promtool
from trackwalker.telemetry.blocks import BlockWriter, Labels
from trackwalker.telemetry.store import Telemetry, open_database
from trackwalker.telemetry.xor import Floats, Ints

THERMAL = "gpu-thermal-throttle"


@dataclass
class Made:
    """A simulated job with everything that was handed to the writer."""

    job: Path
    truth: Truth
    written: dict[Labels, tuple[Ints, Floats]]


def make(family: str, out: Path, **world: int) -> Made:
    written: dict[Labels, list[tuple[Ints, Floats]]] = {}
    real_add = BlockWriter.add

    def add(self: BlockWriter, series: list[Labels], times: Ints, values: Floats) -> None:
        for row, name in enumerate(series):
            written.setdefault(name, []).append((times, values[row]))
        real_add(self, series, times, values)

    scenario = load_scenario(family)
    scenario.world |= world
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockWriter, "add", add)
        done = simulate(scenario, out, seed=4)
    joined = {k: (np.concatenate([t for t, _ in v]), np.concatenate([x for _, x in v])) for k, v in written.items()}
    return Made(done.job, done.truth, joined)


@pytest.fixture(scope="module")
def hot(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(THERMAL, tmp_path_factory.mktemp("hot") / "case", nodes=4, gpus=2, steps=160)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Made:
    out = tmp_path_factory.mktemp("quiet") / "case"
    return make("healthy-plain", out, nodes=4, gpus=8, steps=150, checkpoint_period=0)


def lab(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trackwalker", "lab", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def call(*words: object) -> subprocess.CompletedProcess[str]:
    """A command that starts nobody, in this process, which has read its modules already."""
    return call_here(os.environ, "lab", *map(str, words))


def test_prometheus_returns_exactly_what_was_written(hot: Made, prometheus: Path) -> None:
    before = tree_hash(hot.job)
    found: dict[Labels, tuple[Ints, Floats]] = {}
    with open_database(hot.job / "prometheus") as telemetry:
        assert telemetry.damage == []
        begin, end = telemetry.range()
        for metric in telemetry.metrics():
            for labels, times, values in telemetry.raw(f'{{__name__="{metric}"}}', begin, end):
                found[tuple(sorted(labels.items()))] = (np.round(times * 1000).astype(np.int64), values)
    assert set(found) == set(hot.written)
    for series, (times, values) in hot.written.items():
        np.testing.assert_array_equal(found[series][0], times)
        np.testing.assert_array_equal(found[series][1], values)
    assert tree_hash(hot.job) == before


def test_promtool_finds_no_fault(hot: Made, prometheus: Path) -> None:
    promtool = find_promtool(prometheus)
    assert promtool is not None
    database = hot.job / "prometheus"
    blocks = sorted(p.name for p in database.iterdir())
    listed = subprocess.run(
        [promtool, "tsdb", "list", database], capture_output=True, text=True, timeout=60, check=True
    )
    assert all(block in listed.stdout for block in blocks)
    for block in blocks:
        meta = json.loads((database / block / "meta.json").read_text())
        command = [promtool, "tsdb", "analyze", database, block]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert f"Series: {meta['stats']['numSeries']}" in done.stdout


def test_the_signal_is_where_the_scenario_says(hot: Made, prometheus: Path) -> None:
    (culprit,) = hot.truth.roots[0].gpus
    with open_database(hot.job / "prometheus") as telemetry:
        end = telemetry.range()[1]

        def by_gpu(query: str) -> dict[str, float]:
            return {f"{s.labels['host']}/{s.labels['gpu']}": s.value for s in telemetry.instant(query, end)}

        heat = by_gpu("max_over_time(hw_gpu_temperature_celsius[1d])")
        clock = by_gpu('quantile_over_time(0.1, hw_gpu_clock_mhz{type="sclk"}[30m] offset 2m)')
        power = by_gpu("avg_over_time(hw_gpu_power_watts[30m] offset 2m)")
        early = by_gpu(f"avg_over_time(hw_gpu_power_watts[20m] @ {telemetry.range()[0] + 2400:.0f})")
    others = [gpu for gpu in heat if gpu != culprit]
    assert len(others) == 7
    assert heat[culprit] > 95 > 90 > max(heat[g] for g in others)
    assert clock[culprit] < 0.95 * min(clock[g] for g in others)
    assert all(power[g] < early[g] for g in others), "who waits draws less"


def mean(telemetry: Telemetry, query: str, at: float) -> float:
    return float(np.mean([s.value for s in telemetry.instant(query, at)]))


def test_a_run_without_fault_is_in_the_healthy_ranges(quiet: Made, prometheus: Path) -> None:
    with open_database(quiet.job / "prometheus") as telemetry:
        at = telemetry.range()[1] - 300
        assert mean(telemetry, "avg_over_time(hw_gpu_power_watts[40m])", at) == pytest.approx(905, abs=10)
        assert 9 < mean(telemetry, "stddev_over_time(hw_gpu_power_watts[40m])", at) < 15
        assert mean(telemetry, "avg_over_time(ray_node_gpus_utilization[40m])", at) > 97
        assert mean(telemetry, "avg_over_time(hw_procs_running[40m])", at) == pytest.approx(18, abs=2)
        assert mean(telemetry, "ray_node_mem_used", at) == pytest.approx(204e9, rel=0.03)
        assert mean(telemetry, "avg_over_time(ray_node_cpu_utilization[40m])", at) == pytest.approx(25, abs=2)
        assert 0 <= mean(telemetry, "rate(hw_tcp_retransmits_total[40m])", at) <= 0.2
        assert mean(telemetry, "increase(hw_rdma_tx_retx_pkts_total[40m])", at) == 0
        assert mean(telemetry, "avg_over_time(hw_io_pressure_full_pct[40m])", at) < 0.1
        assert 2 < mean(telemetry, "avg_over_time(hw_scrape_duration_seconds[40m])", at) < 3
        seconds = telemetry.raw("tb_perf_step_time_seconds", *telemetry.range())[0][2][5:]
        loss = telemetry.raw("tb_learning_loss", *telemetry.range())[0][2]
    assert np.mean(seconds) == pytest.approx(29.85, rel=0.01)
    assert 0.003 <= np.std(seconds) / np.mean(seconds) <= 0.01
    assert loss[0] > loss[40] > loss[-1]


@pytest.mark.timeout(300)
def test_the_smoke_suite_holds_its_record(tmp_path: Path, prometheus: Path) -> None:
    done = lab("score", "--suite", "smoke", "--out", tmp_path / "r.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12/12" in done.stderr
    claims = [claim for case in read_results(tmp_path / "r.json").cases for claim in case.grade.claims]
    sure = [claim for claim in claims if claim.confidence is not None and claim.confidence >= 0.9]
    assert len(sure) >= 4  # otherwise the next line says nothing
    assert all(claim.right for claim in sure)
    page = call("report", tmp_path / "r.json", "--md", "--html", tmp_path / "page.html")
    assert page.returncode == 0, page.stderr
    assert "| right in everything | " in page.stdout
    assert "</table>" in (tmp_path / "page.html").read_text()


SPY = """
import json, os, pathlib, sys
job = pathlib.Path(sys.argv[1])
place = job.parent.parent
seen = [str(p) for p in place.parent.rglob("*") if "truth" in p.name or p.suffix == ".yml"]
seen += [k for k, v in os.environ.items() if "thermal" in v or "pull-fail" in v]
seen += [p for p in ["thermal", "pull-fail", "healthy-plain"] if p in str(job)]
print(json.dumps({"outcome": "healthy", "status": "completed", "causes": [
    {"cause": s, "role": "root", "hosts": [], "evidence": []} for s in seen]}))
"""


def test_a_command_is_scored_and_cannot_read_the_truth(tmp_path: Path) -> None:
    (tmp_path / "spy.py").write_text(SPY)
    spy = f"{sys.executable} {tmp_path / 'spy.py'} {{job}}"
    suites = ["--suite", "healthy-plain", "--suite", "container-pull-fail"]
    done = lab("score", *suites, "--tool", spy, "--tool", "baseline:always-healthy", "--json")
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout)["cases"]
    assert [(c["family"], c["passed"]) for c in cases] == [
        ("healthy-plain", True),  # the spy found nothing, so it says what always-healthy says
        ("healthy-plain", True),
        ("container-pull-fail", False),
        ("container-pull-fail", False),
    ]
    assert all(c["grade"]["said"].endswith("healthy: -") for c in cases)


PLANTED = "tops3cret-value-42"
OTHER = "hf_abcdefghijklmnopqrstuvwx"


def test_a_bundle_holds_no_secret_and_becomes_a_case(hot: Made, tmp_path: Path, prometheus: Path) -> None:
    workspace = hot.job.parent
    log = workspace / f"{hot.job.name}.log"
    text = log.read_text()
    lines = f"0: WANDB_API_KEY={PLANTED}\n1: retry with {PLANTED}\n2: Authorization: Bearer {PLANTED}\n3: {OTHER}\n"
    log.write_text(text + lines)
    record = {"env": {"HF_TOKEN": {"value": OTHER, "source": "env"}}, "argv": [f"--password {PLANTED}"]}
    (hot.job / "run.json").write_text(json.dumps(record))
    worker = next((hot.job / "ray_logs").rglob("*.out"))
    worker.write_text(worker.read_text() + f"export DB_PASSWORD='{PLANTED}'\n")
    before = tree_hash(workspace)
    try:
        truth = hot.job.parent.parent / "truth.json"
        done = call("pack", hot.job, "--out", tmp_path / "b.tar.gz", "--truth", truth, "--metric", "hw_gpu_.*|up|tb_.*")
        assert done.returncode == 0, done.stderr
        assert tree_hash(workspace) == before
    finally:
        (hot.job / "run.json").unlink()
        log.write_text(text)
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        held = {m.name: tar.extractfile(m).read() for m in tar.getmembers() if m.isreg()}  # type: ignore[union-attr]
    assert {"bundle.json", "verdict.json", "truth.json"} <= set(held)
    assert any(name.endswith("/index") for name in held), "metrics are in it"
    for name, data in held.items():
        assert PLANTED.encode() not in data, name
        assert OTHER.encode() not in data, name
    assert b"***" in held[f"outputs/{hot.job.name}.log"]
    added = call("add", tmp_path / "b.tar.gz", "--to", tmp_path / "cases", "--family", "hot-card")
    assert added.returncode == 0, added.stderr
    again = call("add", tmp_path / "b.tar.gz", "--to", tmp_path / "cases", "--family", "hot-card")
    assert again.returncode == 2
    assert "exists" in again.stderr
    scored = lab("score", "--suite", tmp_path / "cases", "--json")
    (case,) = json.loads(scored.stdout)["cases"]
    assert case["family"] == "hot-card"
    assert case["passed"], case["grade"]


def test_wrong_requests_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[tuple[Any, ...]] = [
        ("simulate", "meteor", "--out", tmp_path / "x"),
        ("simulate", THERMAL),
        ("score", "--tool", "true"),
        ("score", "--suite", tmp_path),
        ("report", tmp_path / "none.json"),
        ("add", tmp_path / "none.tar.gz", "--to", tmp_path / "cases"),
    ]
    for words in requests:
        monkeypatch.setattr(sys, "argv", ["trackwalker", "lab", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr().err
        assert ended.value.code == 2, words
        assert said.startswith("trackwalker: "), words
        assert len(said.splitlines()) == 1, said


@pytest.mark.long(reason="the command of test_the_smoke_suite_holds_its_record with another suite")
def test_the_scale_suite_runs_as_a_command(tmp_path: Path, prometheus: Path) -> None:
    words = ["--suite", "scale", "--family", "node-death", "--nodes", "12", "--jobs", "1"]
    done = lab("score", *words, "--out", tmp_path / "scale.json")
    assert done.returncode == 0, done.stderr
    (case,) = read_results(tmp_path / "scale.json").cases
    assert (case.family, case.nodes, case.passed, case.error) == ("node-death", 12, True, "")
