"""The end of a container: bounded even when the runtime hangs, and never somebody else's."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from trackwalker.job.processes import alive, marked_members, read_stat
from trackwalker.node.runtimes.container import MARK, OrderError, Runtime
from trackwalker.node.sensors.commands import ask

# Slurm kills what is left 30 s after its TERM (KillWait): all of this has to fit well inside.
STOP_BUDGET_S = 15.0
GRACE_S = 5.0
_ANSWER_S = 2.0  # for every command of the runtime that should take no time
_DIE_S = 1.5


@dataclass(frozen=True)
class Stopped:
    """How a container ended: by the runtime, by signals, or that it was not there."""

    how: str
    left: tuple[int, ...] = ()  # processes that not even KILL ended: they wait in the kernel


def own_containers(runtime: Runtime, job_id: str, timeout_s: float) -> list[str] | None:
    """The names of the job's containers on this machine; None when the runtime does not say."""
    argv = runtime.list_own_argv(job_id)
    if not argv:
        return []
    answer = ask(argv, timeout_s)
    return answer.output.split() if answer.code == 0 else None


def remove_stale(runtime: Runtime, job_id: str, name: str) -> bool:
    """Before a start: remove our own container of that name, which an earlier attempt left; True when there was one."""
    names = own_containers(runtime, job_id, timeout_s=10.0)
    if names is None:
        raise OrderError(f"{runtime.name} does not answer: look at '{runtime.name} ps' on this node")
    if name not in names:
        return False
    answer = ask(runtime.remove_argv(name), STOP_BUDGET_S)
    if answer.code != 0:
        raise OrderError(f"the old container {name} cannot be removed: {answer.error.strip()}")
    return True


def stop_container(runtime: Runtime, job_id: str, name: str, grace_s: float = GRACE_S) -> Stopped:
    """End one container of the job within `STOP_BUDGET_S` at the usual grace, whatever the runtime does about it."""
    marked = _Marked(name)
    if not runtime.list_own_argv(job_id):  # no service owns it: nobody but us can say TERM
        marked.end(signal.SIGTERM, grace_s)
        return Stopped("by signals", marked.end(signal.SIGKILL, _DIE_S))
    names = own_containers(runtime, job_id, _ANSWER_S)
    if names is not None and name not in names:
        return Stopped("was not there")  # or it is somebody else's
    if names and _by_runtime(runtime, name, grace_s):
        return Stopped(f"by {runtime.name}", marked.end(signal.SIGKILL, _DIE_S))
    left = marked.end(signal.SIGKILL, _DIE_S)
    if names:  # its name has to be free for the next start
        ask(runtime.remove_argv(name), _ANSWER_S)
    return Stopped("by signals", left)


def stop_containers(runtime: Runtime, job_id: str, names: Sequence[str], grace_s: float = GRACE_S) -> list[Stopped]:
    """End several at the same time: a node's eight take no longer than one."""
    if not names:
        return []
    with ThreadPoolExecutor(len(names)) as workers:
        return list(workers.map(lambda name: stop_container(runtime, job_id, name, grace_s), names))


def _by_runtime(runtime: Runtime, name: str, grace_s: float) -> bool:
    if ask(runtime.stop_argv(name, int(grace_s)), grace_s + _ANSWER_S).code == 0:
        return True
    return ask(runtime.kill_argv(name), _ANSWER_S).code == 0


class _Marked:
    """The processes of a container that we may see, by the mark in their environment: no runtime is asked."""

    def __init__(self, name: str) -> None:
        self._mark = f"{MARK}={name}".encode()
        self._seen: dict[int, int] = {}  # with start times: one that hangs in the kernel later is remembered

    def end(self, number: int, seconds: float) -> tuple[int, ...]:
        """Signal them until they are gone or the time is up; returns who is left."""
        until = time.monotonic() + seconds
        told: set[int] = set()
        while True:
            for pid in marked_members(self._mark, 0):
                stat = read_stat(pid)
                if stat is not None and pid != os.getpid():
                    self._seen[pid] = stat.start
            left = [pid for pid, start in self._seen.items() if alive(pid, start)]
            for pid in left:
                if pid not in told:
                    told.add(pid)
                    with contextlib.suppress(OSError):
                        os.kill(pid, number)
            if not left or time.monotonic() > until:
                return tuple(left)
            time.sleep(0.05)
