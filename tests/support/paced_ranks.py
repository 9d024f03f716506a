"""Ranks that only keep a pace, so that what a test does to the machine around them is all there is to find."""

from __future__ import annotations

import sys
from pathlib import Path

_PROGRAM = """
import os, sys, time
from pathlib import Path
from trackwalker.trainers.progress import Progress
pace, rank = Path(sys.argv[1]), int(os.environ.get("NODE_RANK") or 0)
progress = Progress(os.environ.get("TRACKWALKER_PROGRESS", ""), rank, os.environ.get("TRACKWALKER_HOST", ""))
print("Config param steps: 100000", flush=True)
step, due = 0, time.monotonic()
while (words := pace.read_text().split()) and words[0] != "end":
    seconds = float(words[0])
    due += seconds
    time.sleep(max(0.0, due - time.monotonic()))
    rate = 100 / seconds
    print(f"completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: 1.0, Tokens/s/device: {rate:.1f},"
          " total_weights: 8, loss: 1.0", flush=True)
    progress.record("train", step=step, seconds=seconds, loss=1.0, tokens_per_s=rate)
    step += 1
"""


class Pace:
    """How long a step of all ranks takes: a file that they read before each."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._path = folder / "pace"
        self.set(seconds)
        self.argv = [sys.executable, "-c", _PROGRAM, str(self._path)]

    def set(self, seconds: float) -> None:
        """From the next step on."""
        self._write(f"{seconds}")

    def end(self) -> None:
        """No further step."""
        self._write("end")

    def _write(self, text: str) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._path)
