"""`python -m trackwalker.observe.ray`: keeps a Ray cluster beside a run, and never lets it touch training.

It starts Ray in a session of its own, copies its logs, tells Prometheus where Ray's metrics are, starts it again a few
times when it dies, and ends every process of it with the run. It does not import Ray: what hurts Ray cannot hurt this.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trackwalker.errors import TrackwalkerError
from trackwalker.job.journal import Journal, event_record
from trackwalker.job.processes import alive, read_stat, session_members
from trackwalker.job.services import announce, withdraw
from trackwalker.job.whole import write_whole
from trackwalker.observe.ending import Ending
from trackwalker.observe.live import LiveDir, claim_folder
from trackwalker.observe.ray_cluster import find_pyspy, why_no_stacks, write_wrapper
from trackwalker.observe.ray_home import environment, hold_port, ray_home

MOST_RESTARTS = 3
_TICK_S = 0.5
_LOGS_S = 1.0
_START_S = 180.0  # ten seconds on an idle machine; a busy one gets its time
_GRACE_S = 5.0
_DASHBOARD = 8265  # where Ray's users look first; any other port when it is taken


# Ray's session logs, copied into the job directory as they grow.
class LogMirror:
    """Follows one session's log folder.

    A copy that is appended to, not a link: Ray's processes keep the files they opened, so a folder that is moved
    away under them loses the rest of every log, and a job directory that hangs would hang them.
    """

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target
        self._inodes: dict[str, int] = {}

    def sync(self) -> None:
        """Append what is new; a log that was rotated begins anew."""
        for folder, _, names in os.walk(self._source):
            to = self._target / os.path.relpath(folder, self._source)
            to.mkdir(parents=True, exist_ok=True)
            for name in names:
                self._append(os.path.join(folder, name), to / name)

    def _append(self, source: str, target: Path) -> None:
        try:
            with open(source, "rb") as log:
                stat = os.fstat(log.fileno())
                copied = target.stat().st_size if target.exists() else 0
                rotated = self._inodes.setdefault(source, stat.st_ino) != stat.st_ino or stat.st_size < copied
                self._inodes[source] = stat.st_ino
                if rotated or stat.st_size > copied:
                    log.seek(0 if rotated else copied)
                    with target.open("wb" if rotated else "ab") as copy:
                        shutil.copyfileobj(log, copy)
        except FileNotFoundError:
            return  # rotated away or removed since we listed it


class RayKeeper:
    """One node's Ray for one job; `run` returns when the run is over or Ray is given up."""

    def __init__(self, job_dir: Path, job_id: str, node: str, say: Callable[[str], None]) -> None:
        self._job_dir, self._job_id, self._node, self._say = job_dir, job_id, node, say
        self._home = ray_home(job_dir)
        self._about = job_dir / "agent" / "ray.json"
        self._targets = LiveDir(job_dir, job_id).ray_targets
        self._events = Journal(job_dir / "events.jsonl")
        self._ending = Ending(job_dir)
        self._stop = threading.Event()
        self._cluster: subprocess.Popen[bytes] | None = None
        self._logs: LogMirror | None = None
        self._logs_to = self._log_folder(0)
        self._mark: dict[str, Any] = {}
        self._parts: list[tuple[int, int, str]] = []  # pid, start time and name of raylet, GCS, dashboard
        self._held: list[socket.socket] = []
        self._ports: tuple[int, ...] = (0, 0)
        self._token = ""
        self._deadline = 0.0
        self._next_logs = 0.0
        self._restarts = 0
        self._trouble = ""

    def run(self) -> int:
        """Keep Ray until the run is over; 0 also when Ray had to be given up, which is no failure of the run."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        claim_folder(self._home)
        self._clear_leftovers()
        why = None
        while why is None:
            if self._cluster is None:
                if self._first_rank():  # with nobody to stand for there is no use for Ray
                    self._start()
            elif broken := self._look(self._cluster):
                self._end_cluster(grace_s=0.0)
                if self._restarts == MOST_RESTARTS:
                    self._event("ray-lost", why=broken, restarts=self._restarts)
                    why = f"given up: {broken}"
                    break
                self._restarts += 1
                self._event("ray-restart", why=broken, restart=self._restarts)
            why = "stopped by a signal" if self._stop.wait(_TICK_S) else self._ending.reason()
        self._say(f"ending: {why}")
        self._end_cluster()
        shutil.rmtree(self._home, ignore_errors=True)
        return 0

    def _start(self) -> None:
        for name in ("bin", "ranks", "up.json"):
            path = self._home / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        (self._home / "ranks").mkdir()
        if pyspy := find_pyspy():
            write_wrapper(self._home / "bin", self._home / "ranks", pyspy)
        self._token = secrets.token_hex(32)
        token_file = self._home / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(self._token)
        # Kept over restarts, so that a tunnel stays right; held, so that two keepers never choose the same.
        self._held = self._held or [hold_port(_DASHBOARD), hold_port(0)]
        self._ports = tuple(int(held.getsockname()[1]) for held in self._held)
        argv = [sys.executable, "-m", "trackwalker.observe.ray_cluster"]
        argv += ["--job-dir", str(self._job_dir), "--home", str(self._home)]
        argv += ["--dashboard-port", str(self._ports[0]), "--metrics-port", str(self._ports[1])]
        self._logs, self._parts = None, []
        self._deadline = time.monotonic() + _START_S
        self._cluster = subprocess.Popen(
            argv,
            env=environment(self._home),
            cwd=self._home,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # all of Ray is found by it, and nobody else
        )
        stat = read_stat(self._cluster.pid)
        self._logs_to = self._log_folder(self._restarts)
        self._mark = {"pid": self._cluster.pid, "start": stat.start if stat else 0, "logs": str(self._logs_to)}
        self._write_about({**self._mark, "ready": False})

    def _look(self, cluster: subprocess.Popen[bytes]) -> str | None:
        """One look: follow what runs; returns what is wrong with Ray, None while nothing is."""
        if cluster.poll() is not None:
            return f"Ray ended with exit code {cluster.returncode}"
        if self._logs is None:
            if time.monotonic() > self._deadline:
                return f"Ray did not start within {_START_S:.0f} s"
            self._note_up(cluster.pid)
        elif dead := [name for pid, start, name in self._parts if not alive(pid, start)]:
            return f"Ray's {' and '.join(dead)} died"
        try:
            self._tell_prometheus()
            self._copy_logs()
            self._trouble = ""
        except OSError as e:
            if str(e) != self._trouble:
                self._say(f"trouble, trying again: {e}")
            self._trouble = str(e)
        return None

    def _note_up(self, pid: int) -> None:
        try:
            up = json.loads((self._home / "up.json").read_bytes())
        except FileNotFoundError:
            return
        self._logs = LogMirror(Path(up["session"]) / "logs", self._logs_to)
        self._parts = [(int(part), int(start), str(name)) for part, start, name in up["parts"]]
        url = f"http://127.0.0.1:{self._ports[0]}"
        about = {**self._mark, "ready": True, "dashboard": url, "token": self._token}
        no_stacks = why_no_stacks(self._first_rank())
        about |= {"address": up["address"], "node_id": up["node_id"], "metrics_port": self._ports[1]}
        self._write_about({**about, "stacks": no_stacks or "yes"})
        with contextlib.suppress(OSError):
            announce(self._job_dir, "ray", self._ports[0], pid)
        self._event("ray-start", dashboard=url, stacks=no_stacks or "yes")
        self._say(f"Ray is up, dashboard {url}" + (f"; no stacks: {no_stacks}" if no_stacks else ""))

    def _first_rank(self) -> int:
        """The process id of a rank, 0 while none was started."""
        try:
            state = json.loads((self._job_dir / "agent" / "state.json").read_bytes())
            return next((int(r["main"]) for r in state["ranks"] if r["main"]), 0)
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _tell_prometheus(self) -> None:
        """Ray's own service discovery knows no host names: every series gets ours from its target."""
        if self._logs is None or not self._targets.parent.is_dir():
            return
        labels = {"host": self._node, "job_id": self._job_id}
        text = json.dumps([{"targets": [f"127.0.0.1:{self._ports[1]}"], "labels": labels}])
        if not self._targets.exists() or self._targets.read_text() != text:
            write_whole(self._targets, text)

    def _copy_logs(self) -> None:
        now = time.monotonic()
        if self._logs is not None and now >= self._next_logs:
            self._next_logs = now + _LOGS_S
            self._logs.sync()

    def _log_folder(self, restart: int) -> Path:
        folder = self._job_dir / "ray_logs" / self._node
        while restart and (folder / f"restart-{restart}").exists():
            restart += 1  # of an earlier keeper
        return folder / f"restart-{restart}" if restart else folder

    def _end_cluster(self, grace_s: float = _GRACE_S) -> None:
        """End every process of Ray; only members of the session we made are touched."""
        cluster = self._cluster
        withdraw(self._job_dir, "ray")
        with contextlib.suppress(OSError):
            write_whole(self._targets, "[]") if self._targets.exists() else None
        if cluster is not None:
            cluster.terminate()  # it takes the others with it
            deadline = time.monotonic() + grace_s
            while session_members(cluster.pid) and time.monotonic() < deadline:
                time.sleep(0.1)
            _kill_session(cluster.pid)
            cluster.wait()
            self._keep_logs(self._logs_to)
        with contextlib.suppress(OSError):
            self._about.unlink(missing_ok=True)
        self._cluster, self._logs = None, None

    def _keep_logs(self, to: Path) -> None:
        """The last lines of a Ray that has ended, also of one that never came up; then its folder goes."""
        for session in self._home.glob("session_2*"):
            with contextlib.suppress(OSError):
                (self._logs or LogMirror(session / "logs", to)).sync()
            shutil.rmtree(session, ignore_errors=True)

    def _clear_leftovers(self) -> None:
        """After a keeper that was killed: what is left of its Ray is ended, its last log lines are kept."""
        try:
            about: dict[str, Any] = json.loads(self._about.read_bytes())
        except (OSError, ValueError):
            return
        leader = read_stat(int(about["pid"]))
        if leader is None or leader.start == about["start"]:  # else the number is another's now
            _kill_session(int(about["pid"]))
        self._restarts = 1
        self._event("ray-restart", why="its keeper died", restart=1)
        self._keep_logs(Path(about["logs"]))

    def _write_about(self, about: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            write_whole(self._about, json.dumps(about), mode=0o600)  # whoever reads the token may run programs as us

    def _event(self, kind: str, **data: Any) -> None:
        with contextlib.suppress(OSError):
            self._events.append(event_record(kind, self._node, data))


def _kill_session(session: int) -> None:
    for _ in range(50):  # what is killed may have forked meanwhile
        members = session_members(session)
        if not members:
            return
        for pid in members:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def say(text: str) -> None:
    """One line into our log; a log that cannot be written must not end Ray."""
    with contextlib.suppress(OSError):
        os.write(1, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} ray: {text}\n".encode())


def main() -> int:
    """Parse the arguments and keep Ray."""
    parser = argparse.ArgumentParser(prog="python -m trackwalker.observe.ray", description=__doc__)
    parser.add_argument("--job-dir", type=Path, required=True, help="the job's directory")
    parser.add_argument("--job-id", required=True, help="the job's id")
    parser.add_argument("--node", required=True, help="this machine's name as the `host` label carries it")
    options = parser.parse_args()
    try:
        return RayKeeper(options.job_dir.absolute(), options.job_id, options.node, say).run()
    except (TrackwalkerError, OSError) as e:
        say(f"cannot run Ray: {e}")
        return 0  # trying again would not help, and the run does not need us


if __name__ == "__main__":
    sys.exit(main())
