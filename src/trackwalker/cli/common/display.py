"""The one-line progress of a run: live on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from trackwalker.watch.detect.live import LiveWatch

_QUIET_EVERY_S = 10.0


class ProgressLine:
    """Shows step, speed and loss of a run that is being followed."""

    def __init__(self, total: int | None, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._total = total
        self._said = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=self._console, transient=True
        )
        self._task = self._bar.add_task("starting", total=total)

    def __enter__(self) -> ProgressLine:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:  # elsewhere it would still end with an empty line
            self._bar.stop()

    def show(self, watch: LiveWatch) -> None:
        """Draw the current state."""
        step, seconds = watch.last_step, watch.step_seconds
        text = watch.phase if step is None else f"step {step}" + (f"/{self._total}" if self._total else "")
        if seconds is not None:
            text += f"  {seconds:.2f} s/step"
        if step is not None and step in watch.losses:
            text += f"  loss {watch.losses[step]:.3f}"
        if self._console.is_terminal:
            self._bar.update(self._task, description=text, completed=step or 0)
        elif time.monotonic() - self._said > _QUIET_EVERY_S:
            self._said = time.monotonic()
            self._console.print(text, highlight=False, markup=False)

    def say(self, text: str) -> None:
        """Print a line above the progress; never broken, because it may be a command to copy."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
