"""`trackwalker help` and `trackwalker version`: what `--help` and `--version` say, for those who type a word."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer

from trackwalker import __version__
from trackwalker.errors import UsageError


def help_of(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]…", help="The command, as tsdb query.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="The help of every command (also: --help-all).")] = False,
) -> int:
    """Show the help of a command."""
    if everything:
        help_all()
        return 0
    return _help([*(command or [])])


def help_all() -> None:
    """Show the help of the program and of every command, one after the other."""
    _help([])
    for words in _every_command():
        _help(words)


def _every_command() -> Iterator[list[str]]:
    from trackwalker.cli.commands import COMMANDS, GROUPS, load

    for name in [name for names in GROUPS.values() for name in names.split() if name in COMMANDS]:
        with contextlib.suppress(UsageError):  # the lab is not installed
            command = load(name)
            yield [name]
            yield from ([name, below] for below in getattr(command, "commands", {}))


def _help(words: list[str]) -> int:
    from trackwalker.cli.app import app  # it holds the list of commands, and this is one of them

    code = app([*words, "--help"], prog_name="trackwalker", standalone_mode=False)
    return code if isinstance(code, int) else 0


def version() -> None:
    """Print the version."""
    typer.echo(f"trackwalker {__version__}")
