"""`trackwalker repro`: the short run that crashes once in a hundred times, a hundred times."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, Workspace
from trackwalker.launch.plan import How, Plan, plan_local
from trackwalker.launch.request.words import Passthrough, parse_model_spec, parse_passthrough
from trackwalker.launch.schedulers.local import repeat


def repro(
    model: Annotated[str, typer.Argument(help="Model, as model[[:alias]:tag].")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="Behind '--': key=value for the trainer (steps=1 unless given), _env_NAME=VALUE."),
    ] = None,
    procs: Annotated[int, typer.Option("-n", "--procs", help="Rank processes on this machine.")] = 1,
    most: Annotated[int, typer.Option("--most", min=0, help="Give up after so many runs; 0: never.")] = 0,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Repeat a short run on this machine until it fails; keeps its log, its core and a first backtrace."""
    spec = parse_model_spec(model)
    given = parse_passthrough(settings or [])
    passthrough = Passthrough({"steps": "1", **given.config}, given.env)

    def make_plan() -> Plan:
        return plan_local(spec, passthrough, workspace, How("local", sys.argv[1:], procs))

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ended = repeat(make_plan, most, Path.cwd(), lambda text: print(text, flush=True))
    for core in ended.cores:
        print(f"core {core}")
    if ended.crashed and ended.job_dir is not None:
        print(f"trackwalker diagnose {ended.job_dir} says why")
    return ended.code
