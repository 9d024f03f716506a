"""`trackwalker attach`: record a run that is going already."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, Workspace
from trackwalker.errors import UsageError
from trackwalker.job.layout import ID_FORM
from trackwalker.launch.attach import attach_pod, attach_process, attach_slurm


def attach(
    slurm: Annotated[str | None, typer.Option("--slurm", metavar="JOB", help="A running Slurm job's number.")] = None,
    pid: Annotated[
        int | None, typer.Option("--pid", min=1, help="A process of this machine, with all below it.")
    ] = None,
    pod: Annotated[str | None, typer.Option("--pod", metavar="NAME", help="A pod, through kubectl.")] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Of --pod.")] = "",
    container: Annotated[str, typer.Option("--container", "-c", help="Of --pod, where it has several.")] = "",
    log: Annotated[
        Path | None, typer.Option("--log", help="Its log; by itself the file that it, or Slurm, prints into.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the job in the workspace.")] = None,
    metrics: Annotated[bool, typer.Option("--metrics/--no-metrics", help="Record metrics (needs Prometheus).")] = True,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Record a run that is going already: metrics from now on, its log from the beginning; it notices nothing.

    Stays until the run ends, then says the verdict; Ctrl-C leaves, and what is recorded stays.

    Example: trackwalker attach --slurm 8308
    """
    if sum(each is not None for each in (slurm, pid, pod)) != 1:
        raise UsageError("say what to join: --slurm JOB, --pid P or --pod NAME")
    if (namespace or container) and pod is None:
        raise UsageError("--namespace and --container are for --pod")
    if name is not None and (not name or "/" in name or name.startswith(".") or len(name) > 100):
        raise UsageError(f"--name {name!r}: letters, digits, '.', '_' and '-' only")
    if log is not None and not log.is_file():
        raise UsageError(f"--log {log}: no such file")
    if slurm is not None:
        if not slurm.isdigit() or not ID_FORM.match(slurm):
            raise UsageError(f"--slurm {slurm}: not a Slurm job id")
        signal.signal(signal.SIGTERM, lambda number, frame: None)  # the job ends: what it printed last is still read
        return attach_slurm(slurm, workspace, name, log, metrics, _say)
    if pid is not None:
        return attach_process(pid, workspace, name, log, metrics, _say)
    return attach_pod(str(pod), namespace, container, workspace, metrics, _say)


def _say(text: str) -> None:
    os.write(2, f"trackwalker: {' '.join(text.split())}\n".encode())
