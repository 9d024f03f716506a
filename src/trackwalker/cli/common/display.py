"""The one-line progress of a run: live on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from trackwalker.diagnose.saved import NAME
from trackwalker.diagnose.views.asked import Diagnosis
from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.job.resolve import list_jobs
from trackwalker.job.whole import write_whole
from trackwalker.report.html import render_html
from trackwalker.report.story.background import background
from trackwalker.watch.detect.live import LiveWatch

_QUIET_EVERY_S = 10.0


# Writing a verdict down, only when asked to.
def save(diagnosis: Diagnosis, job: Job) -> Path:
    """verdict.json and report.html into the job directory; returns the report's path."""
    if job.dir is None:
        raise UsageError(f"{job.label} has no job directory to save into; use --html FILE")
    write_text(job.dir / NAME, diagnosis.verdict.to_json() + "\n")
    return write_html(diagnosis, job, job.dir / "report.html")


def write_html(diagnosis: Diagnosis, job: Job, path: Path) -> Path:
    """The self-contained HTML report: the verdict, its pictures, and what a reader without the job would miss."""
    place = job.dir or job.log
    others = list_jobs(place.parent) if place is not None else []
    more = background(job, diagnosis.verdict, others)
    return write_text(path, render_html(diagnosis.verdict, diagnosis.story, more))


def write_text(path: Path, text: str) -> Path:
    """The whole text or nothing."""
    try:
        write_whole(path, text)
    except OSError as e:
        raise UsageError(f"cannot write {path}: {e.strerror}") from e
    return path


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
