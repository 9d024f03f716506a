"""`trackwalker shell`: where a run would run, with its environment, and a person at the keyboard."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.errors import UsageError
from trackwalker.job.resolve import resolve
from trackwalker.launch.shell import Shell, open_shell
from trackwalker.observe import tunnel as observe_tunnel


def shell(
    what: Annotated[str | None, typer.Argument(help="Model or job whose environment the shell gets.")] = None,
    image: Annotated[
        str | None,
        typer.Option("--image", envvar="DOCKER_IMAGE", help="Image, or .tar or .sif file; none: no container."),
    ] = None,
    runtime: Annotated[
        str, typer.Option("--runtime", help="podman, docker, apptainer or native; else the first that answers.")
    ] = "",
    privileged: Annotated[
        bool, typer.Option("--privileged", help="All of the machine's devices and capabilities inside.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command only; nothing is pulled.")] = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Open a shell in the container of a run, or on this machine, with the run's environment; prints its command."""
    made = open_shell(what, image, runtime, privileged, workspace, Path.cwd(), dry_run, _note)
    print(shlex.join(made.argv), file=sys.stdout if dry_run else sys.stderr, flush=True)
    return 0 if dry_run else _stay(made)


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def _stay(made: Shell) -> int:
    try:
        return subprocess.call(made.argv, env=made.env)  # its own signals: Ctrl-C belongs to the shell inside
    except KeyboardInterrupt:
        return 130
    except OSError as e:
        raise UsageError(f"{made.argv[0]} cannot be started: {e.strerror}") from e


NOTHING_THERE = 1


def tunnel(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Job id, id prefix, log file or job directory.")],
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Print the SSH commands and addresses of a running job's Prometheus, TensorBoard and Ray dashboard.

    Exit codes: 0 there is something to reach, 1 there is not (and why), 2 no such job.
    """
    found = observe_tunnel.tunnel(resolve(job, workspace))
    print(json.dumps(found.to_dict(), indent=1) if as_json else "\n".join(found.lines()))
    return NOTHING_THERE if found.why_none else 0
