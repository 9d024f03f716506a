"""`trackwalker lab propose`: the verdict is wrong and the truth is known; make it a case that teaches the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, Workspace
from trackwalker.job.resolve import resolve
from trackwalker.lab import propose as proposing


def propose(
    job: Annotated[str, typer.Argument(help="Job id, id prefix, log file or job directory.")],
    truth: Annotated[str, typer.Option("--truth", help="truth.json, or the same as JSON text (docs/how-to/lab.md).")],
    to: Annotated[Path, typer.Option("--to", help="Folder of recorded cases; made where it is not there.")],
    family: Annotated[str | None, typer.Option("--family", help="Name of the case (default: the job's).")] = None,
    about: Annotated[str, typer.Option("--about", help="One sentence: what is true, and who confirmed it.")] = "",
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> None:
    """Turn a disagreement with a verdict into a case: bundle, truth, and a test that fails until the engine learns it.

    Exit codes: 0 proposed, 2 the verdict agrees with that truth, or nothing could be written.
    """
    found = resolve(job, workspace)
    name = family or (found.dir.name if found.dir is not None else found.id)
    made = proposing.propose(found, proposing.read_truth(truth), to, name, about)
    print(f"the engine says: {made.said}")
    print(f"against the truth: {'; '.join(made.wrong)}")
    print(f"case: {made.case}")
    print(f"bundle: {made.bundle}")
    print(f"test, which fails until the engine learns it: {made.test}")
    print(f"score it: trackwalker lab score --suite {made.case}")
