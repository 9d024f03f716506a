"""The public surface of a tree: its command line, its agent, its pages. So the same attack runs on any revision.

TRACKWALKER_ATTACKED names the root of the tree (`scripts/attacks-on REV` sets it); without it, it is this one. What an
attack imports of ours is only what makes its inputs. An attack that works says so by `lands`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from triage_logs import ending, header, steps

from trackwalker.observe.prometheus import find_prometheus

HERE = Path(__file__).parent.parent.parent
ATTACKED = Path(os.environ.get("TRACKWALKER_ATTACKED") or HERE).resolve()
READ = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=60).read().decode())"


def lands(what: str) -> NoReturn:
    """The attack works; `scripts/attacks-on` looks for these words."""
    pytest.fail(f"ATTACK WORKS: {what}", pytrace=False)


def environment(**more: str) -> dict[str, str]:
    """Our environment with the tree's own code first, and none of the caller's settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "JOB_"))}
    return {**kept, "PYTHONPATH": str(ATTACKED / "src"), **more}


def argv(*words: object) -> list[str]:
    return [sys.executable, "-m", "trackwalker", *map(str, words)]


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str
    cpu_s: float
    most_mb: float


def tw(*words: object, cpu_s: int = 60, file_mb: int = 0, cwd: Path | None = None, **env: str) -> Done:
    """One command to its end, within so much processor time and, where it is said, without larger files."""

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        if file_mb:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_mb << 20, file_mb << 20))

    child = subprocess.Popen(
        argv(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        env=environment(**env), cwd=cwd, preexec_fn=bound,
    )  # fmt: skip
    said: dict[str, str] = {}
    readers = [
        threading.Thread(target=lambda n=n, f=f: said.update({n: f.read()}))  # type: ignore[misc]
        for n, f in (("out", child.stdout), ("err", child.stderr))
    ]
    for reader in readers:
        reader.start()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    for reader in readers:
        reader.join()
    return Done(child.returncode, said["out"], said["err"], used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def stopped_for_time(done: Done) -> bool:
    return done.code in (-signal.SIGXCPU, -signal.SIGKILL)


def until(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first answer that is something; None when the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            if found := what():
                return found
        time.sleep(0.05)
    return None


def job_log(extra: str = "", code: int = 1) -> str:
    """A log of two ranks, with some lines before its end."""
    return header(2, steps=100) + steps(17, 2) + extra + ending(code)


def put_job(root: Path, text: str, name: str = "77-JAX-toy") -> Path:
    """A job of ours as upstream's launcher leaves it; returns its directory."""
    folder = root / name
    folder.mkdir(parents=True)
    (root / f"{name}.log").write_text(text)
    (folder / "log").symlink_to(f"../{name}.log")
    return folder


_STUBS = {
    "sbatch": 'for last; do :; done\necho "$last" >> {calls}\ncase "$*" in *--test-only*) exit 0;; esac\necho $((4700 + $(wc -l < {calls})))',  # noqa: E501
    "scontrol": 'case "$*" in *"show node"*) echo "NodeName=n1 State=IDLE CPUTot=2";; *reservation*) ;;'
    ' *) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1;; esac',
    "squeue": "echo '{\"jobs\": []}'",
    "sacct": 'echo "sacct: error: no slurmdbd" >&2; exit 1',
    "sinfo": ":",
    "scancel": ":",
}


class Cluster:
    """Slurm's commands on a PATH of our own: a controller that has forgotten every job and takes every script."""

    def __init__(self, root: Path) -> None:
        self._bin, self._calls = root / "bin", root / "calls"
        self._bin.mkdir(parents=True)
        for name, text in _STUBS.items():
            (self._bin / name).write_text(f"#!/bin/sh\n{text.replace('{calls}', str(self._calls))}\n")
            (self._bin / name).chmod(0o755)
        self.env = {"PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}"}

    @property
    def scripts(self) -> list[str]:
        """What sbatch was handed, in order."""
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    def submits(self, workspace: Path, *words: object, cwd: Path | None = None) -> Path:
        """A submission by the command line; returns its folder."""
        done = tw("submit", "tiny", "-N", "1", "--workspace", workspace, *words, cwd=cwd, **self.env)
        assert self.scripts, done.err
        return Path(self.scripts[-1]).parent


class Agent:
    """The attacked tree's own agent as a node of a Slurm job, with a rank of our choosing."""

    def __init__(self, submission: Path, job: str, rank: str, root: Path, **env: str) -> None:
        order = json.loads((submission / "order.json").read_text())
        order |= {"argv": ["/usr/bin/python3", "-u", "-c", rank], "settings": []}
        path = submission / f"order-{job}.json"
        path.write_text(json.dumps(order))
        self.dir = Path(order["workspace"]) / f"{job}-{order['name']}"
        self.errors = root / f"agent-{job}.err"
        seat = {"SLURM_JOB_ID": job, "SLURM_NODEID": "0", "SLURMD_NODENAME": "n1", "TRACKWALKER_NODE": "n1"}
        seat |= {"SLURM_JOB_NUM_NODES": "1", "PATH": "/usr/bin:/bin", "STAGE_TIMEOUTS": "preflight:60"}
        with self.errors.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(submission / "agent.pyz"), "node", str(path)], stdout=out, stderr=out,
                stdin=subprocess.DEVNULL, env=environment(**seat, **env), start_new_session=True,
            )  # fmt: skip

    def rank(self) -> int:
        """The process of the one rank, once it runs."""

        def found() -> int:
            state = json.loads((self.dir / "agent" / "state.json").read_bytes())
            return int(state["ranks"][0]["main"] or 0)

        pid = until(found)
        assert pid, self.errors.read_text()
        return int(pid)

    def address(self) -> tuple[str, int]:
        """Where its metrics are."""

        def found() -> str:
            (path,) = (self.dir / "agent" / "targets").glob("*.json")
            return str(json.loads(path.read_text())[0]["targets"][0])

        host, _, port = (until(found) or "").rpartition(":")
        assert port, self.errors.read_text()
        return host, int(port)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True)
class Site:
    """A running `serve`: its bare address, and a visitor with whatever its printed link gives him."""

    process: subprocess.Popen[str]
    url: str
    link: str

    @contextlib.contextmanager
    def visitor(self) -> Iterator[httpx.Client]:
        with httpx.Client(timeout=120.0, trust_env=False, base_url=self.url) as client:
            client.get(self.link)
            yield client


@contextlib.contextmanager
def serving(workspace: Path, state: Path, *words: object) -> Iterator[Site]:
    """`trackwalker serve` over a workspace."""
    found = str(find_prometheus() or "")
    cache = str(state / "cache")
    env = environment(XDG_STATE_HOME=str(state), XDG_CACHE_HOME=cache, TRACKWALKER_PROMETHEUS=found)
    with subprocess.Popen(
        argv("serve", "--port", "0", "--workspace", workspace, *words), stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        try:
            assert process.stdout is not None
            link = re.findall(r"http://127\S+", process.stdout.readline())[0]
            yield Site(process, "/".join(link.split("/")[:3]), link)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def children(pid: int, word: str = "") -> list[int]:
    """Processes below one whose command line has this word."""
    found, look = [], [pid]
    while look:
        one = look.pop()
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{one}/task"):
                look += [int(p) for p in Path(f"/proc/{one}/task/{task}/children").read_text().split()]
            if one != pid and word in Path(f"/proc/{one}/cmdline").read_text():
                found.append(one)
    return found


class Mcp:
    """The MCP server over its own pipes."""

    def __init__(self, workspace: Path, state: Path) -> None:
        self.process = subprocess.Popen(
            argv("mcp", "--workspace", workspace), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=environment(XDG_STATE_HOME=str(state)),
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out, self._id = self.process.stdin, self.process.stdout, 0
        client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        self.ask("initialize", **client)
        self._in.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        self.tools = {tool["name"] for tool in self.ask("tools/list")["result"]["tools"]}

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer; empty where the server is gone."""
        self._id += 1
        with contextlib.suppress(BrokenPipeError):
            self._in.write(json.dumps({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}) + "\n")
            self._in.flush()
            while line := self._out.readline():
                found: dict[str, Any] = json.loads(line)
                if found.get("id") == self._id:
                    return found
        return {}

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return self.ask("tools/call", name=tool, arguments=arguments)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self._in, self._out):
            with contextlib.suppress(OSError):
                pipe.close()


def get(host: str, port: int, path: str) -> int:
    """The status of one plain request."""
    connection = http.client.HTTPConnection(host, port, timeout=20)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def own(path: Path, text: str) -> None:
    """A file of ours that nobody else can write."""
    before = os.umask(0o022)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    finally:
        os.umask(before)


def leaks(text: str, secrets: Sequence[str]) -> list[str]:
    return [secret for secret in secrets if secret in text]
