"""Who stays when a node's agent dies: ends what it left behind on the node, and tells the others.

The scheduler starts this process, and it starts the agent. It knows nothing of training, holds no log and serves
nothing, so there is little that could end it; what the agent starts, however far it forks, is never out of its sight.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable

from trackwalker.job.processes import all_pids, read_bytes, read_stat
from trackwalker.node.stages.order import Order, Seat

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_GRACE_S = 5.0  # for what the agent left behind: a recorder has samples to put away
_LOOK_S = 0.05
_SAID = b"."  # the agent came to its end and reported


def keep(order: Order, seat: Seat, work: Callable[[], int]) -> int:
    """Run `work` in a process of its own; the exit code is its own, or, if it died, that of the job it left behind."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    told, tell = os.pipe()
    agent = os.fork()
    if agent == 0:
        os.close(told)
        _work(work, tell)
    os.close(tell)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: _send(agent, number))
    for number in (signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda number, frame: None)
    began = time.time()
    status = _reap(agent)
    with os.fdopen(told, "rb") as said:
        reported = said.read(1) == _SAID
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    if reported:
        end_descendants()
        return code
    from trackwalker.node.agent.dead_agent import speak_for  # only now: a keeper that is not needed stays small

    return speak_for(order, seat, code, began, end_descendants)


def end_descendants(grace_s: float = _GRACE_S) -> None:
    """End every process below this one: told first, killed after the grace."""
    number, deadline = signal.SIGTERM, time.monotonic() + grace_s
    told: set[int] = set()
    while left := descendants(os.getpid()):
        if time.monotonic() > deadline:
            if number == signal.SIGKILL:
                return  # in the kernel's hands; it cannot be ended from here
            number, deadline, told = signal.SIGKILL, time.monotonic() + grace_s, set()
        for pid in left - told:
            _send(pid, number)
            _send(pid, signal.SIGCONT)
        told |= left
        _bury()
        time.sleep(_LOOK_S)


def descendants(ancestor: int) -> set[int]:
    """Living processes below a process; what was orphaned among them is below the nearest reaper."""
    parents = {}
    for pid in all_pids():
        stat = read_stat(pid)
        if stat is not None and stat.state not in "ZX":
            raw = read_bytes(f"/proc/{pid}/stat") or b""
            words = raw[raw.rfind(b")") + 2 :].split()
            parents[pid] = int(words[1]) if len(words) > 1 else 0
    found: set[int] = set()
    new = {ancestor}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found - {ancestor}


def _work(work: Callable[[], int], tell: int) -> None:
    code = 1
    try:
        code = work()
        os.write(tell, _SAID)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)


def _reap(agent: int) -> int:
    """Wait for the agent; orphans that come to us are buried on the way."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == agent:
            return status


def _bury() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)
