"""The `trackwalker` command."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Annotated

import typer
from typer.exceptions import TyperException

from trackwalker import __version__
from trackwalker.cli.commands import Commands
from trackwalker.cli.common.settings import apply_settings
from trackwalker.cli.common.words import earlier_jobs
from trackwalker.errors import TrackwalkerError, UsageError


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
    code = app([*words, "--help"], prog_name="trackwalker", standalone_mode=False)
    return code if isinstance(code, int) else 0


def version() -> None:
    """Print the version."""
    typer.echo(f"trackwalker {__version__}")


INTERNAL = 70  # a defect of ours, as sysexits has it

app = typer.Typer(
    name="trackwalker",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Launch, record and diagnose LLM training runs.\n\nExample: trackwalker run tiny -n 4 --observe -- steps=200",
)


# What leaves the command: UTF-8 in every locale, and no complaint when the reader of a pipe has left.
_ASCII = ("ascii", "ansi_x3.4-1968", "us-ascii", "646")


def prepare() -> None:
    """A character that the locale cannot say must not end a command.

    The C locale means "nobody chose one": terminals and files read UTF-8 then. Another charset was chosen and stays,
    with a question mark for what it lacks.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            chosen = (stream.encoding or "ascii").lower()
            stream.reconfigure(encoding="utf-8" if chosen in _ASCII else None, errors="replace")


def reader_left() -> None:
    """Send what is still to come nowhere: Python flushes once more at its end, and would complain then."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trackwalker {__version__}")
        raise typer.Exit


def _help_all(wanted: bool) -> None:
    if wanted:
        help_all()
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    everything: bool = typer.Option(
        False, "--help-all", callback=_help_all, is_eager=True, help="Show the help of every command."
    ),
) -> None:
    pass


def main() -> None:
    """Run the command; every failure is one line on stderr and an exit code that means something."""
    prepare()
    if sys.argv[1:2] == ["__complete"]:  # asked by a shell at every tab
        from trackwalker.cli.common.completion import answer

        answer(sys.argv[2:])
        return
    try:
        apply_settings()
        code = app(earlier_jobs(sys.argv[1:]), prog_name="trackwalker", standalone_mode=False)
        sys.stdout.flush()  # here, where a reader that left is no mistake
    except TrackwalkerError as e:
        _fail(str(e), e.exit_code)
    except typer.Abort:
        _fail("interrupted", 130)
    except TyperException as e:
        text = e.format_message() if hasattr(e, "format_message") else str(e)  # names the option where there is one
        if not text.strip():  # no words at all: the help has been printed
            sys.exit(2)
        context = getattr(e, "ctx", None)
        _fail(f"{text} (see {context.command_path if context else 'trackwalker'} --help)", 2)
    except BrokenPipeError:
        reader_left()
        sys.exit(0)
    except Exception as e:
        if isinstance(code := getattr(e, "exit_code", None), int):  # an error of a file that the nodes carry, too
            _fail(str(e), code)
        if os.environ.get("TRACKWALKER_DEBUG"):
            raise
        if isinstance(e, OSError) and e.filename is not None:  # a file that is not ours, a disk that is full
            _fail(f"{os.fsdecode(e.filename)}: {e.strerror}", 2)
        _fail(f"internal error: {type(e).__name__}: {e} (TRACKWALKER_DEBUG=1 shows where)", INTERNAL)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _fail(text: str, code: int) -> None:
    from trackwalker.cli.common.say import say  # most commands do not fail

    say(f"trackwalker: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(code)
