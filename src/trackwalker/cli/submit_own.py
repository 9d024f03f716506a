"""`trackwalker submit --script job.sbatch`: a user's own batch script, queued as it is and recorded."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from trackwalker.errors import MaybeQueuedError, TrackwalkerError, UsageError
from trackwalker.launch.slurm.client import Slurm
from trackwalker.launch.slurm.own_script import name_words, read_script, wrapped, write

_HOW = {
    "tasks": "what its srun lines start is recorded",
    "whole": "it has no srun line: the script is recorded as one command",
    "itself": "it calls trackwalker record itself",
}


def submit_own(
    path: Path, options: list[str], words: list[str], on: str, workspace: Path, dry_run: bool, as_json: bool
) -> int:
    """Queue it; options of the command line are sbatch's, words behind `--` the script's."""
    if on != "slurm":
        raise UsageError("--script is for Slurm: in a pod put 'trackwalker record --' before its command")
    script = read_script(path)
    if dry_run:
        print(wrapped(script, Path("FOLDER"), workspace.absolute(), sys.executable), end="")
        return 0
    batch = write(script, workspace, sys.executable)
    try:
        job = Slurm().submit(batch, [*name_words(script, options), *options], words, own=True)
    except MaybeQueuedError:
        raise
    except TrackwalkerError:
        shutil.rmtree(batch.parent, ignore_errors=True)
        raise
    if as_json:
        print(json.dumps({"schema": "trackwalker.submitted/1", "id": job.id, "workspace": str(workspace.absolute())}))
    else:
        print(f"job {job.id}  workspace {workspace.absolute()}", flush=True)
        print(f"note: {_HOW[script.how]}", file=sys.stderr)
    return 0
