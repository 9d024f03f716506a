"""The verdict that was saved with a job is a fact of the job, as its log is: a look that sees less does not replace it.

Evidence goes. A recording is the first to be removed for want of space, a job is copied without it, and a store that
was asked once (`--metrics`) is not at hand later. A verdict from what is left knows less, whatever it says, so the
saved one stands, and what the later look says is noted in it. With the same evidence the later look stands: it may know
more causes, and it may take back what was claimed too much. So evidence is compared here, and never outcomes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from trackwalker.diagnose.verdict import DataQuality, Verdict, Window
from trackwalker.diagnose.views.asked import Diagnosis
from trackwalker.diagnose.views.story import onsets
from trackwalker.job.layout import Job
from trackwalker.job.whole import open_regular
from trackwalker.record.status import Status

NAME = "verdict.json"
NOTE = "evidence-complete"  # the check that tells of the other verdict
_UNDER_WAY: tuple[Status, ...] = ("running", "initialising")
_LARGEST = 32 << 20
_CLIP = 300


def place_of(job: Job) -> Path | None:
    """Where a job's verdict is saved; None for a job without a directory."""
    return job.dir / NAME if job.dir is not None else None


def saved_verdict(job: Job, inside: Callable[[Path], bool] = lambda path: True) -> Verdict | None:
    """The verdict that `diagnose --save` left in the job directory; it may be older than the evidence.

    None where there is none, it is of another version or half written, or lies elsewhere than its reader may look.
    """
    path = place_of(job)
    if path is None or not path.exists() or not inside(path):
        return None
    try:
        with open_regular(path) as file:
            held = os.fstat(file.fileno())
            # Whose job it is may say so, and we: what a third user put there decides nothing.
            if held.st_size > _LARGEST or held.st_uid not in (0, os.geteuid(), path.parent.stat().st_uid):
                return None
            return _bare(Verdict.model_validate_json(file.read()))
    except (OSError, ValidationError, ValueError):
        return None


def lacking(made: Verdict, saved: Verdict) -> str:
    """What a verdict made now did not see of what the saved one was made from; empty where it saw all of it."""
    if saved.cost.queries and not made.cost.queries:
        return "the metrics that it was made from are not here any more"
    onsets = [cause.onset.time for cause in saved.roots if cause.onset is not None and cause.onset.time]
    gone = [onset for onset in onsets if _within(onset, saved.window) and _within(onset, made.window) is False]
    return f"what was recorded at the moment that it is about ({gone[0]}) is not here any more" if gone else ""


def standing(made: Verdict, saved: Verdict | None) -> Verdict:
    """The verdict that holds of the two, with a note of the other where evidence was lost between them."""
    missing = lacking(made, saved) if saved is not None else ""
    if saved is None or not missing:
        return made
    if saved.status in _UNDER_WAY and made.status not in _UNDER_WAY:
        # It ended meanwhile: the saved verdict is not its last word either.
        return _noted(made, f"a verdict saved while it ran says: {_said(saved)}; {missing}")
    says = f"this verdict was saved with the job, and {missing}; what is left alone says: {_said(made)}"
    return _noted(saved, says)


def standing_diagnosis(made: Diagnosis, saved: Verdict | None) -> Diagnosis:
    """A diagnosis with the verdict that holds and its onsets; the rest of its story is of what is at hand."""
    verdict = standing(made.verdict, saved)
    marks = (*onsets(verdict.causes), *(mark for mark in made.story.marks if mark.kind != "onset"))
    return replace(made, verdict=verdict, story=replace(made.story, marks=marks))


def note_of(verdict: Verdict) -> str:
    """What a verdict says of the other one; empty where there is none."""
    return next((check.says for check in verdict.data_quality if check.check == NOTE), "")


def _said(verdict: Verdict) -> str:
    text = " ".join(verdict.summary.split()).rstrip(".")
    return f'"{text if len(text) <= _CLIP else text[: _CLIP - 1] + "…"}"'


def _noted(verdict: Verdict, says: str) -> Verdict:
    note = DataQuality(check=NOTE, ok=False, says=says)
    return verdict.model_copy(update={"data_quality": [note, *_bare(verdict).data_quality]})


def _bare(verdict: Verdict) -> Verdict:
    """Without such a note: saved again, it would tell of a look that is over."""
    return verdict.model_copy(update={"data_quality": [c for c in verdict.data_quality if c.check != NOTE]})


def _within(moment: str, window: Window) -> bool | None:
    """Whether a moment lies in a window; None where that is not known."""
    if window.start is None or window.end is None:
        return None
    try:
        first, at, last = map(datetime.fromisoformat, (window.start, moment, window.end))
        return first <= at <= last
    except (ValueError, TypeError):
        return None
