"""What a fault must put back, written down before it is done: even a killed injector can be cleaned up after."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.job.processes import alive, read_stat
from trackwalker.job.whole import write_whole

_COMMAND_S = 20.0


class NotHereError(UsageError):
    """This machine cannot make that fault: a right, a tool or a part of the kernel is missing."""


class Undo:
    """The steps back from one fault, last done first undone; `path` keeps them while the fault lasts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._steps: list[list[Any]] = []

    @property
    def abandoned(self) -> bool:
        """Whether the process that began it is gone: else it will undo it by itself."""
        return read_stat(int(self.path.name.split(".")[-2])) is None

    def push(self, verb: str, *args: Any) -> None:
        """Note one step back; call it before the step forward, so that nothing is ever done and not noted."""
        if verb not in _VERBS:
            raise ValueError(f"unknown way back '{verb}'")
        self._steps.append([verb, *args])
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(self.path, json.dumps(self._steps))

    def load(self) -> None:
        """Read the steps that somebody else noted."""
        with contextlib.suppress(OSError, ValueError):
            self._steps = [step for step in json.loads(self.path.read_text()) if step[0] in _VERBS]

    def run(self) -> int:
        """Go all the way back and forget it; returns how many steps that were."""
        count = len(self._steps)
        while self._steps:
            verb, *args = self._steps.pop()
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                _VERBS[verb](*args)
        self.path.unlink(missing_ok=True)
        return count


def pending(job_dir: Path) -> list[Undo]:
    """Faults of a job that were begun and never undone."""
    found = []
    for path in sorted(_folder().glob(f"{job_dir.name}.*.json")):
        undo = Undo(path)
        undo.load()
        found.append(undo)
    return found


def note_for(job_dir: Path, fault: str) -> Undo:
    """Where the steps back from a fault are kept: outside the job directory, which is evidence."""
    return Undo(_folder() / f"{job_dir.name}.{fault}.{os.getpid()}.json")


@contextlib.contextmanager
def guarded(undo: Undo) -> Iterator[None]:
    """Undo it at the end of the block; and if this process is killed, a process that only waits for that undoes it."""
    command = [sys.executable, "-m", __name__, str(undo.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as guard:
        try:
            yield
        finally:
            undo.run()
            if guard.stdin is not None:
                guard.stdin.close()


def _guard(path: Path) -> None:
    sys.stdin.buffer.read()  # ends when whoever began the fault does
    undo = Undo(path)
    undo.load()
    undo.run()


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"trackwalker-lab-{os.getuid()}"


def start_of(pid: int) -> int:
    """The start time that, with the pid, names a process for good."""
    stat = read_stat(pid)
    return stat.start if stat else -1


def set_priority(pid: int, nice: int) -> None:
    """Set the niceness of all threads and of the session's autogroup (where the kernel groups by session)."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))
    try:
        threads = [int(t) for t in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return
    for thread in threads:
        with contextlib.suppress(OSError):  # only root may make a thread more important again
            os.setpriority(os.PRIO_PROCESS, thread, nice)


def _signal(pid: int, start: int, number: int) -> None:
    if alive(pid, start):
        os.kill(pid, number)


def _end(pid: int, start: int) -> None:
    _signal(pid, start, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _renice(pid: int, start: int, nice: int) -> None:
    if alive(pid, start):
        set_priority(pid, nice)


def _write(path: str, text: str) -> None:
    Path(path).write_text(text)


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def _remove_folder(path: str) -> None:
    for _ in range(20):  # a control group is busy until its last process has been reaped
        try:
            Path(path).rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return


def _command(*words: str) -> None:
    subprocess.run(words, capture_output=True, timeout=_COMMAND_S, check=False)


_VERBS: dict[str, Callable[..., None]] = {
    "signal": _signal,
    "end": _end,
    "renice": _renice,
    "write": _write,
    "remove": _remove,
    "remove-folder": _remove_folder,
    "command": _command,
}


if __name__ == "__main__":
    _guard(Path(sys.argv[1]))
