"""`trackwalker lab inject`: break a running local job, and put everything back."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from typing import Annotated

import typer

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, Workspace
from trackwalker.errors import JobNotFoundError, UsageError
from trackwalker.job.resolve import resolve
from trackwalker.lab.real.cases import CASES
from trackwalker.lab.real.inject import FAULTS, MIDDLE, find_victim
from trackwalker.lab.real.inject import inject as break_job
from trackwalker.lab.real.undo import pending


def inject(
    fault: Annotated[str, typer.Argument(help=f"One of: {', '.join(FAULTS)}.")],
    job: Annotated[str, typer.Argument(help="A running local job: id, directory or log.")],
    rank: Annotated[int, typer.Option("--rank", min=0, help="Whom to hit.")] = 2,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="For how long; 0: until Ctrl-C.")] = 0.0,
    strength: Annotated[
        float, typer.Option("--strength", help="How strong, above 0 to 1, where a fault can be weaker or stronger.")
    ] = MIDDLE,
    undo: Annotated[bool, typer.Option("--undo", help="Only undo what killed injectors left behind.")] = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> None:
    """Inject a real fault into a running local job; it is undone at the end, on Ctrl-C, or by --undo later."""
    if fault not in FAULTS and fault in CASES:
        raise UsageError(f"'{fault}' has to be there when the run begins: trackwalker demo --fault {fault}")
    if fault not in FAULTS:
        raise UsageError(f"unknown fault '{fault}'; there are: {', '.join(FAULTS)}")
    job_dir = resolve(job, workspace).dir
    if job_dir is None:
        raise JobNotFoundError(f"{job} has no job directory, so nothing of it runs here")
    if undo:
        steps = sum(note.run() for note in pending(job_dir) if note.abandoned)
        print(f"undid {steps} steps" if steps else "nothing is left to undo")
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us ends the fault too
    with break_job(fault, find_victim(job_dir, rank), strength):
        until = f"for {seconds:.0f} s" if seconds else "until Ctrl-C"
        print(f"{fault} on rank {rank} of {job_dir.name}, {until}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(seconds) if seconds else signal.pause()
    print("undone", file=sys.stderr)
