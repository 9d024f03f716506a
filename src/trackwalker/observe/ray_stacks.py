"""Stacks of the training processes in Ray's dashboard.

Ray asks py-spy about its own worker. For its processes alone, a small script stands before py-spy and asks about the
rank that the worker stands for instead.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from trackwalker.job.whole import write_whole

_SCRIPT = """#!/bin/sh
before=
for word; do
  shift
  case $before in
    -p | --pid) [ -r {ranks}/"$word" ] && word=$(cat {ranks}/"$word") ;;
  esac
  set -- "$@" "$word"
  before=$word
done
exec {pyspy} "$@"
"""


def find_pyspy() -> str | None:
    """The real py-spy: of this environment, else of PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def write_wrapper(folder: Path, ranks: Path, pyspy: str) -> None:
    """Put the script into `folder`, which Ray's processes have first on their PATH."""
    folder.mkdir(exist_ok=True)
    script = folder / "py-spy"
    # Paths stand in the text: under sudo, which Ray uses where it may, no variable of ours would arrive.
    script.write_text(_SCRIPT.format(ranks=shlex.quote(str(ranks)), pyspy=shlex.quote(pyspy)))
    script.chmod(0o755)


def point(ranks: Path, worker: int, training: int) -> None:
    """Have questions about the Ray worker answered with the training process."""
    write_whole(ranks / str(worker), str(training))


def why_no_stacks(training: int) -> str | None:
    """Why py-spy could not look into that process, None if it can; nothing is attached to find out."""
    if find_pyspy() is None:
        return "py-spy is not installed: pip install 'trackwalker[ray]'"
    try:
        # Opening another process's memory passes the same kernel checks as attaching to it.
        os.close(os.open(f"/proc/{training}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        return (
            "the kernel forbids looking into other processes (ptrace): allow it with "
            "sysctl kernel.yama.ptrace_scope=0, or give the container CAP_SYS_PTRACE"
        )
    except OSError:
        return None  # it has just ended: no evidence either way
    return None
