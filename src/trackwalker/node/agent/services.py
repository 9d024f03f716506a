"""What runs beside training: recorders, and Ray on the first node. Their failure never stops training."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from trackwalker.job.processes import spawn
from trackwalker.job.whole import write_whole
from trackwalker.node.agent.output import complain
from trackwalker.node.agent.spec import AgentSpec
from trackwalker.node.network.address import LOOPBACK, NoAddress, host_port, serving_address
from trackwalker.node.stages.order import Seat

_LOOK_S = 1.0
_MOST_RESTARTS = 5
_NOT_INSTALLED = "No module named"
_CLOSE_S = 30.0  # for the last samples to be mirrored


class Services:
    """Keeps them running while the job runs; they end by themselves when it has ended."""

    def __init__(
        self, commands: dict[str, list[str]], job_dir: Path, seat: Seat, say: Callable[[str], None] = complain
    ) -> None:
        job = ["--job-dir", str(job_dir), "--job-id", seat.job_id]
        self._commands = {name: [*argv, *job] for name, argv in commands.items()}
        for name in self._commands:
            if name == "ray" or not seat.is_head:  # a recorder elsewhere lives as long as that node's agent
                self._commands[name] += ["--node", seat.host]
        self._job_dir, self._say = job_dir, say
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._restarts = dict.fromkeys(commands, 0)
        self._stop = threading.Event()

    def start(self) -> None:
        """Start them, and watch them from a thread."""
        for name in self._commands:
            self._spawn(name)
        if self._running:
            threading.Thread(target=self._watch, name="services", daemon=True).start()

    def close(self, seconds: float = _CLOSE_S) -> None:
        """The run has ended: wait until they have put everything away."""
        self._stop.set()
        deadline = time.monotonic() + seconds
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_S):
            for name, process in list(self._running.items()):
                # Exit code 0 means that it gave up by itself, or that the run has ended.
                if process.poll() in (None, 0):
                    continue
                self._restarts[name] += 1
                said = self._last_words(name)
                if _NOT_INSTALLED in said:
                    python = self._commands[name][0]
                    said = f"trackwalker is not installed for {python} here (an image needs it to be recorded)"
                elif self._restarts[name] <= _MOST_RESTARTS:
                    self._spawn(name)
                    continue
                del self._running[name]
                self._say(f"[WARN] no {name}: {said or 'it ends at once'}; training goes on without it")

    def _last_words(self, name: str) -> str:
        with contextlib.suppress(OSError):
            lines = self._log(name).read_text(errors="replace").strip().splitlines()
            return lines[-1].strip() if lines else ""
        return ""

    def _log(self, name: str) -> Path:
        return self._job_dir / "agent" / f"{name}.log"

    def _spawn(self, name: str) -> None:
        try:
            self._running[name] = spawn(self._commands[name], self._log(name))
        except OSError as e:
            self._say(f"[WARN] no {name}: {self._commands[name][0]}: {e.strerror}; training goes on without it")


# The agent's own small files in the job directory; a disk that is full is complained about once for each file.
class SmallFiles:
    """Files that readers see old or new, never half."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unwritable: set[str] = set()

    def replace(self, name: str, text: str) -> bool:
        """Write a file; False when it cannot be written now."""
        try:
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        except OSError as e:
            if name not in self._unwritable:
                complain(f"cannot write {name}: {e.strerror}")
            self._unwritable.add(name)
            return False
        self._unwritable.discard(name)
        return True


def address_of(spec: AgentSpec) -> str:
    """Loopback where the whole job is on this machine; else an address that the first node reaches."""
    wanted = spec.listen or os.environ.get("TRACKWALKER_LISTEN", "")
    here = len(spec.ranks) == spec.world or (not spec.owns and spec.nodes == 1)
    if not wanted and here:
        return LOOPBACK
    coordinator = spec.ranks[0].env.get("JAX_COORDINATOR_IP", "") if spec.ranks else ""
    try:
        return serving_address(wanted, coordinator)
    except NoAddress as e:
        complain(f"{e}; until then metrics are served on loopback, for a recorder on this node only")
        return LOOPBACK


def announce(spec: AgentSpec, files: SmallFiles, address: str, port: int, path: str) -> None:
    """A file for each node: on a shared file system they would write over each other's."""
    labels = {"job_id": spec.job_id, "__metrics_path__": path}
    targets = [{"targets": [host_port(address, port)], "labels": labels}]
    files.replace(f"targets/{spec.node}.json", json.dumps(targets))
