"""Ray as an option: who asked for it, its folder and environment, its logs, and whose stack is shown."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trackwalker.cli import app
from trackwalker.errors import UsageError
from trackwalker.job.journal import read
from trackwalker.job.processes import read_stat
from trackwalker.launch.request.words import Watching, parse_watching
from trackwalker.observe.ray import MOST_RESTARTS, LogMirror, RayKeeper
from trackwalker.observe.ray_cluster import point, why_no_stacks, write_wrapper
from trackwalker.observe.ray_home import environment, hold_port, ray_home

NOTHING: dict[str, str] = {}


@pytest.mark.parametrize(
    ("observe", "ray", "env", "expected"),
    [
        (False, False, NOTHING, Watching()),
        (True, False, NOTHING, Watching(observe=True)),
        (False, True, NOTHING, Watching(observe=True, ray=True)),
        (False, False, {"RAY": "1"}, Watching(observe=True, ray=True)),
        (False, False, {"RAY": "true"}, Watching(observe=True, ray=True)),
        (False, False, {"RAY": "0"}, Watching()),
        (True, False, {"RAY": ""}, Watching(observe=True)),
    ],
)
def test_who_asks_for_ray(observe: bool, ray: bool, env: dict[str, str], expected: Watching) -> None:
    assert parse_watching(observe, ray, env, missing=None) == expected


def test_ray_that_is_not_installed() -> None:
    habit = parse_watching(False, False, {"RAY": "1"}, missing="ray")
    assert (habit.observe, habit.ray) == (True, False)
    assert "recording without it" in habit.note
    assert "\n" not in habit.note
    assert parse_watching(True, False, NOTHING, missing="ray") == Watching(observe=True)
    with pytest.raises(UsageError, match=r"trackwalker\[ray\]"):
        parse_watching(False, True, {"RAY": "1"}, missing="ray")


def test_ray_option_without_ray_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trackwalker.cli.launching.run.missing_ray", lambda: "ray")
    monkeypatch.setattr(sys, "argv", ["trackwalker", "run", "tiny", "--ray", "-w", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        app.main()
    complaint = capsys.readouterr().err
    assert end.value.code == 2
    assert "pip install 'trackwalker[ray]'" in complaint
    assert complaint.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_home_fits_a_socket_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    home = ray_home(tmp_path)
    socket = f"{home}/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
    assert len(socket) <= 107
    assert ray_home(tmp_path) == home != ray_home(deep)


def test_nobody_elses_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "theirs")
    env = environment(tmp_path)
    assert "RAY_ADDRESS" not in env
    assert "RAY_AUTH_TOKEN" not in env
    assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN_PATH"]) == ("token", str(tmp_path / "token"))
    assert env["PATH"].split(os.pathsep)[0] == str(tmp_path / "bin")


def test_logs_are_appended_to_and_begin_anew_when_rotated(tmp_path: Path) -> None:
    source, target = tmp_path / "logs", tmp_path / "job" / "ray_logs" / "box"
    (source / "events").mkdir(parents=True)
    raylet = source / "raylet.out"
    raylet.write_text("one\n")
    (source / "events" / "e.log").write_text("event\n")
    LogMirror(source, target).sync()
    assert (target / "events" / "e.log").read_text() == "event\n"
    mirror = LogMirror(source, target)  # a new keeper goes on where the last one was
    with raylet.open("a") as log:
        log.write("two\n")
    mirror.sync()
    mirror.sync()
    assert (target / "raylet.out").read_text() == "one\ntwo\n"
    raylet.rename(source / "raylet.out.1")
    raylet.write_text("a longer line after the rotation\n")
    mirror.sync()
    assert (target / "raylet.out").read_text() == "a longer line after the rotation\n"
    assert (target / "raylet.out.1").read_text() == "one\ntwo\n"


def test_a_vanished_session_costs_nothing_already_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "logs", tmp_path / "copy"
    source.mkdir()
    (source / "a").write_text("kept")
    mirror = LogMirror(source, target)
    mirror.sync()
    (source / "a").unlink()
    mirror.sync()
    assert (target / "a").read_text() == "kept"


@pytest.mark.starts_processes
@pytest.mark.parametrize("option", ["-p", "--pid"])
def test_the_rank_is_shown_in_place_of_its_actor(tmp_path: Path, option: str) -> None:
    pyspy, ranks = tmp_path / "the real one", tmp_path / "ranks of it"
    pyspy.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    pyspy.chmod(0o755)
    ranks.mkdir()
    write_wrapper(tmp_path / "bin", ranks, str(pyspy))
    point(ranks, 41, 7)
    point(ranks, 41, 4242)  # the rank was started again

    def asked(*words: str) -> str:
        return subprocess.run([tmp_path / "bin" / "py-spy", *words], capture_output=True, text=True, check=True).stdout

    assert asked("dump", option, "41", "--native") == f"dump|{option}|4242|--native|"
    assert asked("dump", option, "40") == f"dump|{option}|40|"
    assert asked("record", "-o", "a b.svg", option, "41", "-d", "41") == f"record|-o|a b.svg|{option}|4242|-d|41|"


def test_stacks_are_promised_only_where_they_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackwalker.observe.ray_cluster.find_pyspy", lambda: "/bin/py-spy")
    assert why_no_stacks(os.getpid()) is None

    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr("trackwalker.observe.ray_cluster.os.open", refuse)
    assert "ptrace" in (why_no_stacks(os.getpid()) or "")
    monkeypatch.setattr("trackwalker.observe.ray_cluster.find_pyspy", lambda: None)
    assert "py-spy is not installed" in (why_no_stacks(os.getpid()) or "")


def test_a_held_port_is_nobody_elses_but_can_be_listened_on() -> None:
    first = hold_port(0)
    port = first.getsockname()[1]
    second = hold_port(port)
    server = socket.create_server(("127.0.0.1", port))  # with the same option, as Ray's servers have it
    assert second.getsockname()[1] != port
    third = hold_port(port)
    assert third.getsockname()[1] != port
    for held in (first, second, third, server):
        held.close()


@pytest.mark.starts_processes
def test_a_ray_that_never_comes_up_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = tmp_path / "1-JAX-x"
    (job / "agent").mkdir(parents=True)
    stat = read_stat(os.getpid())
    assert stat is not None
    me = {"pid": stat.pid, "start": stat.start}
    rank = {**me, "rank": 0, "host": "box-r0", "main": stat.pid, "exit": None}
    (job / "agent" / "state.json").write_text(json.dumps({"agent": me, "ranks": [rank]}))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("trackwalker.observe.ray.signal.signal", lambda *_: None)
    monkeypatch.setattr("trackwalker.observe.ray._TICK_S", 0.05)
    monkeypatch.setattr("trackwalker.observe.ray.sys.executable", "/bin/false")
    said: list[str] = []
    assert RayKeeper(job, "1", "box", said.append).run() == 0  # no failure of the run
    events = read(job / "events.jsonl").items
    assert [e["kind"] for e in events] == ["ray-restart"] * MOST_RESTARTS + ["ray-lost"]
    assert "exit code 1" in events[-1]["data"]["why"]
    assert "given up" in said[-1]
    assert not ray_home(job).exists()
    assert sorted(p.name for p in (job / "agent").iterdir()) == ["state.json"]
