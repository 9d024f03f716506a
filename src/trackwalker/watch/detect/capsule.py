"""Ask a job's nodes for their evidence, and read what they answered: the job directory is all there is between us."""

from __future__ import annotations

import json
import time
from pathlib import Path

from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.job.run import load_run
from trackwalker.job.whole import write_whole
from trackwalker.node.evidence.capsule import NAME, REQUESTS, STACKS
from trackwalker.record.capsules import Capsule, read_capsule

PATIENCE_S = 35.0  # for nodes that have not answered: they have 20 s, and a file server takes its time
_VERSION = 1

__all__ = ["PATIENCE_S", "Capsule", "collected", "request"]


def request(job: Job, incident_id: str, pause: bool = True) -> None:
    """Ask every node once; `pause` lets py-spy hold a rank for a moment, which only a run that hangs should pay."""
    path = _folder(job, incident_id) / REQUESTS / f"{incident_id}.json"
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"v": _VERSION, "t": time.time(), "pause": pause}))


def collected(job: Job, incident_id: str, patience_s: float = PATIENCE_S) -> Capsule | None:
    """What the nodes answered: once all have, or when they have had their time; None until then."""
    job_dir = _folder(job, incident_id)
    asked = job_dir / REQUESTS / f"{incident_id}.json"
    try:
        since = time.time() - asked.stat().st_mtime
    except OSError:
        return None  # nobody asked
    folder = job_dir / STACKS / incident_id
    expected = _nodes(job)
    found = read_capsule(folder, expected)
    if found is not None and not found.missing and expected:
        return found
    if since < patience_s:
        return None
    return found or Capsule(incident_id, folder, asked.stat().st_mtime, 0, "", (), (), expected)


def wait(job: Job, incident_id: str, limit_s: float = PATIENCE_S + 5.0) -> Capsule | None:
    """The same for whoever has nothing else to do meanwhile."""
    deadline = time.monotonic() + limit_s
    while (found := collected(job, incident_id)) is None and time.monotonic() < deadline:
        time.sleep(0.25)
    return found


def _folder(job: Job, incident_id: str) -> Path:
    if job.dir is None:
        raise UsageError(f"job {job.id} has no directory, so its nodes cannot be asked for evidence")
    if not NAME.fullmatch(incident_id):
        raise UsageError(f"'{incident_id}' is no name for an incident: letters, digits, dot, dash, up to 80")
    return job.dir


def _nodes(job: Job) -> tuple[str, ...]:
    record = load_run(job.run_json)
    return tuple(dict.fromkeys(place.node for place in record.ranks)) if record else ()
