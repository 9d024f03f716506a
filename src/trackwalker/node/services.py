"""What runs beside training on the first node: the recorder, Ray. Its failure never stops training."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from pathlib import Path

from trackwalker.node.output import complain

_LOOK_S = 1.0
_MOST_RESTARTS = 5
_CLOSE_S = 30.0  # for the last samples to be mirrored


class Services:
    """Keeps them running while the job runs; they end by themselves when it has ended."""

    def __init__(self, commands: dict[str, list[str]], job_dir: Path, job_id: str) -> None:
        self._commands = {
            name: [*argv, "--job-dir", str(job_dir), "--job-id", job_id] for name, argv in commands.items()
        }
        self._job_dir = job_dir
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._restarts = dict.fromkeys(commands, 0)
        self._stop = threading.Event()

    def start(self) -> None:
        """Start them, and watch them from a thread."""
        for name in self._commands:
            self._spawn(name)
        if self._running:
            threading.Thread(target=self._watch, name="services", daemon=True).start()

    def close(self) -> None:
        """The run has ended: wait until they have put everything away."""
        self._stop.set()
        deadline = time.monotonic() + _CLOSE_S
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_S):
            for name, process in list(self._running.items()):
                # Exit code 0 means that it gave up by itself, or that the run has ended.
                if process.poll() not in (None, 0) and self._restarts[name] < _MOST_RESTARTS:
                    self._restarts[name] += 1
                    self._spawn(name)

    def _spawn(self, name: str) -> None:
        log = self._job_dir / "agent" / f"{name}.log"
        try:
            with log.open("ab") as out:
                self._running[name] = subprocess.Popen(
                    self._commands[name], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
                )
        except OSError as e:
            complain(f"cannot start the {name}: {e.strerror}; training goes on without it")
