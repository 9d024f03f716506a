"""What the trainer says: MaxText's log lines on stdout, and this rank's progress journal."""

from __future__ import annotations

import sys
import time
from typing import Any

from trackwalker.job.journal import Journal


def say(line: str) -> None:
    """Print one line in one write, so that native libraries and sibling ranks do not cut into it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def warn(line: str) -> None:
    """Print one warning line to stderr."""
    sys.stderr.write(f"warning: {line}\n")
    sys.stderr.flush()


def step_line(step: int, seconds: float, tflops: float, tokens: float, weights: int, loss: float, peak: float) -> str:
    """MaxText's line of a completed step; rates are per device, and MFU is there only when the peak is known."""
    parts = [f"completed step: {step}", f"seconds: {seconds:.3f}", f"TFLOP/s/device: {tflops:.3f}"]
    if peak > 0:
        parts.append(f"MFU: {100 * tflops / peak:.2f}%")
    parts += [f"Tokens/s/device: {tokens:.3f}", f"total_weights: {weights}", f"loss: {loss:.3f}"]
    return ", ".join(parts)


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
