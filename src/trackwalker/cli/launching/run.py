"""`trackwalker run`: start a run on this machine and stay with it."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from trackwalker.cli.common.job_row import row_of
from trackwalker.cli.common.options import DEFAULT_WORKSPACE, Image, Privileged, Registry, Runtime, Workspace, as_named
from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.launch.here import Here, Started, start_here
from trackwalker.launch.job_state import Standing
from trackwalker.launch.request.words import parse_watching
from trackwalker.observe import tensorboard
from trackwalker.observe.prometheus import ensure_prometheus
from trackwalker.observe.ray_home import missing_ray, where_ray_is
from trackwalker.observe.remote_write import AUTH_VARIABLE, URL_VARIABLE, remote_write
from trackwalker.observe.tunnel import tunnel
from trackwalker.watch.detect.live import LiveWatch

_QUIET_EVERY_S = 10.0


class ProgressLine:
    """Shows step, speed and loss of a run that is being followed."""

    def __init__(self, total: int | None, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._total = total
        self._said = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=self._console, transient=True
        )
        self._task = self._bar.add_task("starting", total=total)

    def __enter__(self) -> ProgressLine:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:  # elsewhere it would still end with an empty line
            self._bar.stop()

    def show(self, watch: LiveWatch) -> None:
        """Draw the current state."""
        step, seconds = watch.last_step, watch.step_seconds
        text = watch.phase if step is None else f"step {step}" + (f"/{self._total}" if self._total else "")
        if seconds is not None:
            text += f"  {seconds:.2f} s/step"
        if step is not None and step in watch.losses:
            text += f"  loss {watch.losses[step]:.3f}"
        if self._console.is_terminal:
            self._bar.update(self._task, description=text, completed=step or 0)
        elif time.monotonic() - self._said > _QUIET_EVERY_S:
            self._said = time.monotonic()
            self._console.print(text, highlight=False, markup=False)

    def say(self, text: str) -> None:
        """Print a line above the progress; never broken, because it may be a command to copy."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


# The two lines that tell, at the start of a recorded run, where its pages are.
_PATIENCE_S = 30.0  # TensorBoard comes with the first event file, and needs seconds to load


class Banner:
    """Says once where Prometheus and TensorBoard are, as soon as they are there."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._first_seen: float | None = None
        self._said = False

    def due(self) -> list[str]:
        """The lines, at the one moment they are due; else nothing."""
        if self._said:
            return []
        found = tunnel(self._job)
        names = {service.name for service in found.services}
        if "prometheus" not in names:
            return []
        now = time.monotonic()
        self._first_seen = self._first_seen or now
        wanted = tensorboard.installed()
        if wanted and "tensorboard" not in names and now - self._first_seen < _PATIENCE_S:
            return []
        self._said = True
        return found.banner() + ([] if wanted else [tensorboard.MISSING])


def run(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model, as model[[:alias]:tag].")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="Behind '--': key=value for the trainer, _env_NAME=VALUE for its environment."),
    ] = None,
    procs: Annotated[int, typer.Option("-n", "--procs", help="Rank processes on this machine.")] = 1,
    observe: Annotated[
        bool, typer.Option("--observe", help="Record metrics into the job directory (also: RAY=1).")
    ] = False,
    ray: Annotated[
        bool, typer.Option("--ray", help="Record, and keep a Ray cluster with its dashboard beside the run.")
    ] = False,
    remote_url: Annotated[
        str | None,
        typer.Option("--remote-write", envvar=URL_VARIABLE, help="Also send every sample to this Prometheus store."),
    ] = None,
    remote_auth: Annotated[
        Path | None,
        typer.Option(
            "--remote-write-auth-file",
            envvar=AUTH_VARIABLE,
            help="File with one line: 'bearer TOKEN' or 'basic USER:PASSWORD'.",
        ),
    ] = None,
    image: Image = None,
    registry: Registry = "docker.io",
    runtime: Runtime = None,
    privileged: Privileged = False,
    in_container: Annotated[
        bool,
        typer.Option(
            "--in-container",
            help="This is inside the image already; with JOB_ID, NNODES and NODE_RANK set it is one node of several.",
        ),
    ] = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Train a model on this machine, one lane per process; Ctrl-C ends the run.

    Inside a Slurm allocation (salloc, a batch script) it runs on the allocation's nodes, so many processes on each.
    """
    wanted = Here(model, settings or [], procs, image, registry, runtime, privileged, in_container, workspace)
    wanted.refuse_wrong()  # before anything is fetched, started or made
    watching = parse_watching(observe, ray, os.environ, missing_ray())
    remote = remote_write(remote_url, remote_auth)
    if remote is not None and not watching.observe and remote.url != os.environ.get(URL_VARIABLE):
        raise UsageError("--remote-write sends what is recorded: add --observe")
    if remote is not None:
        os.environ.update(remote.environment())  # the recorder inherits it
    if watching.note:
        print(watching.note, file=sys.stderr)
    if watching.observe:
        ensure_prometheus(lambda text: print(text, file=sys.stderr))
    started = start_here(wanted, watching, lambda text: print(text, file=sys.stderr))
    print(f"job {started.record.id}  log {started.log}", flush=True)
    ending = _stay(started)
    started.wait_closed()
    step_s = row_of(Job(started.record.id, started.log, started.job_dir), Standing("completed", ended=True)).step_s
    ending = replace(ending, seconds=step_s or ending.seconds)  # the figure of `jobs` and `status`
    print(ending.sentence(as_named(started.record.id, workspace)))
    return ending.code


@dataclass(frozen=True)
class Ending:
    """How a run ended, and how far it came."""

    code: int
    by_user: bool  # Ctrl-C, or whoever ended this command
    steps: int  # completed
    total: str  # of how many, where that is known
    seconds: float | None  # of a step

    def sentence(self, job: str) -> str:
        """One line: what happened, how far and how fast, and the command to go on with."""
        if self.by_user:
            word, then = "ended by you (Ctrl-C)", f"to continue: trackwalker resume {job}"
        elif self.code == 0:
            word, then = "completed", f"to see where the time went: trackwalker perf {job}"
        else:
            word, then = f"failed with exit code {self.code}", f"why: trackwalker diagnose {job}"
        of = f" of {self.total}" if self.total else ""
        speed = f", {self.seconds:.3g} s per step" if self.seconds is not None else ""
        return f"{word}: {self.steps}{of} steps{speed}; {then}"


def _stay(started: Started) -> Ending:
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # whoever ends us means the run; kill -9 leaves it running
    watch = LiveWatch(started.job_dir)
    steps = started.record.config.get("steps")
    total = str(steps.value) if steps else ""
    expected, interrupted = started.record.ray, False
    banner = Banner(Job(started.record.id, started.log, started.job_dir))
    with ProgressLine(int(total) if total.isdigit() else None) as line:
        while True:
            try:
                code = started.supervise()
                watch.look()
                line.show(watch)
                if expected and (where := where_ray_is(started.job_dir)):
                    line.say(where)
                    expected = False
                for said in banner.due() if started.record.observe else ():
                    line.say(said)
                if code is not None:
                    done = 0 if watch.last_step is None else watch.last_step + 1
                    return Ending(code, interrupted and code != 0, done, total, watch.step_seconds)
                time.sleep(0.3)
            except KeyboardInterrupt:
                interrupted = True
                line.say("ending the run, as you asked (Ctrl-C)")
                started.cancel()
