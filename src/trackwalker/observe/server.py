"""One Prometheus process: on a free loopback port, and never alive longer than we are."""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trackwalker.job.processes import free_port
from trackwalker.job.services import USER
from trackwalker.observe.login import NO_ORIGIN, Login

# Bound before any fork: between fork and exec a child must not import or allocate more than it has to.
# Only Linux has it; elsewhere (a laptop that reads a job) an orphan is left to the user's own hand.
_prctl = getattr(ctypes.CDLL(None), "prctl", None)
_PR_SET_PDEATHSIG = 1
_PORT_TAKEN = "address already in use"
# What it says when it cannot start, and what that means.
_CAUSES = {
    _PORT_TAKEN: "its port is taken",
    "Error loading config": "its configuration is wrong",
    "read-only file system": "its data folder cannot be written",
    "permission denied": "its data folder cannot be written",
    "no space left on device": "the disk under its data is full",
    "SIGBUS": "the disk under its data is full",  # a page of a mapped file that finds no room
}


class Server:
    """A started Prometheus; it may still be replaying its log, ask `ready`."""

    def __init__(
        self,
        binary: Path,
        data: Path,
        config: Path,
        log: Path,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        login: Login | None = None,
    ) -> None:
        """`login` keeps everybody else out; without it, whoever reaches this machine's loopback may ask."""
        self._login = login
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.started = time.time()
        self._data, self._log = data, log
        self._ready = False
        argv = [
            str(binary),
            f"--config.file={config}",
            f"--storage.tsdb.path={data}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.format=logfmt",
            NO_ORIGIN,
            *([login.write(config.parent)] if login else []),
            *flags,
        ]
        with log.open("ab") as out:
            self._log_start = out.tell()
            self.process = spawn_tied(argv, out.fileno(), {**os.environ, **(env or {})})

    @property
    def access(self) -> str:
        """Its address with what opens it: for our own requests, never to be shown."""
        return f"http://{USER}:{self._login.password}@127.0.0.1:{self.port}" if self._login else self.url

    @property
    def running(self) -> bool:
        """Whether the process is still there."""
        return self.process.poll() is None

    def ready(self) -> bool:
        """Whether it answers queries; once it did, it keeps doing so while it runs."""
        if not self._ready and self.running:
            # Another program may have won the race for our port and answer in its place: the data folder tells.
            flags = self._get("/api/v1/status/flags") if self._get("/-/ready") is not None else None
            self._ready = flags is not None and _path_in(flags) == str(self._data)
        return self._ready and self.running

    def wait_ready(self, seconds: float) -> bool:
        """Wait for `ready`; False when the process ended or the time is over."""
        deadline = time.monotonic() + seconds
        while not self.ready():
            if not self.running or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def lost_port(self) -> bool:
        """Whether it ended because another program took the port between our test and its start."""
        return not self.running and _PORT_TAKEN in self.said()

    def cause(self) -> str:
        """Why it ended, in words; empty when it did not say."""
        said = self.said()
        return next((meaning for words, meaning in _CAUSES.items() if words in said), "")

    def said(self) -> str:
        """What it logged since this start."""
        with self._log.open("rb") as f:
            f.seek(self._log_start)
            return f.read().decode("utf-8", "replace")

    def stop(self, grace: float = 10.0) -> None:
        """End it: politely, then not; returns when it is gone."""
        if self.running:
            self.process.terminate()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _get(self, path: str) -> bytes | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", path, headers={"Authorization": self._login.header} if self._login else {})
            answer = connection.getresponse()
            body = answer.read()
            return body if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


def _path_in(flags: bytes) -> str | None:
    try:
        path: str = json.loads(flags)["data"]["storage.tsdb.path"]
    except (ValueError, KeyError, TypeError):
        return None
    return path


_spawner: ThreadPoolExecutor | None = None


def _forget_spawner() -> None:
    global _spawner
    _spawner = None  # its thread does not exist in a forked child


os.register_at_fork(after_in_child=_forget_spawner)


def spawn_tied(argv: list[str], out: int, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a child that the kernel kills when we die, even by SIGKILL."""
    # The kernel watches the *thread* that forked. A worker thread of a web server may end while its child is still
    # needed, so everyone but the main thread borrows one thread that lives as long as the process.
    if threading.current_thread() is threading.main_thread():
        return _spawn(argv, out, env)
    global _spawner
    if _spawner is None:
        _spawner = ThreadPoolExecutor(1, "trackwalker-spawner")
    return _spawner.submit(_spawn, argv, out, env).result()


def _spawn(argv: list[str], out: int, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def tie() -> None:
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # we died before the line above took hold

    # Its own process group: a Ctrl-C in the user's terminal is ours to act on, not the child's.
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        env=dict(env),
        preexec_fn=tie,
        process_group=0,
    )
