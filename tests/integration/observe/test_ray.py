"""A real Ray beside a real run: seen in the database and the dashboard, killed at every level, gone at the end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import end_runs, hurry, pids_with, processes_of
from tiny_settings import QUIET

from trackwalker.job.journal import read
from trackwalker.job.processes import session_members
from trackwalker.job.run import load_run
from trackwalker.job.services import USER, login_of, read_services
from trackwalker.observe.ray_home import missing_ray, ray_home
from trackwalker.telemetry.store import open_database
from trackwalker.watch.detect.live import LiveWatch

pytestmark = [pytest.mark.disturbed_by_load(reason="Ray is given so many seconds to come up"), pytest.mark.timeout(300)]
needs_ray = pytest.mark.skipif(missing_ray() is not None, reason="Ray is not installed: pip install 'trackwalker[ray]'")
NO_RAY = """
import importlib.machinery as m
real = m.PathFinder.find_spec
m.PathFinder.find_spec = classmethod(lambda cls, name, *a: None if name.split(".")[0] == "ray" else real(name, *a))
"""


class Run:
    """`trackwalker run` in a process of its own, and what is in its job directory."""

    def __init__(self, workspace: Path, *words: str, steps: int, env: dict[str, str] | None = None) -> None:
        argv = [sys.executable, "-m", "trackwalker", "run", "tiny", "-n", "2", *words, "-w", str(workspace)]
        argv += ["--", *QUIET, f"steps={steps}", "checkpoint_period=100000"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY")} | (env or {})
        self._output = workspace / "cli.out"
        with self._output.open("wb") as out:
            self.cli = subprocess.Popen(argv, stdout=out, stderr=out, env=environment, start_new_session=True)
        self.until(lambda: list(workspace.glob("local_*/agent/spec.json")), "the run's start")
        self.dir = next(workspace.glob("local_*/"))
        self.id = self.dir.name.split("-JAX-")[0]

    @property
    def said(self) -> str:
        return self._output.read_text()

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 90.0) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError, ValueError, KeyError, httpx.HTTPError):
                if found := condition():
                    return found
            assert time.monotonic() < deadline, f"{what} did not come within {seconds} s; {self.said[-2000:]}"
            time.sleep(0.1)

    def ends(self) -> int:
        return self.cli.wait(120)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [e["data"] for e in read(self.dir / "events.jsonl").items if e["kind"] == kind]

    def ray(self) -> dict[str, Any] | None:
        """What agent/ray.json says, once Ray is up."""
        about: dict[str, Any] = json.loads((self.dir / "agent" / "ray.json").read_text())
        hurry(session_members(about["pid"]))
        return about if about["ready"] else None


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    """A workspace whose runs do not outlive a failing test."""
    yield tmp_path
    end_runs(tmp_path)


def get(about: dict[str, Any], path: str) -> str:
    answer = httpx.get(about["dashboard"] + path, headers={"Authorization": f"Bearer {about['token']}"}, timeout=30)
    return answer.raise_for_status().text


def actors(about: dict[str, Any]) -> dict[str, int]:
    """The living actors' worker processes, by name."""
    found = json.loads(get(about, "/api/v0/actors"))["data"]["result"]["result"]
    return {a["name"]: a["pid"] for a in found if a["state"] == "ALIVE" and a["pid"]}


def starting(run: Run) -> int:
    """The session of the Ray that is there or coming up."""
    return int(json.loads((run.dir / "agent" / "ray.json").read_text())["pid"])


def served(run: Run) -> dict[str, str]:
    """The addresses of the run's services, by name."""
    return {service.name: service.url for service in read_services(run.dir)}


def listeners(port: int) -> set[str]:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    rows += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    return {r[1].split(":")[0] for r in rows if r[3] == "0A" and int(r[1].split(":")[1], 16) == port}


def kill_part(session: int, word: str) -> None:
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in session_members(session)}
    victims = [pid for pid, argv in words.items() if word.encode() in argv.split(b"\0")[0]]
    assert victims, words
    for pid in victims:
        os.kill(pid, signal.SIGKILL)


@needs_ray
def test_ray_beside_a_run(workspace: Path, prometheus: Path) -> None:
    run = Run(workspace, "--ray", steps=100_000)
    first = run.until(run.ray, "Ray")
    ranks = json.loads((run.dir / "agent" / "state.json").read_text())["ranks"]
    node = load_run(run.dir / "run.json").ranks[0].node  # type: ignore[union-attr]

    # The dashboard: on loopback alone, only with the token, with an actor and the stack of every rank.
    assert listeners(int(first["dashboard"].rsplit(":", 1)[1])) == {"0100007F"}
    assert httpx.get(first["dashboard"] + "/api/v0/actors", timeout=30).status_code == 401
    assert (run.dir / "agent" / "ray.json").stat().st_mode & 0o077 == 0
    names = {f"trackwalker_rank_{r['rank']}" for r in ranks}
    workers = run.until(lambda: (a := actors(first)).keys() == names and a, "the actors")
    if first["stacks"] == "yes":
        for rank in ranks:
            worker = workers[f"trackwalker_rank_{rank['rank']}"]
            ask = f"/worker/traceback?pid={worker}&node_id={first['node_id']}"
            stack = run.until(lambda ask=ask: get(first, ask), "a stack")
            assert f"Process {rank['main']}:" in stack
            assert "trackwalker/trainers/tiny/train.py" in stack
    else:
        assert "ptrace" in first["stacks"]
        assert first["stacks"] in run.said

    # Training shares neither process nor session with Ray.
    for rank in ranks:
        assert "ray/_raylet" not in Path(f"/proc/{rank['main']}/maps").read_text()
        assert rank["main"] not in session_members(first["pid"])
    run.until(lambda: list((run.dir / "ray_logs" / node).glob("raylet*")), "the logs while it runs")
    run.until(lambda: {"prometheus", "ray"} <= served(run).keys(), "the services")
    assert served(run)["ray"] == first["dashboard"]
    ask = f"{served(run)['prometheus']}/api/v1/query?query=ray_node_mem_used"
    ours = (USER, login_of(run.dir))
    run.until(lambda: httpx.get(ask, auth=ours).json()["data"]["result"], "Ray's metrics")

    # kill -9 of the keeper while nobody can start another: all of Ray goes by itself.
    watch = LiveWatch(run.dir)
    watch.look()
    before = watch.last_step or 0
    os.kill(run.cli.pid, signal.SIGSTOP)
    os.kill(pids_with(run.id, "trackwalker.observe.ray ")[0], signal.SIGKILL)
    run.until(lambda: not session_members(first["pid"]), "the end of an orphaned Ray", 20)
    os.kill(run.cli.pid, signal.SIGCONT)
    run.until(lambda: len(run.events("ray-start")) == 2, "Ray after its keeper")

    # kill -9 of the raylet: its Ray is replaced; training has not noticed any of it.
    second = run.until(run.ray, "the second Ray")
    kill_part(second["pid"], "raylet")
    third = run.until(lambda: (pid := starting(run)) != second["pid"] and pid, "Ray's restart")
    assert "raylet" in run.events("ray-restart")[-1]["why"]
    assert session_members(second["pid"]) == []
    run.until(lambda: watch.look() or (watch.last_step or 0) > before + 20, "more steps")
    assert run.events("rank-exit") == []

    os.kill(run.cli.pid, signal.SIGINT)
    assert run.ends() == 128 + signal.SIGTERM
    assert "Ray dashboard http://127.0.0.1:" in run.said
    assert first["token"] not in run.said

    # Nothing stays behind but the evidence.
    assert processes_of(run.dir) == []
    assert [pid for session in (first["pid"], second["pid"], third) for pid in session_members(session)] == []
    assert not ray_home(run.dir).exists()
    assert not (run.dir / "agent" / "ray.json").exists()
    assert not (run.dir / "services").exists()
    logs = run.dir / "ray_logs" / node
    assert list(logs.glob("worker-*"))
    assert list((logs / "restart-1").glob("raylet*"))
    with open_database(run.dir / "prometheus") as t:
        assert {"ray_node_mem_used", "ray_node_mem_total", "ray_node_cpu_utilization"} <= set(t.metrics())
        series = t.raw('{job="ray"}', *t.range())
        kept = [labels for labels, _, _ in t.raw("ray_node_mem_used", *t.range())]
    assert {(labels["host"], labels["job_id"]) for labels, _, _ in series} == {(node, run.id)}
    assert all("SessionName" not in labels for labels in kept)


@needs_ray
@pytest.mark.long(reason="a second Ray; that nothing of it stays behind is also at the end of test_ray_beside_a_run")
def test_a_run_that_ends_before_ray_is_up(workspace: Path, prometheus: Path) -> None:
    run = Run(workspace, "--ray", steps=2)
    about = run.until(lambda: json.loads((run.dir / "agent" / "ray.json").read_text()), "Ray's process")
    assert run.ends() == 0
    assert processes_of(run.dir) == []
    assert session_members(about["pid"]) == []
    assert not ray_home(run.dir).exists()
    assert run.events("ray-restart") == []


def test_a14_no_ray_installed_full_telemetry(workspace: Path, prometheus: Path) -> None:
    blind = workspace / "blind"
    blind.mkdir()
    (blind / "sitecustomize.py").write_text(NO_RAY)
    gone = subprocess.run(
        [sys.executable, "-c", "import ray"],
        env={**os.environ, "PYTHONPATH": str(blind)},
        capture_output=True,
        check=False,
    )
    assert b"No module named 'ray'" in gone.stderr  # the premise
    run = Run(workspace, steps=60, env={"RAY": "1", "PYTHONPATH": str(blind)})
    assert run.ends() == 0
    assert len(re.findall("Ray is not installed, recording without it", run.said)) == 1
    record = load_run(run.dir / "run.json")
    assert record is not None
    assert (record.observe, record.ray) == (True, False)
    assert not (run.dir / "ray_logs").exists()
    lanes = {place.host for place in record.ranks}
    with open_database(run.dir / "prometheus") as t:
        last = t.range()[1]
        for metric in ("hw_rank_up", "hw_cpu_seconds_total", "train_last_step_timestamp_seconds"):
            assert lanes <= t.by_host(f"max by (host) (max_over_time({metric}[10m]))", last).keys(), metric
        for metric in ("hw_procs_running", "hw_mem_available_bytes"):
            assert record.ranks[0].node in t.by_host(f"max by (host) (max_over_time({metric}[10m]))", last), metric
        assert not [m for m in t.metrics() if m.startswith("ray_")]
