"""Commands of the machine, asked without a terminal, without a password and with a time limit."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence

_TIMEOUT_S = 10.0

Command = Callable[[Sequence[str]], "str | None"]


def output(argv: Sequence[str], timeout: float = _TIMEOUT_S) -> str | None:
    """What a command printed; None when it is not there, failed, or took too long."""
    if shutil.which(argv[0]) is None:
        return None
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout,
            check=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


def as_root(command: Command, argv: Sequence[str]) -> str | None:
    """The same, with `sudo -n` when the command alone says nothing: sudo must never ask for a password here."""
    return command(argv) or command(["sudo", "-n", *argv])
