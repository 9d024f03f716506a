"""`trackwalker sweep`: many short jobs, one answer."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from trackwalker.cli.commands import Entry, load_entry
from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.cli.sweeps.start import carry_out_and_show, show_report
from trackwalker.errors import TrackwalkerError
from trackwalker.sweep.engine_run import cancel as cancel_sweep
from trackwalker.sweep.plan import find_folder, list_folders, load_plan
from trackwalker.sweep.progress import Teller
from trackwalker.sweep.report import dumps, standing
from trackwalker.sweep.state import load_state, running
from trackwalker.sweep.strategies import KINDS

LISTED, CANCELLED = "trackwalker.sweeps/1", "trackwalker.sweep-cancel/1"
SweepName = Annotated[str, typer.Argument(metavar="SWEEP", help="Its id, the beginning or end of it, or 'last'.")]


class Sweeps(TyperGroup):
    """Lists every kind of sweep, and imports the one that is called.

    A kind's command is in the file of its name: `@takes(Common) def batch(ctx, …, options: Common = Common()) -> int`,
    which ends in `return start("batch", request, options, ctx)`, and its `EXAMPLE`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in KINDS:  # the names alone, for completion and for who mistypes one
            self.add_command(TyperCommand(name))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A kind's command by its file, or one of ours."""
        if cmd_name not in KINDS:
            return super().get_command(ctx, cmd_name)
        example = import_module(f"trackwalker.cli.sweeps.{cmd_name}").EXAMPLE
        return load_entry(cmd_name, Entry(f"sweeps.{cmd_name}:{cmd_name}", "", example, takes_words=True))


app = typer.Typer(
    cls=Sweeps,
    no_args_is_help=True,
    help="Plan, run, watch and judge a series of short jobs: the best setting, the bad node, the commit that broke it.",
    epilog="Example: trackwalker sweep batch tiny --on local --steps 30",
)


@app.command(epilog="Example: trackwalker sweep resume last")
def resume(
    sweep: SweepName,
    budget: Annotated[
        float | None, typer.Option("--budget", min=0.0, metavar="NODE_HOURS", help="Another budget than before.")
    ] = None,
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Go on with a sweep that was interrupted, killed or stopped; jobs that run or ran are found, none runs twice.

    Exit codes: 0 it is finished, 1 it was stopped before that, 2 no such sweep or somebody runs it.
    """
    plan = load_plan(find_folder(sweep, workspace), to_drive=True)
    state = load_state(plan.folder)
    if state.ended is not None and not state.stop:
        print(f"sweep {plan.id} is finished already", file=sys.stderr)
        show_report(plan.folder, as_json, False)
        return 0
    return carry_out_and_show(plan, as_json, budget)


@app.command(epilog="Example: trackwalker sweep show last --md")
def show(
    sweep: SweepName,
    as_json: AsJson = False,
    as_md: Annotated[bool, typer.Option("--md", help="Print Markdown for a ticket.")] = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Print how a sweep stands and what its results say so far; nothing is changed."""
    show_report(find_folder(sweep, workspace), as_json, as_md)
    return 0


@app.command("list", epilog="Example: trackwalker sweep list --json")
def list_(as_json: AsJson = False, workspace: Workspace = DEFAULT_WORKSPACE) -> int:
    """List the sweeps of a workspace, newest first."""
    rows = [_row(folder) for folder in list_folders(workspace)]
    if as_json:
        print(dumps({"schema": LISTED, "sweeps": rows}), end="")
    elif not rows:
        print(f"no sweep in {workspace}")
    for row in rows if not as_json else []:
        print(
            f"{row['id']}  {row['status']}"
            + (f"  {row['jobs']} jobs  {row['why']}" if row["why"] else f"  {row['jobs']} jobs")
        )
    return 0


@app.command(epilog="Example: trackwalker sweep cancel last")
def cancel(sweep: SweepName, as_json: AsJson = False, workspace: Workspace = DEFAULT_WORKSPACE) -> int:
    """End a sweep and those of its jobs that wait or run; what is finished stays, and 'resume' can go on later."""
    plan = load_plan(find_folder(sweep, workspace), to_drive=True)
    outcome = cancel_sweep(plan, Teller)
    told = "the process that runs it was asked to end it" if outcome is None else "it has ended, with its jobs"
    if as_json:
        print(dumps({"schema": CANCELLED, "id": plan.id, "ended": outcome is not None}), end="")
    else:
        print(f"sweep {plan.id}: {told}")
    return 0


def _row(folder: Path) -> dict[str, Any]:
    """One sweep; a damaged one is listed with what is wrong, and hides no other."""
    try:
        plan, state = load_plan(folder), load_state(folder)
    except TrackwalkerError as e:
        return {"id": folder.name, "kind": "", "status": "damaged", "jobs": 0, "why": str(e), "created": None}
    jobs = sum(bool(run.job) for run in state.runs.values())
    how = standing(state, running(folder))
    return {"id": plan.id, "kind": plan.kind, "status": how, "jobs": jobs, "why": state.stop, "created": plan.created}
