"""Work shared out to processes of our own that import only what that work needs.

multiprocessing would start each of them with the whole command line's modules: a second of CPU time for each one.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import subprocess
import sys
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


def _result(answer: bytes) -> Any:
    if not answer:
        raise EvidenceError("a process that read a part of it was ended: is there enough memory?")
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
