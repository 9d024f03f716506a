"""Container command lines: documented options only, least privilege, values that no `ps` shows; and their end."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackwalker.node import runtimes
from trackwalker.node.runtimes import detect
from trackwalker.node.runtimes.apptainer import Apptainer
from trackwalker.node.runtimes.container import (
    JOB_LABEL,
    MARK,
    ContainerOrder,
    Mount,
    OrderError,
    Runtime,
    own_name,
    steers_client,
)
from trackwalker.node.runtimes.docker import Docker
from trackwalker.node.runtimes.native import Native
from trackwalker.node.runtimes.podman import Podman

# What the manuals of docker 20.10-28, podman 4-5 and apptainer 1.1-1.4 have in common of what we use: option -> whether
# it takes a value.
_RUN = {
    **dict.fromkeys(["--rm", "--init", "--privileged", "--interactive", "--tty"], False),
    **dict.fromkeys(
        ["--name", "--pull", "--label", "--cap-add", "--shm-size", "--ipc", "--network", "--ulimit", "--device"], True
    ),
    **dict.fromkeys(["--group-add", "--mount", "--workdir", "--env", "--entrypoint"], True),
}
_COMMON = {
    "pull": {"--quiet": False},
    "load": {"--input": True},
    "image inspect": {},
    "ps": {"--all": False, "--filter": True, "--format": True},
    "stop": {"-t": True},
    "kill": {},
    "rm": {"--force": False},
}
DOCUMENTED: dict[str, dict[str, dict[str, bool]]] = {
    "docker": {**_COMMON, "run": {**_RUN, "--gpus": True}},
    "podman": {
        **_COMMON,
        "rm": {"--force": False, "--time": True},
        "run": {**_RUN, "--http-proxy": False, "--security-opt": True},
    },
    "apptainer": {
        "exec": {
            **dict.fromkeys(["--contain", "--cleanenv", "--pid", "--no-eval", "--nv", "--rocm"], False),
            **dict.fromkeys(["--add-caps", "--mount", "--pwd"], True),
        },
        "pull": {"--force": False},
        "build": {"--force": False},
    },
}
DIGEST = "sha256:" + "ab" * 32
FULL = ContainerOrder(
    image=f"docker.io/rocm/jax-training@{DIGEST}",
    name=own_name("8308", 3),
    argv=["python3", "-u", "train.py", "run_name=a b'\"$HOME%\n", "--flag"],
    labels={JOB_LABEL: "8308"},
    env={"NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_very_secret", "LD_LIBRARY_PATH": "/opt/rocm/lib"},
    mounts=[Mount("/data/a,b:c", "/datasets", read_only=True), Mount("/ws", "/ws")],
    workdir="/ws/job dir",
    devices=["/dev/infiniband"],
    gpu="amd",
    ulimits={"memlock": -1, "nofile": 1048576},
    groups=["44", "109"],
)
ALL: list[Runtime] = [Docker(), Podman(), Apptainer("/shared/images"), Native()]


def parse(argv: list[str]) -> tuple[str, list[tuple[str, str]], list[str]]:
    """Subcommand, options and the words behind them, as the documented grammar reads them; fails on anything else."""
    tables = DOCUMENTED[argv[0]]
    width = 2 if " ".join(argv[1:3]) in tables else 1
    command, at = " ".join(argv[1 : 1 + width]), 1 + width
    options: list[tuple[str, str]] = []
    while at < len(argv) and argv[at].startswith("-"):
        name, eq, value = argv[at].partition("=")
        assert name in tables[command], f"{argv[0]} {command} has no documented option {name}"
        if tables[command][name] and not eq:
            at += 1
            value = argv[at]
        options.append((name, value))
        at += 1
    return command, options, argv[at:]


def values(options: list[tuple[str, str]], name: str) -> list[str]:
    return [value for option, value in options if option == name]


@pytest.mark.parametrize("runtime", [Docker(), Podman(), Podman(init=False, hard={"nofile": 20000, "memlock": 65536})])
@pytest.mark.parametrize(
    "order",
    [
        FULL,
        replace(FULL, gpu="nvidia", privileged=True, interactive=True, shm_size="64g", host_network=False),
        ContainerOrder("docker.io/library/busybox:latest", "bare", ["true"], cap_add=[]),
    ],
)
def test_run_is_documented_and_its_words_come_last(runtime: Runtime, order: ContainerOrder) -> None:
    command, options, rest = parse(runtime.run_argv(order))
    assert command == "run"
    assert rest == [order.image, *order.argv[1:]]
    assert values(options, "--entrypoint") == [order.argv[0]]
    assert (("--privileged", "") in options) is order.privileged
    assert (("--tty", "") in options) is order.interactive
    assert values(options, "--pull") == ["never"]  # nothing is downloaded at the start


@pytest.mark.parametrize("gpu", ["", "amd", "nvidia"])
def test_apptainer_run_is_documented_and_its_words_come_last(gpu: str) -> None:
    command, options, rest = parse(Apptainer("/shared").run_argv(replace(FULL, gpu=gpu, cap_add=["SYS_NICE"])))
    assert command == "exec"
    assert rest == [f"/shared/docker.io_rocm_jax-training_{DIGEST.replace(':', '_')}.sif", *FULL.argv]
    assert [o for o, _ in options if o in ("--nv", "--rocm")] == {"": [], "amd": ["--rocm"], "nvidia": ["--nv"]}[gpu]
    # apptainer's contained /dev holds nothing but the GPUs: RDMA devices have to be brought in
    assert "type=bind,source=/dev/infiniband,destination=/dev/infiniband" in values(options, "--mount")


@pytest.mark.parametrize("runtime", ALL[:3], ids=lambda r: r.name)
def test_every_other_command_is_documented(runtime: Runtime) -> None:
    made = [runtime.pull_argv("quay.io/a/b:1"), runtime.load_argv("/x.tar"), runtime.list_own_argv("8308")]
    made += [runtime.stop_argv("n", 5), runtime.kill_argv("n"), runtime.remove_argv("n")]
    made += [runtime.digest_argv("quay.io/a/b:1")] if runtime.keeps_images else []
    commands = [parse(argv)[0] for argv in made if argv]
    if runtime.keeps_images:
        assert commands == ["pull", "load", "ps", "stop", "kill", "rm", "image inspect"]
    else:
        assert commands == ["pull", "build"]


@pytest.mark.starts_processes
@pytest.mark.parametrize("program", ["docker", "podman", "apptainer"])
def test_our_table_agrees_with_the_program_where_it_is_installed(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    for command, table in DOCUMENTED[program].items():
        words = [program, *command.split(), "--help"]
        text = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
        for option, takes_value in table.items():
            row = re.search(rf"^\s*(?:-\w, )?{re.escape(option)}\b(.*)", text, re.MULTILINE)
            assert row, f"{program} {command} --help does not know {option}"
            assert bool(re.match(r",? ?(--\w+ )?[a-z<\[]", row[1].removeprefix(" "))) is takes_value, row[0]


def test_privileges_are_few_and_named() -> None:
    _, options, _ = parse(Docker().run_argv(FULL))
    assert values(options, "--cap-add") == ["SYS_PTRACE"]
    assert values(options, "--device") == ["/dev/kfd", "/dev/dri", "/dev/infiniband"]
    assert values(options, "--ulimit") == ["memlock=-1:-1", "nofile=1048576:1048576"]
    assert values(options, "--group-add") == ["44", "109"]
    assert values(options, "--ipc") == values(options, "--network") == ["host"]
    _, options, _ = parse(Docker().run_argv(replace(FULL, gpu="nvidia")))
    assert values(options, "--gpus") == ["all"]
    _, options, _ = parse(Podman().run_argv(replace(FULL, gpu="nvidia", devices=[])))
    assert values(options, "--device") == ["nvidia.com/gpu=all"]


def test_podman_asks_for_no_limit_above_the_users_own() -> None:
    _, options, _ = parse(Podman(hard={"memlock": 65536, "nofile": 20000, "nproc": 4096}).run_argv(FULL))
    assert set(values(options, "--ulimit")) == {"memlock=65536:65536", "nofile=20000:20000", "nproc=4096:4096"}


def test_apptainer_has_no_privileged_mode() -> None:
    with pytest.raises(OrderError, match="no privileged mode"):
        Apptainer("/c").run_argv(replace(FULL, privileged=True))


@pytest.mark.parametrize("runtime", ALL[:3], ids=lambda r: r.name)
def test_mounts_keep_commas_and_colons(runtime: Runtime) -> None:
    _, options, _ = parse(runtime.run_argv(FULL))
    first = next(csv.reader([values(options, "--mount")[0]]))
    assert first[:2] == ["type=bind", "source=/data/a,b:c"]
    assert first[2].endswith("=/datasets")
    assert first[3] in ("readonly", "ro")


@pytest.mark.parametrize("runtime", ALL, ids=lambda r: r.name)
def test_r06_a_secret_is_not_in_the_command_line(runtime: Runtime) -> None:
    assert "hf_very_secret" not in " ".join(runtime.run_argv(FULL))
    assert "hf_very_secret" in runtime.run_env(FULL, {}).values()


def test_what_would_steer_the_client_does_not_reach_the_client() -> None:
    assert "LD_LIBRARY_PATH" not in Docker().run_env(FULL, {})
    assert "LD_LIBRARY_PATH=/opt/rocm/lib" in Docker().run_argv(FULL)
    assert not any(steers_client(n) for n in ("DOCKER_TOKEN", "HF_HOME", "PYTHONPATH", "NCCL_DEBUG", "USERNAME"))


def seen_inside(runtime: Runtime, order: ContainerOrder) -> tuple[dict[str, str], list[str]]:
    """Environment and words of the process inside, by the runtimes' documented rules."""
    argv, env = runtime.run_argv(order), runtime.run_env(order, {"PATH": "/bin"})
    if runtime.name == "native":
        return env, argv[5:] if order.workdir else argv
    _, options, rest = parse(argv)
    if runtime.name == "apptainer":
        return {k[len("APPTAINERENV_") :]: v for k, v in env.items() if k.startswith("APPTAINERENV_")}, rest[1:]
    given_words = [word.partition("=") for word in values(options, "--env")]
    return {k: v if eq else env[k] for k, eq, v in given_words}, [*values(options, "--entrypoint"), *rest[1:]]


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True) | st.sampled_from(["PATH", "LD_PRELOAD", "HOME"])


@given(env=st.dictionaries(NAMES, TEXT, max_size=5), words=st.lists(TEXT, max_size=5), workdir=st.booleans())
def test_r04_values_and_words_reach_the_inside_byte_for_byte(
    env: dict[str, str], words: list[str], workdir: bool
) -> None:
    order = ContainerOrder("a.example/b:c", "n", ["prog", *words], env=env, workdir="/w d" if workdir else "")
    for runtime in ALL:
        inside, argv = seen_inside(runtime, order)
        assert argv == ["prog", *words]
        assert {k: inside[k] for k in env if k != MARK} == {k: v for k, v in env.items() if k != MARK}
        assert inside[MARK] == "n"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"env": {"A B": "1"}}, "no name of an environment variable"),
        ({"env": {"A": "x\0"}}, "NUL byte"),
        ({"argv": []}, "no command"),
        ({"name": "a b"}, "container name"),
        ({"mounts": [Mount("relative", "/x")]}, "must be absolute"),
        ({"argv": ["x", os.fsdecode(b"\xff")]}, "no UTF-8"),
        ({"gpu": "intel"}, "no such GPU vendor"),
    ],
)
@pytest.mark.parametrize("runtime", ALL[:3], ids=lambda r: r.name)
def test_an_impossible_order_is_refused_in_one_line(runtime: Runtime, change: dict[str, object], says: str) -> None:
    with pytest.raises(OrderError, match=says) as error:
        runtime.run_argv(replace(FULL, **change))  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


@pytest.mark.starts_processes
def test_native_runs_the_words_in_their_folder(tmp_path: Path) -> None:
    order = ContainerOrder("", "n", [sys.executable, "-c", "import os; print(os.getcwd())"], workdir=str(tmp_path))
    done = subprocess.run(Native().run_argv(order), env=Native().run_env(order, os.environ), stdout=-1, check=True)
    assert done.stdout.decode().strip() == str(tmp_path)


# --- which runtime ---------------------------------------------------------------------------------------------------


def fake(folder: Path, name: str, body: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(runtimes.shutil, "which", lambda n: str(tmp_path / n) if (tmp_path / n).exists() else None)
    return tmp_path


@pytest.mark.starts_processes
def test_podman_is_preferred_then_docker_then_apptainer(path: Path) -> None:
    for name in ("podman", "docker", "apptainer"):
        fake(path, name, "exit 0")
    assert detect("/c").runtime.name == "podman"
    fake(path, "podman", "echo 'cannot set up user namespace' >&2; exit 125")
    found = detect("/c")
    assert found.runtime.name == "docker"
    assert found.looked_at == ("podman: installed, but fails: cannot set up user namespace", "docker: answers")
    (path / "docker").unlink()
    assert detect("/c").runtime.name == "apptainer"
    assert detect("/c", "native").runtime.name == "native"


@pytest.mark.starts_processes
def test_a_docker_that_needs_root_is_advice_and_never_sudo(path: Path) -> None:
    fake(path, "sudo", f"touch {path}/sudo-was-called")
    fake(path, "docker", "echo 'permission denied while trying to connect to the Docker daemon socket' >&2; exit 1")
    with pytest.raises(OrderError, match="join the group 'docker' or choose another --runtime"):
        detect("/c")
    assert not (path / "sudo-was-called").exists()


def test_an_unknown_runtime_is_answered_with_the_known_ones() -> None:
    with pytest.raises(OrderError, match="podman, docker, apptainer, native"):
        detect("/c", "enroot")


def test_a_gpu_is_found_by_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes.shutil, "which", lambda n: None)
    assert runtimes.gpu_vendor(tmp_path) == ""
    (tmp_path / "nvidiactl").touch()
    assert runtimes.gpu_vendor(tmp_path) == "nvidia"
    (tmp_path / "kfd").touch()
    assert runtimes.gpu_vendor(tmp_path) == "amd"


def test_identity_is_read_from_both_dialects() -> None:
    told = [{"Id": DIGEST, "RepoDigests": [f"rocm/jax@{DIGEST}"]}]
    assert Docker().identity(json.dumps(told)).names == (f"rocm/jax@{DIGEST}",)
    bare = [{"Id": DIGEST.partition(":")[2], "RepoDigests": None}]
    assert Podman().identity(json.dumps(bare)).content == DIGEST
    assert Apptainer("/c").identity(f"{'ab' * 32}  /c/x.sif\n").content == DIGEST
    for nonsense in ("", "[]", "{}", "[1]", "warning: x"):
        with pytest.raises(OrderError):
            Docker().identity(nonsense)
