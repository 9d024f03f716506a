"""`trackwalker shell`: where a run would run, with its environment, and a person at the keyboard."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, Workspace
from trackwalker.errors import UsageError
from trackwalker.launch.shell import Shell, open_shell


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
