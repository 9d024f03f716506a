"""Work shared out to processes of our own that import only what that work needs.

multiprocessing would start each of them with the whole command line's modules: a second of CPU time for each one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from trackwalker.errors import EvidenceError, TrackwalkerError

Share = TypeVar("Share")
Result = TypeVar("Result")


def share_out(work: Callable[[Share], Result], shares: Sequence[Share]) -> list[Result]:
    """`work` (a function of a module) for each share, each in a process of its own; their results, in order."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    argv = [sys.executable, "-m", __name__]
    children: list[subprocess.Popen[bytes]] = []
    try:
        for _ in shares:
            children.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env))
        asked = [pickle.dumps((work.__module__, work.__name__, share)) for share in shares]
        with ThreadPoolExecutor(max(1, len(children))) as pool:
            answers = list(pool.map(lambda each: each[0].communicate(each[1])[0], zip(children, asked, strict=True)))
    finally:
        for child in children:
            child.kill()
            child.wait()
    return [_result(answer) for answer in answers]


_ENDED = "a process that read a part of it was ended: is there enough memory?"
_LOOK_S = 0.5  # how often a process looks whether it is still wanted


def copies_of(*modules: str) -> None:
    """Have the processes of `apart` be copies of one that has imported these modules: none of them imports anew."""
    from multiprocessing import forkserver

    forkserver.set_forkserver_preload(list(modules))
    forkserver.ensure_running()


def apart(
    work: Callable[..., Result], *args: Any, nice: int = 0, given_up: Callable[[], bool] = lambda: False
) -> Result:
    """`work` (a function of a module) in a process of its own, for a server: its threads answer others meanwhile.

    Python runs one thread at a time, and whoever waits for a chart would wait for the diagnosis, too. Once it is
    `given_up` it is ended.
    """
    from multiprocessing import get_context  # here, as a share of `share_out` needs none of it

    context = get_context("forkserver")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_tell, args=(there, nice, work, args), daemon=True)
    try:
        with here:
            try:
                child.start()
            except (OSError, EOFError):  # no process can be had: slower, and the same
                return work(*args)
            finally:
                there.close()
            while not here.poll(_LOOK_S):
                if given_up():
                    raise EvidenceError("it was given up: it took too long, or the server ends")
            fine, result = here.recv()
    except EOFError as e:
        raise EvidenceError(_ENDED) from e
    finally:
        if child.pid is not None:
            child.terminate()
            child.join()
    if not fine:
        raise result
    return result  # type: ignore[no-any-return]


def _tell(pipe: Any, nice: int, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    import threading

    os.nice(nice)
    gc.freeze()  # what was imported stays
    gc.set_threshold(100_000, 20, 100)  # each collection walks through every label of a large fleet
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the server
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what is open is closed
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
    try:
        answer: tuple[bool, Any] = (True, work(*args))
    except Exception as e:
        answer = (False, e)
    with contextlib.suppress(BrokenPipeError):  # the server is gone
        pipe.send(answer)


def _leave_with(parent: int) -> None:
    """However the server ends, nothing outlives it."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def _result(answer: bytes) -> Any:
    if not answer:
        raise EvidenceError(_ENDED)
    fine, result = pickle.loads(answer)  # noqa: S301  from a child of ours, through a pipe of ours
    if not fine:
        raise result
    return result


def main() -> int:
    """One share: read from standard input, its result written to standard output."""
    gc.disable()  # millions of labels that all live until the end: each collection would walk through them
    module, name, share = pickle.load(sys.stdin.buffer)  # noqa: S301  written by our parent
    try:
        answer = (True, getattr(importlib.import_module(module), name)(share))
    except TrackwalkerError as e:
        answer = (False, e)
    sys.stdout.buffer.write(pickle.dumps(answer))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
