"""Two jobs' settings: what explains another speed, what explains other losses, what explains nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackwalker.diagnose.case import Case, open_case
from trackwalker.diagnose.compare.config_diff import Change, config_changes, shared_hosts
from trackwalker.job.resolve import resolve

HOSTS = ["n01", "n02", "n03"]


def case(
    folder: Path,
    number: str,
    config: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    hosts: list[str] | None = None,
    header: str = "",
    git: str = "",
    restored: bool = False,
) -> Case:
    name = f"{number}-JAX-toy"
    hosts = hosts or HOSTS
    lines = [f"JOB_ID={number}", f"NNODES={len(hosts)}", f"JOB_NODELIST={','.join(hosts)}", "MODEL_NAME=toy", header]
    lines += [f"0: {k}={v}" for k, v in (env or {}).items()]
    lines += [f"0: Config param {k}: {v}" for k, v in (config or {"steps": "100"}).items()]
    first = 50 if restored else 0
    lines += ["0: restoring from this run's directory step 49"] if restored else []
    lines += [
        f"0: completed step: {s}, seconds: 10.0, Tokens/s/device: 100.0, loss: 4.0" for s in range(first, first + 3)
    ]
    (folder / name).mkdir()
    (folder / f"{name}.log").write_text("\n".join(lines) + "\n")
    (folder / name / "log").symlink_to(f"../{name}.log")
    if git:
        (folder / name / "artifact").mkdir()
        (folder / name / "artifact" / "git_summary.txt").write_text(git)
    with open_case(resolve(number, folder)) as opened:
        return opened


def effects(changes: list[Change]) -> dict[str, str]:
    return {c.name: c.effect for c in changes}


def test_two_jobs_that_were_told_the_same(tmp_path: Path) -> None:
    same = {"steps": "100", "per_device_batch_size": "24.0", "remat_policy": "full", "run_name": "a"}
    a = case(tmp_path, "11", same)
    b = case(tmp_path, "12", same | {"per_device_batch_size": "24", "remat_policy": "'full'", "run_name": "b"})
    assert effects(config_changes(a, b)) == {"run_name": "none"}, "names differ, ways of writing a number do not count"


@pytest.mark.parametrize(
    ("name", "x", "y", "effect"),
    [
        ("remat_policy", "full", "minimal_flash", "speed"),
        ("per_device_batch_size", "6", "8", "speed"),
        ("max_target_length", "4096", "8192", "speed"),
        ("quantization", "", "fp8", "speed"),
        ("attention", "dot_product", "cudnn_flash_te", "speed"),
        ("ici_fsdp_parallelism", "8", "4", "speed"),
        ("data_shuffle_seed", "0", "1", "numbers"),
        ("learning_rate", "3e-4", "1e-4", "numbers"),
        ("enable_single_replica_ckpt_restoring", "False", "True", "start"),
        ("checkpoint_period", "100", "200", "none"),
        ("steps", "100", "5000", "none"),
        ("tensorboard_dir", "x", "y", "none"),
        ("a_setting_of_next_year", "1", "2", "perhaps"),
    ],
)
def test_what_a_setting_changes(tmp_path: Path, name: str, x: str, y: str, effect: str) -> None:
    (change,) = config_changes(case(tmp_path, "11", {name: x}), case(tmp_path, "12", {name: y}))
    assert (change.name, change.a, change.b, change.effect) == (name, x, y, effect)
    assert change.source_a == "11-JAX-toy.log:6"
    assert change.source_b == "12-JAX-toy.log:6"


def test_settings_from_the_command_line_and_its_environment(tmp_path: Path) -> None:
    a = case(tmp_path, "11", header='PASSTHROUGH_ARGS="remat_policy=full _env_NCCL_IB_TC=41"')
    b = case(tmp_path, "12", header='PASSTHROUGH_ARGS="remat_policy=minimal _env_NCCL_IB_TC=96"')
    assert effects(config_changes(a, b)) == {"remat_policy": "speed", "NCCL_IB_TC": "perhaps"}


def test_the_environment_without_names_places_and_secrets(tmp_path: Path) -> None:
    env = {
        "XLA_FLAGS": "--xla_a=true --xla_b=1 --xla_dump_to=/x",
        "NCCL_DEBUG": "WARN",
        "HF_TOKEN": "one",
        "HOME": "/a",
    }
    a = case(tmp_path, "11", env=env)
    b = case(tmp_path, "12", env=env | {"XLA_FLAGS": "--xla_b=1 --xla_a=true", "HF_TOKEN": "two", "HOME": "/b"})
    assert config_changes(a, b) == [], "the order of flags and where dumps go do not matter"
    c = case(tmp_path, "13", env=env | {"XLA_FLAGS": "--xla_a=false --xla_b=1"})
    assert effects(config_changes(a, c)) == {"XLA_FLAGS": "speed"}


def test_what_only_one_log_tells_is_no_difference_unless_it_is_the_work(tmp_path: Path) -> None:
    a = case(tmp_path, "11", {"steps": "100"})
    b = case(tmp_path, "12", {"steps": "100", "some_new_default": "3"})
    assert config_changes(a, b) == []
    c = case(tmp_path, "13", {"steps": "100", "quantization": "fp8"})
    assert effects(config_changes(a, c)) == {"quantization": "speed"}


def test_machines_code_and_start(tmp_path: Path) -> None:
    a = case(tmp_path, "11", git="[LAST COMMIT]\n0189443 Tune\n")
    b = case(tmp_path, "12", hosts=["n02", "n03", "n04"], git="[LAST COMMIT]\n77aa01b Tune more\n", restored=True)
    changes = config_changes(a, b)
    assert effects(changes) == {"code": "perhaps", "node list": "nodes", "start": "start"}
    assert shared_hosts(a, b) == ["n02", "n03"]
    assert changes[0].says == "code: 0189443 Tune in A, 77aa01b Tune more in B"
    assert next(c for c in changes if c.name == "start").b == "restored from step 49"
    fewer = case(tmp_path, "13", hosts=["n01", "n02"])
    assert effects(config_changes(a, fewer)) == {"nodes": "speed", "node list": "nodes"}


def test_settings_environment_and_start_come_from_the_one_reading_of_the_log(tmp_path: Path) -> None:
    env = {"XLA_FLAGS": "--xla_a=true", "NCCL_IB_TC": "41"}
    made = "\n".join(f"{r}: [2026-02-01 10:00:{s}] NCCL INFO comm 0x1 Init COMPLETE" for s in (10, 40) for r in (1, 0))
    a = case(tmp_path, "11", env=env, header=made, restored=True)
    b = case(tmp_path, "12", env=env | {"NCCL_IB_TC": "96"}, header="0: [2026-13-99 10:00:99] Init COMPLETE")
    for log in tmp_path.glob("*.log"):
        log.unlink()
    assert effects(config_changes(a, b)) == {"NCCL_IB_TC": "perhaps", "start": "start"}
    name, start = a.triage.record.start
    assert (name, start.waves, start.rank) == ("11-JAX-toy.log", 2, 0)
    assert start.restored is not None
    assert b.triage.record.start[1].made == [None], "a date that is none is no time"


def test_of_the_environment_the_launcher_counts_before_the_lowest_rank(tmp_path: Path) -> None:
    told = "3: NCCL_IB_TC=3\nNCCL_IB_TC=7\n1: (pid=7) HSA_X=1\n2: HSA_X=2\n0: HSA_X=0"
    found = case(tmp_path, "11", header=told).log.environment
    assert {name: (quote.rank, quote.text) for name, quote in found.items()} == {
        "NCCL_IB_TC": (None, "7"),
        "HSA_X": (0, "0"),
    }
