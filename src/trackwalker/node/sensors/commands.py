"""Commands of the machine: asked without a terminal and with a time limit; one that hangs is ended with all it started.

Nobody waits for one that cannot be ended: a process in the kernel's hands costs its answer, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """What a command said; code None: it hung and was ended."""

    code: int | None
    output: str
    error: str
    unstarted: str = ""  # why it could not even be started


def ask(argv: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None) -> Answer:
    """Run a short command in a session of its own."""
    try:
        process = subprocess.Popen(
            list(argv), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
    except OSError as e:
        why = e.strerror or str(e)
        return Answer(127, "", f"{argv[0]}: {why}", why)
    try:
        output, error = process.communicate(timeout=timeout_s)
        return Answer(process.returncode, output.decode("utf-8", "replace"), error.decode("utf-8", "replace"))
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):  # sudo's, which is root's
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        return Answer(None, "", f"{' '.join(argv[:2])} gave no answer within {timeout_s:g} s")
