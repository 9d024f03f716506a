"""The small trainer's configuration: overrides, types, and one clear line for each mistake."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trackwalker.trainers.tiny.config import Config, ConfigError, load
from trackwalker.trainers.tiny.runtime import Place, prepare_environment

SRC = Path(__file__).resolve().parents[3] / "src"
MODELS = SRC / "trackwalker" / "models"


@pytest.fixture
def yml(tmp_path: Path) -> str:
    path = tmp_path / "model.yml"
    path.write_text("steps: 12\nlearning_rate: 1e-3\nenable_tensorboard: false\n", encoding="utf-8")
    return str(path)


def test_yaml_then_overrides(yml: str) -> None:
    config = load([yml, "steps=5", "run_name=a=b", "async_checkpointing=True", "data_seconds=0.5"])
    assert (config.steps, config.learning_rate, config.enable_tensorboard) == (5, 1e-3, False)
    assert (config.run_name, config.async_checkpointing, config.data_seconds) == ("a=b", True, 0.5)


@pytest.mark.parametrize("name", ["tiny.yml", "tiny-moe.yml"])
def test_shipped_models_load(name: str) -> None:
    config = load([str(MODELS / name)])
    assert config.steps == 200
    assert config.num_experts == (4 if "moe" in name else 1)


def test_shipped_dense_model_is_the_default_config() -> None:
    assert load([str(MODELS / "tiny.yml")]) == Config()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stepz=3"], "unknown key 'stepz' (did you mean 'steps'?)"),
        (["qqqqqq=3"], "unknown key 'qqqqqq'"),
        (["steps=many"], "key 'steps' must be a whole number, got 'many'"),
        (["steps=1.5"], "key 'steps' must be a whole number, got '1.5'"),
        (["steps=inf"], "key 'steps' must be a whole number, got 'inf'"),
        (["steps="], "key 'steps' must be a whole number, got ''"),
        (["steps=0"], "key 'steps' must be at least 1, got '0'"),
        (["learning_rate=nan"], "key 'learning_rate' must be a number, got 'nan'"),
        (["enable_tensorboard=maybe"], "key 'enable_tensorboard' must be true or false, got 'maybe'"),
        (["dtype=int8"], "key 'dtype' must be float32 or bfloat16, got 'int8'"),
        (["dataset_type=c4"], "key 'dataset_type' must be synthetic, got 'c4'"),
        (["run_name="], "key 'run_name' must not be empty"),
        (["steps"], "expected key=value, got 'steps'"),
        (["num_experts=2", "num_experts_per_tok=3"], "key 'num_experts_per_tok' (3) must not exceed num_experts=2"),
        (["base_num_query_heads=3"], "key 'base_emb_dim' (128) must split into an even width"),
    ],
)
def test_mistakes(yml: str, arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load([yml, *arguments])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("value", "number"), [("1e3", 1000), ("4.0", 4), (" 7", 7)])
def test_whole_numbers_in_other_spellings(yml: str, value: str, number: int) -> None:
    assert load([yml, f"steps={value}"]).steps == number


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps: [1", "is not valid YAML"),
        ("- a\n- b\n", "must hold key: value pairs, not a list"),
        ("steps: true\n", "key 'steps' must be a whole number, got 'True'"),
        ("run_name:\n", "key 'run_name' must be text, got 'None'"),
        ("lerning_rate: 1\n", "did you mean 'learning_rate'?"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load([str(path)])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_no_file() -> None:
    with pytest.raises(ConfigError, match=r"cannot read '/nowhere/x.yml': No such file"):
        load(["/nowhere/x.yml"])
    with pytest.raises(ConfigError, match="no config file given"):
        load(["steps=3"])


def test_param_lines_are_complete_and_sorted() -> None:
    lines = Config().lines()
    assert lines == sorted(lines)
    assert len(lines) == len(dataclasses.fields(Config))
    assert "Config param per_device_batch_size: 4" in lines


@pytest.mark.starts_processes
def test_command_line_mistake_is_one_quick_line(yml: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-u", "-m", "trackwalker.trainers.tiny", yml, "stepz=3"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr == "config-error: unknown key 'stepz' (did you mean 'steps'?)\n"
    assert done.stdout == ""
    assert time.monotonic() - began < 5  # about 0.15 s alone; the margin is for a busy machine


@pytest.mark.starts_processes
def test_config_errors_need_neither_jax_nor_numpy() -> None:
    code = (
        "import sys, trackwalker.trainers.tiny.__main__ as m\n"
        "assert m.main([]) == 2\n"
        "assert not {'jax', 'numpy'} & set(sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)


def test_place_single_process_without_coordinator() -> None:
    assert Place.from_env({"NNODES": "4", "NODE_RANK": "2"}).count == 1
    assert Place.from_env({"JAX_COORDINATOR_IP": "10.0.0.1", "NNODES": "1"}).coordinator == ""


def test_place_of_a_rank() -> None:
    env = {
        "JAX_COORDINATOR_IP": "10.0.0.1",
        "JAX_COORDINATOR_PORT": "1234",
        "NNODES": "4",
        "NODE_RANK": "2",
        "TRACKWALKER_HOST": "box-r2",
        "TRACKWALKER_PROGRESS": "/tmp/p",
    }
    place = Place.from_env(env)
    assert place == Place(2, 4, "10.0.0.1:1234", "box-r2", "/tmp/p", "all")
    assert Place.from_env({**env, "JAX_COORDINATOR_IP": "fe80::1"}).coordinator == "[fe80::1]:1234"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("NODE_RANK", "4", r"NODE_RANK must be in 0\.\.3"),
        ("NODE_RANK", "", r"NODE_RANK must be in 0\.\.3"),
        ("NNODES", "four", "NNODES must be a whole number"),
        ("JAX_COORDINATOR_PORT", "", "JAX_COORDINATOR_PORT"),
    ],
)
def test_malformed_environment(name: str, value: str, message: str) -> None:
    env = {
        "JAX_COORDINATOR_IP": "h",
        "JAX_COORDINATOR_PORT": "1",
        "NNODES": "4",
        "NODE_RANK": "0",
        name: value,
    }
    with pytest.raises(ConfigError, match=message):
        Place.from_env(env)


def test_environment_is_only_completed_never_overridden() -> None:
    env = {"JAX_PLATFORMS": "cuda", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=true --other=1", "NPROC": "3"}
    prepare_environment(env, gpu=False, jaxlib=(0, 10))
    assert env["JAX_PLATFORMS"] == "cuda"
    assert env["XLA_FLAGS"].startswith("--xla_cpu_multi_thread_eigen=true --other=1 ")
    assert "eigen=false" not in env["XLA_FLAGS"]
    assert env["XLA_FLAGS"].endswith("--xla_cpu_collective_timeout_seconds=86400")
    assert env["NPROC"] == "3"


def test_xla_flags_are_all_flags() -> None:
    env: dict[str, str] = {}
    prepare_environment(env, gpu=False, jaxlib=(0, 10))
    assert all(word.startswith("--") for word in env["XLA_FLAGS"].split())  # XLA stops reading at a bare word


def test_environment_defaults() -> None:
    cpu: dict[str, str] = {}
    prepare_environment(cpu, gpu=False, jaxlib=(0, 9))
    assert (cpu["JAX_PLATFORMS"], cpu["NPROC"]) == ("cpu", "1")
    assert "xla_cpu_collective_timeout_seconds" not in cpu["XLA_FLAGS"]  # an unknown flag aborts the process
    gpu: dict[str, str] = {}
    prepare_environment(gpu, gpu=True, jaxlib=(0, 10))
    assert not {"JAX_PLATFORMS", "NPROC"} & set(gpu)
