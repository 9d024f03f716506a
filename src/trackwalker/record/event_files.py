"""TensorBoard's event files of a run, in its own directory or in one that it shares with its predecessors."""

from __future__ import annotations

import re
from pathlib import Path

from trackwalker.job.layout import Job
from trackwalker.job.run import load_run
from trackwalker.logs.scanning.index import LogIndex

_EVENT_FILE = re.compile(r"^events\.out\.tfevents\.(\d{9,11})\.([^.]+(?:\.[^.]+)*?)\.\d+\.\d+")
_SLACK_S = 5.0  # a log's last write and an event file's first are dated by different clocks


def event_files(job: Job, index: LogIndex) -> list[Path]:
    """The run's event files: in its directory, or where a checkpointing run shares one with its predecessors."""
    if job.dir is None:
        return []
    # Not everywhere below: dumps and checkpoints can hold a hundred thousand files.
    places = ("tensorboard", "*/tensorboard")
    own = [p for place in places for p in job.dir.glob(f"{place}/events.out.tfevents.*") if p.is_file()]
    if own:
        return sorted(_since_the_beginning(_before_the_end(own, job), job))
    shared = shared_folder(job.dir.parent, index.facts.setting("tensorboard_dir"))
    if shared is None or job.log is None:
        return []
    # Several jobs write here. Ours is on one of our hosts; of those, the newest that began before our log ended.
    ended = job.log.stat().st_mtime
    hosts = {h.split(".")[0] for h in index.facts.hosts}
    mine = []
    for path in shared.glob("events.out.tfevents.*"):
        match = _EVENT_FILE.match(path.name)
        if match and float(match[1]) <= ended and (not hosts or match[2].split(".")[0] in hosts):
            mine.append((float(match[1]), path))
    return [max(mine)[1]] if mine else []


def wandb_files(job: Job) -> list[Path]:
    """W&B's files of the run, in its `wandb` folder."""
    places = ("wandb/*run-*/run-*.wandb", "wandb/wandb/*run-*/run-*.wandb", "wandb/run-*.wandb")
    found = sorted(p for place in places for p in job.dir.glob(place) if p.is_file()) if job.dir is not None else []
    return _since_the_beginning(found, job)


def _since_the_beginning(files: list[Path], job: Job) -> list[Path]:
    """Without those of an earlier run in the same folder: last written before this job began."""
    begun = load_run(job.run_json) if files else None
    return [p for p in files if begun is None or p.stat().st_mtime >= begun.created]


def _before_the_end(files: list[Path], job: Job) -> list[Path]:
    """Without those of a successor that writes on in this job's directory: they began after our log ended."""
    if job.log is None:
        return files
    ended = job.log.stat().st_mtime
    return [p for p in files if not (match := _EVENT_FILE.match(p.name)) or float(match[1]) <= ended + _SLACK_S]


def shared_folder(workspace: Path, setting: str | None) -> Path | None:
    """A path inside the container, found again in the workspace by its tail."""
    parts = [p for p in (setting or "").split("/") if p not in ("", ".", "..")]
    for begin in range(len(parts)):
        folder = workspace.joinpath(*parts[begin:])
        if len(parts) - begin >= 2 and folder.is_dir():
            return folder
    return None
