"""The job's TensorBoard: started once there is something to show, beside the training and never in its way."""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from subprocess import Popen
from typing import Any

from trackwalker.errors import EvidenceError
from trackwalker.job.processes import free_port
from trackwalker.job.run import load_run
from trackwalker.job.services import announce, withdraw
from trackwalker.observe.login import login
from trackwalker.observe.server import spawn_tied

MISSING = "TensorBoard is not installed: pip install 'trackwalker[tensorboard]' gives every run its page"
_LOOK_S = 5.0
_MOST_STARTS = 5
_RELOAD_S = 15
_NICE = 19  # on the machine of a rank its page can wait, the step cannot


# `python -m trackwalker.observe.tensorboard`: TensorBoard as it is, for whoever knows the password.
HEADER = "TRACKWALKER_BOARD_LOGIN"  # the Authorization header that opens; an environment is its owner's to read
_OWN_NAMES = ("127.0.0.1", "localhost")
_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def guarded(application: _Application, header: str) -> _Application:
    """The application for who sends this Authorization header, under our own name, from no other site's page."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("HTTP_HOST", "").rpartition(":")[0] not in _OWN_NAMES:
            return _refuse(start, "403 Forbidden", "ask for 127.0.0.1\n")
        if environ.get("HTTP_SEC_FETCH_SITE", "none") not in ("none", "same-origin"):
            return _refuse(start, "403 Forbidden", "not from a page of another site\n")
        given = environ.get("HTTP_AUTHORIZATION", "")
        if not header or not secrets.compare_digest(given.encode(), header.encode()):
            asks = ("WWW-Authenticate", 'Basic realm="TensorBoard of a run"')
            return _refuse(start, "401 Unauthorized", "trackwalker tunnel JOB tells the password\n", asks)
        return application(environ, start)

    return answer


def _refuse(start: Callable[..., Any], status: str, text: str, *more: tuple[str, str]) -> list[bytes]:
    body = text.encode()
    start(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body))), *more])
    return [body]


def main() -> None:
    """TensorBoard with its own arguments."""
    from absl import app
    from tensorboard import default, main_lib, program

    header = os.environ.pop(HEADER, "")

    class Guarded(program.WerkzeugServer):  # type: ignore[misc, name-defined, unused-ignore]
        """TensorBoard's own server around the guarded application."""

        def __init__(self, application: _Application, flags: Any) -> None:
            super().__init__(guarded(application, header), flags)

    main_lib.global_init()
    board = program.TensorBoard(plugins=default.get_plugins(), server_class=Guarded)
    app.run(board.main, flags_parser=board.configure)


if __name__ == "__main__":
    main()


def installed() -> bool:
    """Whether this Python has TensorBoard."""
    return importlib.util.find_spec("tensorboard") is not None


class Board:
    """One TensorBoard over a job's event files; `tick` does what is due, `stop` ends it."""

    def __init__(self, job_dir: Path, log: Path, say: Callable[[str], None]) -> None:
        self._job_dir, self._log, self._say = job_dir, log, say
        self._process: Popen[bytes] | None = None
        self._port = 0
        self._announced = False
        self._starts = 0
        self._next = 0.0
        self._given_up = not installed()
        if self._given_up:
            say(MISSING)

    def tick(self) -> None:
        """Start it, announce it, start it again."""
        now = time.monotonic()
        if self._given_up or now < self._next:
            return
        if self._process is None:
            self._next = now + _LOOK_S
            self._start()
        elif self._process.poll() is not None:
            self._note_death(now)
        elif not self._announced and _answers(self._port):
            announce(self._job_dir, "tensorboard", self._port, self._process.pid)
            self._announced = True

    def stop(self) -> None:
        """End it and take its announcement back."""
        if self._process is not None:
            self._process.kill()  # it has nothing to put away, and its helper ends with it
            self._process.wait()
            self._process = None
        withdraw(self._job_dir, "tensorboard")

    def _start(self) -> None:
        folder = event_folder(self._job_dir)
        if folder is None:
            return
        self._port = free_port()
        argv = [sys.executable, "-m", "trackwalker.observe.tensorboard", f"--logdir={folder}", "--host=127.0.0.1"]
        # Its fast loader is a second server on a port of its own, which knows no password.
        argv += [f"--port={self._port}", f"--reload_interval={_RELOAD_S}", "--load_fast=false"]
        with self._log.open("ab") as out:
            self._process = spawn_tied(argv, out.fileno(), {**os.environ, HEADER: login().header})
        os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICE)
        self._starts += 1
        self._announced, self._next = False, 0.0
        self._say(f"TensorBoard started, pid {self._process.pid}, http://127.0.0.1:{self._port}, over {folder}")

    def _note_death(self, now: float) -> None:
        code = self._process.returncode if self._process is not None else None
        self._process = None
        self._given_up = self._starts >= _MOST_STARTS
        self._next = now + _LOOK_S
        after = "given up" if self._given_up else f"starting again in {_LOOK_S:.0f} s"
        self._say(f"TensorBoard died with exit code {code}, {after}; its last words are in {self._log}")


def event_folder(job_dir: Path) -> Path | None:
    """Where the trainer writes event files, None before there are any."""
    try:
        record = load_run(job_dir / "run.json")
    except EvidenceError:
        record = None
    config = record.config if record is not None else {}
    base, name = config.get("base_output_directory"), config.get("run_name")
    named = [Path(str(base.value)) / str(name.value) / "tensorboard"] if base and name else []
    for folder in (*named, *sorted(job_dir.glob("*/tensorboard"))):
        if any(folder.glob("events*")):
            return folder
    return None


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
