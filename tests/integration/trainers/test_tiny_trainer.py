"""The small trainer for real: two processes, gloo between them, checkpoints, TensorBoard, death of a rank."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ports import free_ports

from trackwalker.job import journal

# Not imported: this process starts programs that need it, and every worker collects this file.
pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed: pip install -e '.[tiny]'")

SRC = Path(__file__).resolve().parents[3] / "src"
MODEL = SRC / "trackwalker" / "models" / "tiny.yml"
SMALL = [
    "run_name=small",
    "base_emb_dim=32",
    "base_num_query_heads=2",
    "base_mlp_dim=64",
    "max_target_length=32",
    "per_device_batch_size=2",
    "vocab_size=64",
]
STEP = re.compile(
    r"^completed step: (\d+), seconds: (\d+\.\d{3}), TFLOP/s/device: (\d+\.\d{3}), (?:MFU: (\d+\.\d{2})%, )?"
    r"Tokens/s/device: (\d+\.\d{3}), total_weights: (\d+), loss: (\d+\.\d{3}|nan)$",
    re.MULTILINE,
)


@dataclass
class Group:
    """The processes of one run, with their logs and journals."""

    directory: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def wait(self, timeout: float = 120) -> list[int]:
        deadline = time.monotonic() + timeout
        return [p.wait(max(0.1, deadline - time.monotonic())) for p in self.processes]

    def out(self, rank: int) -> str:
        return (self.directory / f"{rank}.out").read_text()

    def err(self, rank: int) -> str:
        return (self.directory / f"{rank}.err").read_text()

    def records(self, rank: int, phase: str) -> list[dict[str, Any]]:
        return [r for r in journal.read(self.directory / f"{rank}.jsonl").items if r["phase"] == phase]

    def losses(self, rank: int) -> dict[int, float]:
        return {r["step"]: float(r["loss"]) for r in self.records(rank, "train")}


@contextlib.contextmanager
def start(directory: Path, output: Path, *overrides: str, ranks: int = 2) -> Iterator[Group]:
    directory.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    group = Group(directory)
    try:
        for rank in range(ranks):
            env = {
                **os.environ,
                "PYTHONPATH": str(SRC),
                "JAX_PLATFORMS": "cpu",
                "JAX_COORDINATOR_IP": "127.0.0.1",
                "JAX_COORDINATOR_PORT": str(port),
                "NNODES": str(ranks),
                "NODE_RANK": str(rank),
                "TRACKWALKER_HOST": f"box-r{rank}",
                "TRACKWALKER_PROGRESS": str(directory / f"{rank}.jsonl"),
            }
            command = [sys.executable, "-u", "-m", "trackwalker.trainers.tiny", str(MODEL), *SMALL]
            command += [f"base_output_directory={output}", *overrides]
            with (directory / f"{rank}.out").open("wb") as out, (directory / f"{rank}.err").open("wb") as err:
                group.processes.append(subprocess.Popen(command, env=env, stdout=out, stderr=err))
        yield group
    finally:
        for process in group.processes:
            process.kill()
            process.wait()


def run(directory: Path, output: Path, *overrides: str, ranks: int = 2) -> tuple[Group, list[int]]:
    with start(directory, output, *overrides, ranks=ranks) as group:
        codes = group.wait()
    return group, codes


def tensorboard(directory: Path) -> dict[str, dict[int, float]]:
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, dict[int, float]] = {}
    for path in sorted(directory.glob("events.out.tfevents.*")):
        raw, at = path.read_bytes(), 0
        while at < len(raw):
            (length,) = struct.unpack_from("<Q", raw, at)
            event = Event.FromString(raw[at + 12 : at + 12 + length])
            at += 16 + length
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Group:
    """Eight uninterrupted steps on two ranks."""
    root = tmp_path_factory.mktemp("whole")
    group, codes = run(root, root / "out", "steps=8", "checkpoint_period=4", "hardware_peak_tflops=0.5")
    assert codes == [0, 0], group.err(0) + group.err(1)
    return group


def test_the_log_reads_like_maxtexts(whole: Group) -> None:
    for rank in (0, 1):
        text = whole.out(rank)
        steps = STEP.findall(text)
        assert [int(s[0]) for s in steps] == list(range(8))
        assert {s[5] for s in steps} == {str(2 * 2 * 32)}
        assert all(s[3] for s in steps), "the peak is known, so MFU is there"
        order = [
            "Config param abort_on_nan_loss: False",
            "Config param warmup_steps: 10",
            f"[jax-preinit] nprocs=2 rank={rank} local_device=all heartbeat_timeout_s=100 init_timeout_s=300",
            "Memstats: After params initialized:\n\tUsing (GB) ",
            "No existing checkpoints found, not restoring checkpoint.",
            "Synchronizing hosts before training loop",
            "completed step: 0, ",
        ]
        positions = [text.index(piece) for piece in order]
        assert positions == sorted(positions)
    assert re.findall(r"Saved a checkpoint at step (\d+)", whole.out(0)) == ["4", "7"]
    assert "Saved a checkpoint" not in whole.out(1)
    assert whole.err(0) == whole.err(1) == ""


def test_the_ranks_agree_on_a_falling_loss(whole: Group) -> None:
    losses = whole.losses(0)
    assert losses == whole.losses(1)
    assert list(losses) == list(range(8))
    assert losses[7] < losses[0]


def test_progress_tells_every_phase(whole: Group) -> None:
    for rank in (0, 1):
        phases = [(r["phase"], r.get("state")) for r in journal.read(whole.directory / f"{rank}.jsonl").items]
        saved = [("checkpoint", "begin"), ("checkpoint", "end")] if rank == 0 else []
        start_up = [("init", "begin"), ("init", "end"), ("compile", "begin"), ("compile", "end")]
        assert phases == [
            *start_up,
            *[("train", None)] * 5,
            *saved,
            *[("train", None)] * 3,
            *saved,
            ("done", None),
        ]
        step = whole.records(rank, "train")[3]
        assert step["rank"] == rank
        assert step["host"] == f"box-r{rank}"
        assert step["seconds"] > 0
        assert step["data_wait_s"] >= 0
        assert step["tokens_per_s"] == pytest.approx(2 * 32 / step["seconds"], rel=1e-3)
        assert step["tflops"] > 0


def test_tensorboard_has_every_step(whole: Group) -> None:
    scalars = tensorboard(whole.directory / "out" / "small" / "tensorboard")
    assert scalars["learning/loss"] == pytest.approx(whole.losses(0))
    assert len(scalars) == 11
    assert all(list(values) == list(range(8)) for values in scalars.values())
    assert scalars["learning/grad_norm"][0] == pytest.approx(1.0, abs=1e-3)  # clipped
    assert scalars["learning/raw_grad_norm"][0] > 1


def test_a_run_in_two_parts_equals_one(whole: Group, tmp_path: Path) -> None:
    """The whole run as if it had ended after its first checkpoint, and the rest of it again."""
    output = tmp_path / "out"
    shutil.copytree(whole.directory / "out", output)
    shutil.rmtree(output / "small" / "checkpoints" / "7")
    second, codes = run(tmp_path / "second", output, "steps=8", "async_checkpointing=true")
    assert codes == [0, 0]
    for rank in (0, 1):
        assert "restoring from this run's directory step 4\n" in second.out(rank)
        assert [(r["state"], r["step"]) for r in second.records(rank, "restore")] == [("begin", 4), ("end", 4)]
        again = second.losses(rank)
        assert list(again) == [5, 6, 7]
        assert again == {step: loss for step, loss in whole.losses(rank).items() if step > 4}
    assert "Saved a checkpoint at step 7\n" in second.out(0)
    assert len(list((output / "small" / "tensorboard").iterdir())) == 2


def test_a_damaged_newest_checkpoint_stops_every_rank(whole: Group, tmp_path: Path) -> None:
    shutil.copytree(whole.directory / "out", tmp_path / "out")
    state = tmp_path / "out" / "small" / "checkpoints" / "7" / "items" / "state.npz"
    state.write_bytes(state.read_bytes()[:1000])
    group, codes = run(tmp_path, tmp_path / "out", "steps=20")
    assert codes == [1, 1]
    assert group.err(0).startswith("checkpoint-error: the newest checkpoint (step 7) cannot be read: ")
    assert group.err(1) == "checkpoint-error: rank 0 cannot read the checkpoint of step 7\n"
    assert group.err(0).count("\n") == 1
    assert "completed step" not in group.out(0)


def test_nan_of_one_rank_reaches_all_and_training_continues(tmp_path: Path) -> None:
    """With experts, so that one run covers both."""
    experts = ["num_experts=4", "num_experts_per_tok=2", "log_period=1"]
    group, codes = run(tmp_path, tmp_path, "steps=5", "nan_at_step=3", "enable_checkpointing=false", *experts)
    assert codes == [0, 0], group.err(0)
    for rank in (0, 1):
        losses = group.losses(rank)
        assert [math.isnan(losses[step]) for step in range(5)] == [False] * 3 + [True] * 2
        steps = STEP.findall(group.out(rank))
        assert [s[6] for s in steps[3:]] == ["nan", "nan"]
        assert {s[5] for s in steps} == {"128"}
    assert group.losses(0)[2] == group.losses(1)[2]
    scalars = tensorboard(tmp_path / "small" / "tensorboard")
    assert 0.005 < scalars["learning/moe_lb_loss"][0] < 0.04  # weight 0.01, times 1 when balanced, 4 at worst
    assert math.isnan(scalars["learning/loss"][3])


def test_single_process_aborts_on_nan_when_asked(tmp_path: Path) -> None:
    overrides = ["steps=9", "nan_at_step=2", "abort_on_nan_loss=true", "dtype=bfloat16"]
    group, codes = run(tmp_path, tmp_path, *overrides, ranks=1)
    assert codes == [1]
    assert [int(s[0]) for s in STEP.findall(group.out(0))] == [0, 1, 2]
    assert group.out(0).endswith("loss: nan\nAborting training due to NaN loss.\n")
    assert "Traceback" not in group.err(0)


def test_a_terminated_rank_dies_and_takes_the_run_with_it(tmp_path: Path) -> None:
    with start(tmp_path, tmp_path, "steps=1000000", "data_seconds=0.12", "enable_tensorboard=false") as group:
        deadline = time.monotonic() + 60
        while "completed step: 3," not in group.out(1):
            assert time.monotonic() < deadline, group.err(1)
            time.sleep(0.1)
        group.processes[1].send_signal(signal.SIGTERM)
        assert group.processes[1].wait(10) == -signal.SIGTERM
        assert group.processes[0].wait(60) not in (0, None)
    assert group.err(0) != ""
