"""`trackwalker record`: run any command, recorded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, Workspace
from trackwalker.cli.common.words import before, typed
from trackwalker.errors import UsageError
from trackwalker.launch.recording import record_command


def record(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the job; by itself that of the script that is run.")
    ] = None,
    metrics: Annotated[bool, typer.Option("--metrics/--no-metrics", help="Record metrics (needs Prometheus).")] = True,
    verdict: Annotated[
        bool, typer.Option("--verdict/--no-verdict", help="Diagnose the run at its end and say so on stderr.")
    ] = True,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="Where the trainer writes its event files: steps and losses.")
    ] = None,
    wandb: Annotated[
        Path | None, typer.Option("--wandb", help="Where W&B writes its files in offline mode (WANDB_DIR): steps.")
    ] = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Run any command recorded: metrics, rank logs, first failure and a verdict at its end; it notices nothing.

    It keeps its exit code, signals, streams and terminal.

    Example: trackwalker record -- torchrun --nproc-per-node 8 train.py

    As one task of many (srun trackwalker record -- python train.py) the first node records all others.
    """
    argv = command_words(ctx)
    if name is not None and (not name or "/" in name or name.startswith(".") or len(name) > 100):
        raise UsageError(f"--name {name!r}: letters, digits, '.', '_' and '-' only")
    beside = {"tensorboard": tensorboard, "wandb": wandb}
    return record_command(argv, sys.argv[1:], workspace, name, metrics, verdict, beside)


def command_words(ctx: typer.Context) -> list[str]:
    """The command behind the first `--`, every word as it is."""
    words = typed(ctx)
    if before(ctx) and not words:
        raise UsageError(f"put '--' before the command: trackwalker record -- {' '.join(before(ctx))}")
    if before(ctx):
        raise UsageError(f"'{before(ctx)[0]}' before '--' is no option of record (see trackwalker record --help)")
    if not words:
        raise UsageError("no command: trackwalker record -- CMD …")
    return words
