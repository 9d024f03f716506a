"""Commands of the machine, asked without a terminal, without a password and with a time limit."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence

_TIMEOUT_S = 10.0
_END_S = 1.0

Command = Callable[[Sequence[str]], "str | None"]


def output(argv: Sequence[str], timeout: float = _TIMEOUT_S) -> str | None:
    """What a command printed; None when it is not there, failed, or took too long."""
    if shutil.which(argv[0]) is None:
        return None
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError:
        return None
    try:
        text, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _end(process)
        return None
    return text.decode("utf-8", "replace") if process.returncode == 0 else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and what it started itself, which would outlive it; nobody waits for one that cannot be ended."""
    with contextlib.suppress(OSError):  # sudo's, which is root's
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    if process.stdout is not None:
        process.stdout.close()


def as_root(command: Command, argv: Sequence[str]) -> str | None:
    """The same, with `sudo -n` when the command alone says nothing: sudo must never ask for a password here."""
    return command(argv) or command(["sudo", "-n", *argv])
