"""A rank that can be asked where it stands: faulthandler on a signal, and a note that tells the agent so.

The agent asks only who left such a note, and only while the handler is in place. Whoever does not import this file is
never signalled. Standard library only and Python 3.9 syntax: the agent's zipapp carries this file for MaxText.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
from pathlib import Path

from trackwalker.job.whole import write_whole

SIGNAL = signal.SIGUSR2  # SIGUSR1 is what schedulers warn with
_SUFFIX = ".progress.jsonl"


def listen(progress_path: str) -> bool:
    """Write every thread's stack into a file when the agent asks; False where nobody will, or it cannot be done."""
    if not progress_path.endswith(_SUFFIX):
        return False
    place = progress_path[: -len(_SUFFIX)]
    answers, note = Path(f"{place}.stack.txt"), Path(f"{place}.stack.json")
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # a stack is not worth the run
        out = os.open(str(answers), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        faulthandler.register(SIGNAL, file=out, all_threads=True, chain=False)
        start = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
        said = {"v": 1, "pid": os.getpid(), "start": start, "signal": int(SIGNAL), "file": answers.name}
        write_whole(note, json.dumps(said))
        return True
    return False
