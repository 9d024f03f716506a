"""`trackwalker help` and `trackwalker version`: what `--help` and `--version` say, for those who type a word."""

from __future__ import annotations

from typing import Annotated

import typer

from trackwalker import __version__


def help_of(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]…", help="The command, as tsdb query.")
    ] = None,
) -> int:
    """Show the help of a command."""
    from trackwalker.cli.app import app  # it holds the list of commands, and this is one of them

    code = app([*(command or []), "--help"], prog_name="trackwalker", standalone_mode=False)
    return code if isinstance(code, int) else 0


def version() -> None:
    """Print the version."""
    typer.echo(f"trackwalker {__version__}")
