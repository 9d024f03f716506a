"""The word `srun` in a user's own script: the real srun with `trackwalker record --` before its command.

Where the command begins only srun's own grammar says. A word that is not understood, and what is no training (`srun
hostname`), is passed on as it is: rather not recorded than changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# Short options that take a value, and those that do not; long ones without a value of their own (all others have one).
_VALUED = set("AbBcCdDeGiJLmMnNopPqrRStTUwWxz")
_BARE = set("EhHlOQsuvVXZ")
_ATTACHED = set("IkK")  # with a value only where it is attached
_LONG_BARE = frozenset(
    (
        "contiguous", "disable-status", "exact", "exclusive", "hold", "immediate", "interactive", "kill-on-bad-exit",
        "label", "no-kill", "nvmps", "overcommit", "overlap", "oversubscribe", "preserve-env", "quiet",
        "quit-on-interrupt", "reboot", "send-libs", "share", "spread-job", "stepmgr", "unbuffered", "use-min-nodes",
        "verbose", "whole", "x11",
    )
)  # fmt: skip
_NOT_OURS = frozenset(("multi-prog", "pty", "test-only", "version", "help", "usage", "no-allocate"))
_SMALL = frozenset(
    (
        "hostname", "true", "false", "echo", "sleep", "date", "printenv", "id", "ls", "cat", "cp", "mv", "rm",
        "mkdir", "chmod", "ln", "tar", "rsync", "df", "du", "free", "uptime", "nproc", "lscpu", "nvidia-smi",
        "rocm-smi",
        "amd-smi", "ibstat", "ibstatus", "ip", "ping", "pkill", "kill", "sync", "touch", "trackwalker",
    )
)  # fmt: skip


def command_at(words: Sequence[str]) -> int | None:
    """Where the command begins; None where it has none, or nobody can say."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return at + 1 if at + 1 < len(words) else None
        if word in (":", "-"):
            return None  # heterogeneous steps
        if word.startswith("--"):
            name, attached, _ = word[2:].partition("=")
            if name in _NOT_OURS:
                return None
            at += 1 if attached or name in _LONG_BARE else 2
        elif word.startswith("-"):
            step = _short(word[1:])
            if step is None:
                return None
            at += step
        else:
            return at
    return None


def _short(letters: str) -> int | None:
    """How many words a cluster of short options takes."""
    for position, letter in enumerate(letters):
        if letter in _VALUED:
            return 1 if position + 1 < len(letters) else 2
        if letter in _ATTACHED:
            return 1
        if letter not in _BARE:
            return None
    return 1


def recorded(words: Sequence[str]) -> list[str]:
    """srun's words with the recording before the command; the same words where it is not for us."""
    at = command_at(words)
    if at is None or words[at].rpartition("/")[2] in _SMALL or ":" in words[at:]:
        return list(words)
    return [*words[:at], sys.executable, "-m", "trackwalker", "record", "--", *words[at:]]


if __name__ == "__main__":
    os.execvp(sys.argv[1], [sys.argv[1], *recorded(sys.argv[2:])])  # noqa: S606
