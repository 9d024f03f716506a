"""Writing a verdict down, only when asked to."""

from __future__ import annotations

from pathlib import Path

from trackwalker.diagnose.saved import NAME
from trackwalker.diagnose.views.asked import Diagnosis
from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.job.resolve import list_jobs
from trackwalker.job.whole import write_whole
from trackwalker.report.html import render_html
from trackwalker.report.story.background import background


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
