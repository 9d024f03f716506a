"""run.json, secrets, and which process is which."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from trackwalker.errors import EvidenceError
from trackwalker.job.processes import alive, is_live, read_stat
from trackwalker.job.redact import HIDDEN, is_secret, redact
from trackwalker.job.run import RankPlace, RunRecord, Setting, load_run


def record(**more: object) -> RunRecord:
    base: dict[str, object] = {
        "id": "12345",
        "name": "JAX-tiny",
        "model": "tiny",
        "scheduler": "local",
        "trainer": "tiny",
        "created": 1.5,
        "argv": ["run", "tiny"],
        "command": ["python", "steps=1"],
        "workspace": "/ws",
    }
    return RunRecord.model_validate({**base, **more})


def test_save_and_load(tmp_path: Path) -> None:
    before = record(
        config={"steps": Setting(value=10, source="model tiny"), "dtype": Setting(value="bf16", source="command line")},
        ranks=[RankPlace(rank=0, host="box-r0", node="box")],
        argv=["run", "tiny", "note=ü \n x"],
        observe=True,
    )
    before.save(tmp_path / "run.json")
    assert load_run(tmp_path / "run.json") == before
    assert json.loads((tmp_path / "run.json").read_text())["schema"] == "trackwalker.run/1"
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_no_record_is_none(tmp_path: Path) -> None:
    assert load_run(None) is None
    assert load_run(tmp_path / "run.json") is None


@pytest.mark.parametrize("damage", ["cut", "empty", "binary", "foreign", "newer", "list"])
def test_a_damaged_record_is_one_clear_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "run.json"
    record().save(path)
    whole = path.read_bytes()
    newer = whole.replace(b"run/1", b"run/2")
    path.write_bytes(
        {"cut": whole[:60], "empty": b"", "binary": b"\xff\0", "foreign": b'{"a": 1}', "newer": newer, "list": b"[]"}[
            damage
        ]
    )
    with pytest.raises(EvidenceError, match=r"run\.json is damaged or foreign") as caught:
        load_run(path)
    assert "\n" not in str(caught.value)


def test_a_later_field_does_not_hurt(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    record().save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "from_the_future": 1}))
    assert load_run(path) == record()


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "hf_access_token",
        "DB_PASSWORD",
        "passwd",
        "GITHUB_PAT",
        "api_key",
        "KEY",
        "token",
        "SSH_PRIVATE_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "HTTP_COOKIE",
        "BASIC_AUTH",
    ],
)
def test_secret_names(name: str) -> None:
    assert is_secret(name)
    assert redact(name, "v") == HIDDEN
    assert redact(name, "") == ""


@pytest.mark.parametrize(
    "name",
    [
        "tokens_per_s",
        "KEYBOARD",
        "max_target_length",
        "tokenizer_path",
        "steps",
        "PATH",
        "author",
        "monkey",
        "XLA_FLAGS",
        "num_experts_per_tok",
        "key_dim",
        "token_count",
        "attention",
        "path_to_data",
        "keys",
    ],
)
def test_ordinary_names(name: str) -> None:
    assert not is_secret(name)
    assert redact(name, "v") == "v"


def test_a_process_is_its_pid_and_start() -> None:
    me = read_stat(os.getpid())
    assert me is not None
    assert me.session == os.getsid(0)
    assert alive(os.getpid(), me.start)
    assert not alive(os.getpid(), me.start + 1), "a reused pid is another process"
    assert read_stat(2**22 + 1) is None


@pytest.mark.starts_processes
def test_a_zombie_is_not_alive_and_odd_names_do_not_confuse(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(program), "30"], start_new_session=True)
    try:
        stat = read_stat(child.pid)
        assert stat is not None
        assert stat.session == child.pid
        state = tmp_path / "state.json"
        state.write_text(json.dumps({"agent": None, "ranks": [{"pid": child.pid, "start": stat.start}]}))
        assert is_live(state)
    finally:
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not alive(child.pid, stat.start)  # dead, not yet collected
    assert not is_live(state)
    child.wait()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"ranks": [{"pid": 1}]}', '{"agent": 5}', "[" * 100_000])
def test_a_torn_state_file_means_not_live(tmp_path: Path, text: str) -> None:
    state = tmp_path / "state.json"
    state.write_text(text)
    assert not is_live(state)
    assert not is_live(tmp_path / "none.json")
    assert not is_live(None)
