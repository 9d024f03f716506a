"""Acceptance tests 1-4 and 11: the real agent and a real Prometheus store every training step once, and only those."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_run import Run, wait_for
from tb_writer import EventWriter

from trackwalker.launch.code.bundle import build_agent
from trackwalker.node.collectors.tensorboard import TensorboardCollector
from trackwalker.node.exporter.backlog import Backlog
from trackwalker.node.exporter.server import Exporter
from trackwalker.observe.server import Server

pytestmark = [pytest.mark.timeout(120)]

TESTS = Path(__file__).parents[2] / "support"
# A trainer that reports by its hook and by event files, as a rank of the agent.
TRAINER = f"""
import json, math, os, sys, time
sys.path.insert(0, {str(TESTS)!r})
from pathlib import Path
from tb_writer import EventWriter
progress = os.environ["TRACKWALKER_PROGRESS"]
job = Path(progress).parent.parent
def hook(step, seconds, **fields):
    record = dict(v=1, t=time.time(), phase="train", step=step, seconds=seconds, **fields)
    with open(progress, "a") as f:
        f.write(json.dumps(record) + "\\n")
board = EventWriter(job / "tensorboard")
print("up", flush=True)
def train(first, last, seconds, board=board, hooked=True, **scalars):
    for step in range(first, last + 1):
        time.sleep(seconds)
        if hooked:
            hook(step, seconds, loss=1.5)
        board.step(step, time.time(), learning__loss=1.5, learning__param_norm=step / 2, **scalars)
"""


class Recording:
    """A Prometheus that scrapes whatever agents announce, every second."""

    def __init__(self, binary: Path, root: Path, targets: str) -> None:
        config = root / "prometheus.yml"
        config.write_text(
            "scrape_configs:\n- job_name: node_hw\n  scrape_interval: 1s\n  scrape_timeout: 1s\n"
            f"  file_sd_configs: [{{files: [{json.dumps(targets)}], refresh_interval: 1s}}]\n"
        )
        self._files = binary, root / "tsdb", config, root / "prometheus.log"
        self.start()

    def start(self) -> None:
        self.server = Server(*self._files)
        assert self.server.wait_ready(30)

    def ask(self, promql: str) -> list[dict[str, Any]]:
        asked = urllib.parse.urlencode({"query": promql})
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.port}/api/v1/query?{asked}", timeout=10) as answer:
            return json.loads(answer.read())["data"]["result"]  # type: ignore[no-any-return]

    def samples(self, selector: str) -> list[tuple[float, float]]:
        """All stored samples of one series."""
        found = self.ask(f"{selector}[1h]")
        assert len(found) <= 1, f"{selector} is not one series"
        return [(float(t), float(v)) for t, v in found[0]["values"]] if found else []

    def steps(self, selector: str = "tb_step") -> list[int]:
        return [int(value) for _, value in self.samples(selector)]

    def value(self, promql: str) -> float | None:
        found = self.ask(promql)
        return float(found[0]["value"][1]) if found else None


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_agent(tmp_path_factory.mktemp("bundle") / "agent.pyz")


@pytest.fixture
def start(tmp_path: Path, bundle: Path) -> Iterator[Callable[[str], Run]]:
    runs: list[Run] = []

    def begin(program: str) -> Run:
        root = tmp_path / f"run{len(runs)}"
        root.mkdir()
        runs.append(Run(root, bundle, [TRAINER + program], 5.0))
        return runs[-1]

    yield begin
    for run in runs:
        for line in run.left_over():
            with contextlib.suppress(OSError):
                os.kill(int(line.split()[0]), signal.SIGKILL)
        run.agent.kill()
        run.agent.wait()


@pytest.fixture
def recording(tmp_path: Path, prometheus: Path) -> Iterator[Recording]:
    found = Recording(prometheus, tmp_path, str(tmp_path / "targets.json"))
    yield found
    found.server.stop()


def announce(root: Path, *addresses: str) -> None:
    (root / "new").write_text(json.dumps([{"targets": list(addresses)}]))
    (root / "new").rename(root / "targets.json")


def address(run: Run) -> str:
    wait_for(lambda: list((run.dir / "agent" / "targets").glob("*.json")))
    [path] = (run.dir / "agent" / "targets").glob("*.json")
    return str(json.loads(path.read_text())[0]["targets"][0])


def test_a01_agent_restart_loses_no_step(start: Callable[[str], Run], recording: Recording, tmp_path: Path) -> None:
    run = start("train(0, 119, 0.1)")
    announce(tmp_path, address(run))
    wait_for(lambda: len(recording.steps()) > 20, 30)
    for _ in range(2):
        run.agent.kill()
        run.agent.wait()
        time.sleep(1.5)  # the wait is the subject: the trainer goes on while nobody reads
        run.start("--adopt")
        seen = len(recording.steps("tb_learning_param_norm"))
        wait_for(lambda seen=seen: len(recording.steps("tb_learning_param_norm")) > seen, 30)
    assert run.ends(40) == 0
    every = list(range(120))
    assert recording.steps("tb_step") == every, "by the hook"
    assert [v for _, v in recording.samples("tb_learning_param_norm")] == [s / 2 for s in every], "by the bridge"
    assert len(recording.samples("tb_learning_loss")) == 120, "reported in both ways, stored once"
    assert recording.value("max_over_time(train_steps_total[1m])") == 120


def test_a02_every_step_is_stored_with_small_lag(
    start: Callable[[str], Run], recording: Recording, tmp_path: Path
) -> None:
    quick, slow = start("train(0, 49, 0.2)"), start("train(0, 4, 2.0, hooked=False)")
    # Thirty seconds a step, written out every two minutes, without waiting for it: 20 minutes arrive in batches.
    now = time.time()
    board = EventWriter(tmp_path / "board")
    exporter = Exporter("sim", [], backlog=Backlog())
    labels = {"host": "sim", "rank": "0"}
    exporter.add(TensorboardCollector(tmp_path / "board", labels, exporter.backlog, tmp_path / "s.json", now - 1300))
    announce(tmp_path, address(quick), address(slow), f"127.0.0.1:{exporter.start()}")
    lags = []
    try:
        for batch in range(10):
            for step in range(4 * batch, 4 * batch + 4):
                board.step(step, now - 1200 + 30 * step, learning__param_norm=step / 2)
            deadline = time.monotonic() + 1.0
            while time.monotonic() < deadline:
                newest = recording.value('max(timestamp(tb_step{job="node_hw",host="box-r0"}))')
                if newest is not None and quick.agent.poll() is None and len(lags) < 100:
                    lags.append(time.time() - newest)
                time.sleep(0.1)
        assert quick.ends(40) == 0
        assert slow.ends(40) == 0
        wait_for(lambda: len(recording.steps('tb_step{host="sim"}')) == 40, 30)
    finally:
        exporter.stop()
    for run, count in ((quick, 50), (slow, 5)):
        where = f'{{instance="{address(run)}"}}'
        assert recording.steps(f"tb_step{where}") == list(range(count))
        assert recording.steps(f"tb_learning_param_norm{where}") == [s // 2 for s in range(count)]
    stamps = [t for t, _ in recording.samples('tb_learning_param_norm{host="sim"}')]
    assert stamps == pytest.approx([now - 1200 + 30 * step for step in range(40)], abs=0.002)
    assert max(lags) < 15, "live"
    assert recording.value("sum(tb_bridge_late_steps_total)") == 0


def test_a02_a_killed_prometheus_misses_no_step(
    start: Callable[[str], Run], recording: Recording, tmp_path: Path
) -> None:
    run = start("train(0, 159, 0.1)")
    announce(tmp_path, address(run))
    wait_for(lambda: len(recording.steps("tb_learning_param_norm")) > 20, 30)
    recording.server.process.kill()
    recording.server.process.wait()
    time.sleep(3)  # the wait is the subject: steps are made while nobody records
    recording.start()
    assert run.ends(40) == 0
    assert recording.steps() == list(range(160))
    assert recording.steps("tb_learning_param_norm") == [s // 2 for s in range(160)]


def test_a03_idle_trainer_makes_no_samples(start: Callable[[str], Run], recording: Recording, tmp_path: Path) -> None:
    run = start("train(0, 9, 0.1, other__x=1.0)\ntime.sleep(60)")
    announce(tmp_path, address(run))
    wait_for(lambda: recording.steps("tb_other_x") and len(recording.steps("tb_learning_param_norm")) == 10, 20)
    silent = recording.value("time() - train_last_step_timestamp_seconds")
    assert silent is not None
    scrapes = len(recording.samples("train_step"))
    wait_for(lambda: len(recording.samples("train_step")) >= scrapes + 4, 15)
    for name in ("tb_step", "tb_learning_loss", "tb_learning_param_norm", "tb_other_x", "train_data_wait_seconds"):
        assert len(recording.samples(name)) in (0, 10), f"{name}: only what the trainer did"
    still = recording.value("time() - train_last_step_timestamp_seconds")
    assert still is not None
    assert still > silent + 3, "that it stands still can be seen"
    assert "staleness" not in str(recording.ask('{__name__=~"tb_.*"}'))
    run.agent.send_signal(signal.SIGTERM)
    run.ends()


def test_a04_second_event_file_is_followed(start: Callable[[str], Run], recording: Recording, tmp_path: Path) -> None:
    again = 'EventWriter(job / "tensorboard", "events.out.tfevents.2.box")'
    go = "while not (job / 'go').exists(): time.sleep(0.05)"
    run = start(f"train(0, 9, 0.1, hooked=False)\n{go}\ntrain(5, 14, 0.1, board={again}, hooked=False)\ntime.sleep(4)")
    announce(tmp_path, address(run))
    wait_for(lambda: len(recording.steps()) >= 10, 20)
    run.agent.kill()  # and an agent that was not there when the second file appeared
    run.agent.wait()
    (run.dir / "go").touch()
    time.sleep(2.5)  # the wait is the subject: the second file is written while nobody reads
    run.start("--adopt")
    assert run.ends(30) == 0
    assert recording.steps() == [*range(10), *range(5, 15)]


def test_a11_nan_loss_is_counted(start: Callable[[str], Run], recording: Recording, tmp_path: Path) -> None:
    run = start(
        "train(0, 4, 0.1, learning__raw_grad_norm=1.0)\n"
        "while not (job / 'go').exists(): time.sleep(0.05)\n"
        "hook(5, 0.1, loss='nan')\ntime.sleep(0.1)\nhook(6, 0.1, loss='inf')\n"
        "board.step(5, time.time(), learning__loss=math.nan, learning__raw_grad_norm=math.inf)\ntime.sleep(3)\n"
    )
    announce(tmp_path, address(run))
    wait_for(lambda: len(recording.ask('train_nonfinite_total{tag=~"learning/(loss|raw_grad_norm)"} == 0')) == 2, 20)
    (run.dir / "go").touch()
    assert run.ends(30) == 0
    assert recording.value('max_over_time(train_nonfinite_total{tag="learning/loss"}[1m])') == 2
    assert recording.value('min_over_time(train_nonfinite_total{tag="learning/loss"}[1m])') == 0, "an increase"
    assert recording.value('max_over_time(train_nonfinite_total{tag="learning/raw_grad_norm"}[1m])') == 1
    loss = [v for _, v in recording.samples("tb_learning_loss")]
    assert loss[:5] == [1.5] * 5
    assert math.isnan(loss[5])
    assert loss[6] == math.inf
    assert [v for _, v in recording.samples("tb_learning_raw_grad_norm")] == [1.0] * 5 + [math.inf]
