"""The newest jobs of a workspace of any size: by its names, and only those few are looked into."""

from __future__ import annotations

from pathlib import Path

from trackwalker.fleet.scan import resolved, scan
from trackwalker.job.layout import LOG_SUFFIXES, Job


def newest(root: Path, count: int, since: float = 0.0, skipped: list[str] | None = None) -> tuple[list[Job], int]:
    """So many jobs, the one that was written last first, those without a log before them; and how many more there are.

    A directory without a log and without a run.json is no job (a shared folder of checkpoints): it is not counted
    unless it looks like one from outside.
    """
    seen = {name: each for name, each in scan(root).items() if each.changed >= since}
    waiting = [name for name, each in seen.items() if not any(part.endswith(LOG_SUFFIXES) for part in each.names)]
    found = resolved(root, seen, waiting, skipped)
    order = sorted(
        (name for name in seen if name not in set(waiting)), key=lambda n: (seen[n].changed, n), reverse=True
    )
    unlogged = sorted((job for job in found.values() if job.log is None), key=lambda job: job.id, reverse=True)
    logged_elsewhere = {job.id for job in found.values() if job.log is not None}
    written = seen.keys() - set(waiting) | logged_elsewhere
    order = sorted(written, key=lambda name: (seen[name].changed, name), reverse=True)
    left = max(count - len(unlogged), 0)
    shown = resolved(root, seen, order[:left], skipped)
    logged = [shown[name] for name in order[:left] if name in shown]
    return [*unlogged, *logged][:count], max(len(unlogged) + len(order) - count, 0)
