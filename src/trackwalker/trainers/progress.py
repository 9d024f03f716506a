"""A rank's own account of its progress: one journal line for each step and each change of phase.

The agent names the file in TRACKWALKER_PROGRESS, adds rank and host as it knows them, and makes metrics of the records.
A step: phase "train", step, seconds, and where known loss, grad_norm, tokens_per_s, tflops, mfu (of 1), data_wait_s.
Other phases (init, compile, restore, checkpoint, eval, capture): state "begin" and "end", seconds at the end. A batch
that does not come: "data_wait", state "begin"; the step that gets it ends it. Last of all: "done".
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

from trackwalker.job.journal import Journal


def warn(line: str) -> None:
    """Print one warning line to stderr; where even that is on a full disk, say nothing."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"warning: {line}\n")
        sys.stderr.flush()


class Progress:
    """This rank's progress journal. Training goes on when it cannot be written."""

    def __init__(self, path: str, rank: int, host: str) -> None:
        self._origin = {"rank": rank, "host": host}
        self._journal: Journal | None = None
        self._warned = False
        if path:
            try:
                self._journal = Journal(path)
            except OSError as error:
                self._warn_once(error)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody asked for records, and they can be written."""
        return self._journal is not None

    def record(self, phase: str, **fields: Any) -> None:
        """Append one record; a failure is reported once and then contained."""
        if self._journal is None:
            return
        try:
            self._journal.append({"t": time.time(), **self._origin, "phase": phase, **fields})
        except Exception as error:  # whatever it is, it is not worth the run
            self._warn_once(error)

    def close(self) -> None:
        """Close the journal."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _warn_once(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            warn(f"progress is not recorded ({error}); training goes on")
