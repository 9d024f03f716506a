"""The `trackwalker` command."""

from __future__ import annotations

import os
import sys

import typer
from typer.exceptions import TyperException

from trackwalker import __version__
from trackwalker.cli.commands import Commands
from trackwalker.errors import TrackwalkerError

INTERNAL = 70  # a defect of ours, as sysexits has it

app = typer.Typer(
    name="trackwalker",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Launch, record and diagnose LLM training runs.\n\nExample: trackwalker run tiny -n 4 --observe -- steps=200",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trackwalker {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Run the command; every failure is one line on stderr and an exit code that means something."""
    try:
        code = app(standalone_mode=False)
    except TrackwalkerError as e:
        _fail(str(e), e.exit_code)
    except typer.Abort:
        _fail("interrupted", 130)
    except TyperException as e:
        text = e.format_message() if hasattr(e, "format_message") else str(e)  # names the option where there is one
        _fail(f"{text} (see trackwalker --help)", 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left: nothing to complain about
        sys.exit(0)
    except Exception as e:
        if isinstance(code := getattr(e, "exit_code", None), int):  # an error of a file that the nodes carry, too
            _fail(str(e), code)
        if os.environ.get("TRACKWALKER_DEBUG"):
            raise
        _fail(f"internal error: {type(e).__name__}: {e} (TRACKWALKER_DEBUG=1 shows where)", INTERNAL)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _fail(text: str, code: int) -> None:
    from trackwalker.cli.say import say  # most commands do not fail

    say(f"trackwalker: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(code)
