"""`trackwalker run`: start a run on this machine and stay with it."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Annotated

import typer

from trackwalker.cli.display import ProgressLine
from trackwalker.cli.options import DEFAULT_WORKSPACE, Workspace
from trackwalker.launch.plan import plan_local
from trackwalker.launch.request import parse_model_spec, parse_passthrough
from trackwalker.launch.schedulers.local import LocalRun
from trackwalker.observe.prometheus import ensure_prometheus
from trackwalker.watch.live import LiveWatch


def run(
    model: Annotated[str, typer.Argument(help="Model, as model[[:alias]:tag].")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="Behind '--': key=value for the trainer, _env_NAME=VALUE for its environment."),
    ] = None,
    procs: Annotated[int, typer.Option("-n", "--procs", help="Rank processes on this machine.")] = 1,
    observe: Annotated[
        bool, typer.Option("--observe", help="Record metrics into the job directory (also: RAY=1).")
    ] = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Train a model on this machine, one lane per process; Ctrl-C ends the run."""
    spec = parse_model_spec(model)
    passthrough = parse_passthrough(settings or [])
    observe = observe or os.environ.get("RAY", "").lower() in ("1", "true")
    if observe:
        ensure_prometheus(lambda text: print(text, file=sys.stderr))
    started = LocalRun.start(plan_local(spec, procs, passthrough, workspace, observe, sys.argv[1:]))
    print(f"job {started.plan.record.id}  log {started.plan.agent.log}", flush=True)
    code = _stay(started)
    started.wait_closed()
    status = "finished" if code == 0 else f"ended with exit code {code}"
    print(f"{status}; trackwalker diagnose {started.plan.record.id} says why" if code else status)
    return code


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _stay(started: LocalRun) -> int:
    signal.signal(signal.SIGTERM, _interrupt)  # whoever ends us means the run; kill -9 leaves it running
    watch = LiveWatch(started.job_dir)
    steps = started.plan.record.config.get("steps")
    total = str(steps.value) if steps else ""
    with ProgressLine(int(total) if total.isdigit() else None) as line:
        while True:
            try:
                code = started.supervise()
                watch.look()
                line.show(watch)
                if code is not None:
                    return code
                time.sleep(0.3)
            except KeyboardInterrupt:
                line.say("ending the run")
                started.cancel()
