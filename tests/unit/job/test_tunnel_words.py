"""The way to a running job's pages: right commands for every place, and a plain word when there is nothing to see."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from pathlib import Path

import pytest

from trackwalker.cli import app
from trackwalker.job.layout import Job
from trackwalker.job.processes import read_stat
from trackwalker.job.run import Origin, RunRecord
from trackwalker.job.services import announce, drop_login, keep_login, login_of, read_services, withdraw
from trackwalker.launch.plan import origin
from trackwalker.observe.tunnel import tunnel


def make(root: Path, origin: Origin | None = None, *, observe: bool = True, alive: bool = True) -> Job:
    """A job that runs: its agent is this very process."""
    folder = root / "77-JAX-x"
    (folder / "agent").mkdir(parents=True)
    (root / "77-JAX-x.log").write_text("JOB_ID=77\n")
    record = {"id": "77", "name": "JAX-x", "model": "x", "scheduler": "local", "trainer": "tiny", "created": 0.0}
    RunRecord(
        **record, argv=[], command=[], workspace=str(root), observe=observe, origin=origin
    ).save(folder / "run.json")  # fmt: skip
    stat = read_stat(os.getpid())
    assert stat is not None
    agent = {"pid": os.getpid(), "start": stat.start if alive else 1}
    (folder / "agent" / "state.json").write_text(json.dumps({"agent": agent, "ranks": []}))
    return Job("77", root / "77-JAX-x.log", folder)


def elsewhere(job: Job, name: str, machine: str) -> None:
    """As if the service had been announced on another machine."""
    assert job.dir is not None
    path = job.dir / "services" / f"{name}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "machine": machine, "pid": 1, "start": 1}))


def test_services_come_and_go(tmp_path: Path) -> None:
    assert read_services(tmp_path) == []
    announce(tmp_path, "prometheus", 9090, os.getpid())
    announce(tmp_path, "tensorboard", 6006, os.getpid())
    assert [(s.name, s.url) for s in read_services(tmp_path)] == [
        ("prometheus", "http://127.0.0.1:9090"),
        ("tensorboard", "http://127.0.0.1:6006"),
    ]
    withdraw(tmp_path, "prometheus")
    assert [s.name for s in read_services(tmp_path)] == ["tensorboard"]
    withdraw(tmp_path, "tensorboard")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "x", "port": "y"}'])
def test_a_torn_or_foreign_file_is_no_service(text: str, tmp_path: Path) -> None:
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "x.json").write_text(text)
    assert read_services(tmp_path) == []


def test_a_service_whose_process_is_gone_is_not_listed(tmp_path: Path) -> None:
    announce(tmp_path, "prometheus", 9090, 2**22 + 1)  # no such process
    assert read_services(tmp_path) == []


def test_on_the_machine_where_it_was_started_no_jump_is_needed(tmp_path: Path) -> None:
    here = socket.gethostname()
    job = make(tmp_path, Origin(machine=here, user="ada", address="192.0.2.7", port=2222))
    assert job.dir is not None
    announce(job.dir, "prometheus", 41000, os.getpid())
    announce(job.dir, "tensorboard", 41001, os.getpid())
    found = tunnel(job)
    forwards = "-L 41000:127.0.0.1:41000 -L 41001:127.0.0.1:41001"
    assert found.commands == (f"ssh -N {forwards} ada@{here}", f"ssh -N {forwards} -p 2222 ada@192.0.2.7")
    text = "\n".join(found.lines())
    assert "Prometheus     http://127.0.0.1:41000" in text
    assert "TensorBoard    http://127.0.0.1:41001" in text
    assert "-L 11000:127.0.0.1:41000" in text, "the tip for a port that is taken"
    assert len(found.banner()) == 2
    assert "the password is its owner's" in text


def test_the_password_is_told_to_who_may_read_it_and_stands_in_no_banner(tmp_path: Path) -> None:
    job = make(tmp_path)
    assert job.dir is not None
    announce(job.dir, "prometheus", 41000, os.getpid())
    keep_login(job.dir, "hush-hush")
    assert (job.dir / "agent" / "login.key").stat().st_mode & 0o777 == 0o600
    found = tunnel(job)
    assert "as trackwalker, password hush-hush" in found.lines()
    assert found.to_dict()["login"] == {"user": "trackwalker", "password": "hush-hush"}
    assert "hush-hush" not in "\n".join(found.banner())
    drop_login(job.dir)
    assert login_of(job.dir) == ""
    assert tunnel(job).to_dict()["login"] is None


def test_a_head_node_behind_a_login_node_is_reached_through_it(tmp_path: Path) -> None:
    job = make(tmp_path, Origin(machine="login1", user="ada", address="2001:db8::7", port=2222), alive=False)
    assert job.dir is not None
    announce(job.dir, "prometheus", 41000, os.getpid())
    elsewhere(job, "prometheus", "node001")
    (job.dir / "agent" / "ray.json").write_text(
        json.dumps({"pid": 1, "start": 1, "dashboard": "http://127.0.0.1:8265", "token": "hidden"})
    )
    found = tunnel(job)
    first, second = (shlex.split(command) for command in found.commands)
    assert first[-3:] == ["-J", "ada@login1", "ada@node001"]
    assert second[-3:] == ["-J", "ada@[2001:db8::7]:2222", "ada@node001"]
    assert first[2:6] == ["-L", "41000:127.0.0.1:41000", "-L", "8265:127.0.0.1:8265"]
    assert "Ray dashboard  http://127.0.0.1:8265" in "\n".join(found.lines())
    assert "hidden" not in json.dumps(found.to_dict())


@pytest.mark.parametrize(
    ("observe", "alive", "ended", "why"),
    [
        (True, True, False, "serves nothing yet"),
        (False, True, False, "start runs with --observe"),
        (True, True, True, "has ended: trackwalker tsdb view 77"),
        (True, False, False, "has ended"),
    ],
)
def test_without_services_it_says_why(
    observe: bool,
    alive: bool,
    ended: bool,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = make(tmp_path, observe=observe, alive=alive)
    assert job.dir is not None
    if ended:
        (job.dir / "events.jsonl").write_text('{"v": 1, "kind": "run-end", "data": {"exit": 0}}\n')
        announce(job.dir, "prometheus", 41000, os.getpid())  # left over: the run's own word counts
    for words in (["--json"], []):
        monkeypatch.setattr(sys, "argv", ["trackwalker", "tunnel", "77", "-w", str(tmp_path), *words])
        with pytest.raises(SystemExit) as end:
            app.main()
        assert end.value.code == 1
        out, err = capsys.readouterr()
        assert err == ""
        assert why in (json.loads(out)["why_none"] if words else out)


def test_an_upstream_job_does_not_say_what_it_serves(tmp_path: Path) -> None:
    (tmp_path / "5-JAX-y").mkdir()
    assert "not a run of ours" in (tunnel(Job("5", None, tmp_path / "5-JAX-y")).why_none or "")


def test_the_origin_is_what_ssh_and_the_user_say() -> None:
    env = {"USER": "ada", "SSH_CONNECTION": "198.51.100.1 50000 192.0.2.7 22"}
    assert origin(env) == Origin(machine=socket.gethostname(), user="ada", address="192.0.2.7", port=22)
    named = origin({"USER": "ada", "TRACKWALKER_LOGIN": "login.example.org", "SSH_CONNECTION": "torn"})
    assert (named.machine, named.address) == ("login.example.org", None)
