"""What the trainer says on stdout: MaxText's log lines."""

from __future__ import annotations

import contextlib
import sys


def say(line: str) -> None:
    """Print one line in one write, so that native libraries and sibling ranks do not cut into it.

    On a full disk the line is lost, and training goes on.
    """
    with contextlib.suppress(OSError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def step_line(step: int, seconds: float, tflops: float, tokens: float, weights: int, loss: float, peak: float) -> str:
    """MaxText's line of a completed step; rates are per device, and MFU is there only when the peak is known."""
    parts = [f"completed step: {step}", f"seconds: {seconds:.3f}", f"TFLOP/s/device: {tflops:.3f}"]
    if peak > 0:
        parts.append(f"MFU: {100 * tflops / peak:.2f}%")
    parts += [f"Tokens/s/device: {tokens:.3f}", f"total_weights: {weights}", f"loss: {loss:.3f}"]
    return ", ".join(parts)
