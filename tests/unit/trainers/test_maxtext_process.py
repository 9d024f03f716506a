"""A MaxText process in every mode: who dumps, who waits how long, whose trace is whose, and how it ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from maxtext_standin import MODULES, put

from trackwalker.errors import UsageError
from trackwalker.job.journal import read
from trackwalker.launch.code.bundle import build_agent
from trackwalker.launch.request.validate import Asked
from trackwalker.launch.submission import How, plan_submission
from trackwalker.trainers.maxtext.hook import peak_tflops
from trackwalker.trainers.maxtext.place import Words, choose_dump, find_place, for_maxtext, prepare_meeting
from trackwalker.trainers.maxtext.traces import separate_traces

MEET = {"JAX_COORDINATOR_IP": "10.0.0.1", "JAX_COORDINATOR_PORT": "20002"}
PER_NODE = [{**MEET, "NNODES": "2", "NODE_RANK": str(n)} for n in range(2)]
PER_GPU = [
    {**MEET, "NNODES": "2", "NODE_RANK": str(n), "NPROCS": "4", "GLOBAL_RANK": str(2 * n + g), "LOCAL_RANK": str(g)}
    for n in range(2)
    for g in range(2)
]
ALONE = [{"NNODES": "1", "NODE_RANK": "0"}]


@pytest.mark.parametrize("mode", [ALONE, PER_NODE, PER_GPU])
@pytest.mark.parametrize("flags", ["", "--xla_a=1 --xla_dump_to=/own"])
def test_r36_one_process_dumps_in_every_mode(mode: list[dict[str, str]], flags: str) -> None:
    dumping = []
    for env in (dict(e, ENABLE_XLA_DUMP="1", XLA_FLAGS=flags) for e in mode):
        choose_dump(find_place(env), Words(["c.yml", "base_output_directory=/out"]), env)
        dumping += re.findall(r"--xla_dump_to=(\S+)", env["XLA_FLAGS"])
        assert ("--xla_a=1" in env["XLA_FLAGS"]) == bool(flags), "other flags stay"
    assert dumping == ["/own" if flags else "/out/xla_dump"]


def test_without_the_switch_nothing_is_dumped() -> None:
    env = dict(ALONE[0])
    choose_dump(find_place(env), Words(["c.yml"]), env)
    assert "XLA_FLAGS" not in env


class Jax:
    """`jax.distributed` and `jax.profiler`, as far as a process calls them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[dict[str, Any]] = []
        for name in ("jax", "jax.distributed", "jax.profiler"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        self.distributed: Any = sys.modules["jax.distributed"]
        self.profiler: Any = sys.modules["jax.profiler"]
        self.distributed.initialize = self._initialize
        self.profiler.start_trace = lambda log_dir, **named: setattr(self, "dir", Path(log_dir))
        self.profiler.stop_trace = self._stop_trace

    def _initialize(  # as in JAX
        self,
        coordinator_address: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
        local_device_ids: list[int] | None = None,
        cluster_detection_method: str | None = None,
        initialization_timeout: int = 300,
        heartbeat_timeout_seconds: int = 100,
    ) -> None:
        self.calls.append({key: value for key, value in locals().items() if key != "self"})

    def _stop_trace(self) -> None:
        run = self.dir / "plugins" / "profile" / "2026_01_01"
        run.mkdir(parents=True, exist_ok=True)
        for name in ("box.xplane.pb", "box.trace.json.gz"):
            (run / name).write_text(str(self.dir))


@pytest.mark.parametrize(
    ("told", "filed", "expected"),
    [
        ([], "", (300, 14400)),
        ([], "jax_distributed_initialization_timeout: 900 # s\n", (900, 14400)),
        (["jax_distributed_initialization_timeout=60"], "jax_distributed_initialization_timeout: 900\n", (60, 14400)),
        (["jax_distributed_heartbeat_timeout_seconds=7200"], "", (300, 7200)),
        ([], "jax_distributed_heartbeat_timeout_seconds: 1800\n", (300, 1800)),
    ],
)
def test_r38_the_timeouts_are_the_same_in_every_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str], filed: str, expected: tuple[int, int]
) -> None:
    config = tmp_path / "c.yml"
    seen = []
    for hardware, mode in (("gpu", PER_NODE), ("gpu", PER_GPU), ("cpu", PER_NODE)):
        config.write_text(f"hardware: {hardware}\n{filed}")
        for given in mode:
            env, jax = dict(given), Jax(monkeypatch)
            place = find_place(env)
            prepare_meeting(place, Words([str(config), *told]), env)
            if "JAX_COORDINATOR_IP" in env:  # left to MaxText, which calls it so
                jax.distributed.initialize(
                    coordinator_address=place.coordinator,
                    num_processes=2,
                    process_id=place.rank,
                    initialization_timeout=300,
                    local_device_ids=None,
                )
            (call,) = jax.calls
            seen.append((call.pop("initialization_timeout"), call.pop("heartbeat_timeout_seconds")))
            assert call == {
                "coordinator_address": "10.0.0.1:20002",
                "num_processes": 4 if mode is PER_GPU else 2,
                "process_id": place.rank,
                "local_device_ids": [int(given["LOCAL_RANK"])] if mode is PER_GPU else None,
                "cluster_detection_method": "deactivate",
            }
    assert set(seen) == {expected}


def test_a_process_that_is_alone_meets_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = Jax(monkeypatch)
    prepare_meeting(find_place(ALONE[0]), Words(["c.yml"]), dict(ALONE[0]))
    assert jax.calls == []


@pytest.mark.parametrize(("word", "off"), [("false", True), ("False", True), ("true", False), ("", False)])
def test_sigterm_ends_a_process_that_keeps_no_checkpoints(
    monkeypatch: pytest.MonkeyPatch, word: str, off: bool
) -> None:
    Jax(monkeypatch)
    env = dict(PER_NODE[0])
    prepare_meeting(find_place(env), Words(["c.yml", *([f"enable_checkpointing={word}"] if word else [])]), env)
    assert env.get("JAX_ENABLE_PREEMPTION_SERVICE") == ("0" if off else None)


@pytest.mark.parametrize("known", [True, False])
def test_a_maxtext_without_the_heartbeat_key_is_not_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    key = "jax_distributed_heartbeat_timeout_seconds"
    base = tmp_path / "standin" / "configs" / "base.yml"
    base.parent.mkdir(parents=True)
    (tmp_path / "standin" / "__init__.py").touch()
    base.write_text(f"steps: 1\n{key}: 100\n" if known else "steps: 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = tmp_path / "c.yml"
    config.write_text(f"a: 1\n{key}: 7\nb: 2\n")
    words = [str(config), f"{key}=9", "steps=3"]
    given = for_maxtext(Words(words), "standin")
    if known:
        assert given == words
    else:
        assert given[1:] == ["steps=3"]
        assert Path(given[0]).read_text() == "a: 1\nb: 2\n"
        Path(given[0]).unlink()
    assert config.read_text() == f"a: 1\n{key}: 7\nb: 2\n"


@pytest.mark.parametrize("mode", [PER_NODE, PER_GPU])
def test_r37_every_process_keeps_its_own_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: list[dict[str, str]]
) -> None:
    started = []
    for env in mode:  # all tracing at once, on one host
        jax = Jax(monkeypatch)
        separate_traces(find_place(env))
        jax.profiler.start_trace(str(tmp_path), profiler_options=None)
        started.append(jax)
    for jax in started:
        jax.profiler.stop_trace()
    files = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file())
    run = "plugins/profile/2026_01_01"
    assert files == sorted(
        f"{run}/box.proc{rank}.{ending}" for rank in range(len(mode)) for ending in ("xplane.pb", "trace.json.gz")
    )
    assert len({p.read_text() for p in (tmp_path / run).iterdir()}) == len(mode), "nobody wrote over another's"


@pytest.mark.parametrize(
    ("device", "quantization", "env", "peak"),
    [
        ("NVIDIA H200", "", {}, 989),
        ("NVIDIA H100 80GB HBM3", "fp8", {}, 1979),
        ("AMD Instinct MI300X", "nanoo_fp8", {}, 2614),
        ("AMD Instinct MI250X/MI250", "", {}, 191.5),
        ("gfx942", "", {}, 1307),
        ("NVIDIA A100-SXM4-80GB", "fp8", {}, 312),
        ("cpu", "", {}, None),
        ("cpu", "", {"HARDWARE_PEAK_TFLOPS": "12.5"}, 12.5),
        ("cpu", "", {"HARDWARE_PEAK_TFLOPS": "many"}, None),
    ],
)
def test_the_peak_is_the_devices_for_the_type_of_its_products(
    device: str, quantization: str, env: dict[str, str], peak: float | None
) -> None:
    assert peak_tflops(device, quantization, env) == peak


TRAIN = """
import atexit, sys, time
from types import SimpleNamespace
from maxtext.common import checkpointing, metric_logger
atexit.register(print, "torn down", flush=True)
if __name__ == "__main__":
    config = SimpleNamespace(checkpoint_period=1, async_checkpointing=True, quantization="")
    logger = metric_logger.MetricLogger(config, None)
    checkpointing.save_checkpoint(SimpleNamespace(name="manager"), 0, None, config)
    scalars = {"learning/loss": 1.0, "perf/step_time_seconds": 1.0, "perf/per_device_tflops_per_sec": 5.0}
    logger.write_metrics({"scalar": scalars}, 0)
    HOW
"""
CHECKPOINTING = """
import time
def save_checkpoint(checkpoint_manager, step, state, config=None, data_iterator=None, force=False):
    return True
def wait_until_finished(manager):
    time.sleep(0.2)
    print("committed by", manager.name, flush=True)
"""


def end(root: Path, how: str, env: dict[str, str] | None = None, commit: str = CHECKPOINTING) -> SimpleNamespace:
    """Run the stand-in from the zipapp, with a Python that has no packages."""
    distributed = 'def initialize(*a, **k): pass\ndef shutdown(): print("parted", flush=True)\n'
    put(
        root,
        {
            **MODULES,
            "trainers/pre_train/train": TRAIN.replace("HOW", how),
            "common/checkpointing": commit,
            "jax/distributed": distributed,
            "jax/profiler": "start_trace = stop_trace = print\n",
        },
    )
    agent = build_agent(root / "agent.pyz")
    more = {"PYTHONPATH": str(root), "TRACKWALKER_PROGRESS": str(root / "p.jsonl"), "HARDWARE_PEAK_TFLOPS": "10"}
    argv = [sys.executable, "-S", "-u", str(agent), "maxtext", "base.yml", "steps=4"]
    own = {k: v for k, v in os.environ.items() if k not in ("NNODES", "NODE_RANK", "NPROCS", "JAX_COORDINATOR_IP")}
    done = subprocess.run(
        argv, env={**own, **more, **(env or {})}, capture_output=True, text=True, timeout=60, check=False
    )
    records = read(root / "p.jsonl").items
    return SimpleNamespace(code=done.returncode, out=done.stdout.splitlines()[1:], err=done.stderr, records=records)


@pytest.mark.starts_processes
@pytest.mark.parametrize("how", ["sys.exit(None)", "sys.exit(0)", "pass"])
def test_a_finished_run_leaves_when_its_checkpoint_is_complete(tmp_path: Path, how: str) -> None:
    done = end(tmp_path, how)
    assert (done.code, done.out, done.err) == (0, ["committed by manager"], "")
    assert done.records[-1]["phase"] == "done"
    assert [r["mfu"] for r in done.records if r["phase"] == "train"] == [0.5]


@pytest.mark.starts_processes
def test_processes_part_in_order(tmp_path: Path) -> None:
    done = end(tmp_path, "sys.exit()", PER_NODE[1])
    assert (done.code, done.out) == (0, ["committed by manager", "parted"])


@pytest.mark.starts_processes
def test_the_ordinary_end_on_request(tmp_path: Path) -> None:
    done = end(tmp_path, "sys.exit()", {"MAXTEXT_FAST_EXIT": "0"})
    assert (done.code, done.out) == (0, ["torn down"])


@pytest.mark.starts_processes
def test_r24_what_fails_after_the_run_does_not_make_it_a_failure(tmp_path: Path) -> None:
    broken = CHECKPOINTING.replace("time.sleep(0.2)", "raise OSError('no space left')")
    done = end(tmp_path, "sys.exit()", commit=broken)
    assert done.code == 0
    assert done.err == "warning: the last checkpoint may be incomplete: no space left\n"


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("how", "code", "said"), [("raise ValueError('x')", 1, "ValueError: x"), ("sys.exit(3)", 3, "")]
)
def test_a_process_that_fails_among_others_goes_at_once(tmp_path: Path, how: str, code: int, said: str) -> None:
    done = end(tmp_path, how, PER_NODE[0])
    assert (done.code, done.out) == (code, []), "neither waits nor tears down"
    assert said in done.err
    assert done.records[-1]["phase"] != "done"


@pytest.mark.parametrize(
    ("runtime", "image", "python"), [("auto", "repo/maxtext:1", "python3"), ("native", None, "/py")]
)
def test_the_launcher_starts_the_hook_that_travels(
    tmp_path: Path, runtime: str, image: str | None, python: str
) -> None:
    asked = Asked("default", ["steps=3"], nodes=2, image=image, workspace=tmp_path)
    order = plan_submission(asked, How("slurm", [], runtime=runtime, python="/py")).order
    folder = Path(order.argv[-1]).parent
    assert order.argv == [python, "-u", f"{folder}/agent.pyz", "maxtext", f"{folder}/config.yml"]
    assert order.settings == ["steps=3"]
    assert order.tensorboard == "default/tensorboard/default", "where MaxText writes, in the job directory"
    kept = Asked("default", ["enable_checkpointing=true"], nodes=2, workspace=tmp_path)
    shared = plan_submission(kept, How("slurm", [])).order.tensorboard
    assert shared == f"{tmp_path}/default/default/tensorboard/default"


def test_on_cpus_no_gpu_is_expected(tmp_path: Path) -> None:
    for words, gpus in ((["hardware=cpu"], 0), ([], 8)):
        order = plan_submission(Asked("default", words, workspace=tmp_path), How("slurm", [])).order
        assert order.expected_gpus == gpus


def test_the_old_word_for_one_process_per_gpu_is_understood(tmp_path: Path) -> None:
    def procs(*words: str, told: int = 1) -> int:
        asked = Asked("default", list(words), workspace=tmp_path)
        return plan_submission(asked, How("slurm", [], procs=told)).order.procs

    assert procs() == 1
    assert procs("_env_ONE_GPU_PER_PROCESS=false") == 1
    assert procs("_env_ONE_GPU_PER_PROCESS=true") == 8
    assert procs("_env_ONE_GPU_PER_PROCESS=1", "_env_LOCAL_WORLD_SIZE=4") == 4
    assert procs("_env_ONE_GPU_PER_PROCESS=1", told=2) == 2, "the flag wins"
    with pytest.raises(UsageError, match=r"ONE_GPU_PER_PROCESS=maybe.*true or false"):
        procs("_env_ONE_GPU_PER_PROCESS=maybe")
