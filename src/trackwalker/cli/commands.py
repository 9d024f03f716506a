"""The commands by name; a module is imported when its command is called: `--help` and `--version` need none."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_group

from trackwalker.cli.common.words import WordsCommand
from trackwalker.errors import UsageError

LAB_APART = (
    "needs the lab, a distribution of its own: pip install trackwalker-lab "
    "(in a clone of the repository: pip install ./lab)"
)


class Entry(NamedTuple):
    """Where a command is, and what the list of commands says about it."""

    place: str  # module of this package and its function, or its Typer with commands of its own
    help: str
    example: str = ""  # without "Example: trackwalker"
    takes_words: bool = False  # upstream's grammar: scheduler words, then the trainer's behind `--`


# How the list of commands is divided; a command that is in no group would be missing from it, and a test looks.
GROUPS = {
    "Run": "run submit record attach plan resume resubmit cancel wait repro shell demo",
    "Inspect": "jobs status logs files rank-tails metrics tsdb perf tunnel serve dashboards explain",
    "Diagnose": "diagnose triage changed compare ask",
    "Fleet": "watch nodes fleet sweep",
    "Agents": "mcp skills",
    "Lab": "lab",
    "Set up": "config setup doctor clean rm completion help version",
}


# What each is called, where it lies and what the list says of it.
_LISTED = json.loads(Path(__file__).with_name("commands.json").read_text(encoding="utf-8"))
COMMANDS: dict[str, Entry] = {name: Entry(**row) for name, row in _LISTED.items()}


def _value(option: TyperOption, ctx: Any) -> str | None:
    """What stands for an option's value in help: nothing for a flag, one word in capitals for the rest."""
    if option.is_flag:
        return None
    if option.metavar is not None:
        return option.metavar
    shown = _display(option, ctx)
    return shown if shown is None or "|" in shown else _VALUES.get(shown, option.name.upper().replace("_", "-"))


_OWN_BREAK = re.compile(r"(?<!\n)\n(?!\n|Exit codes)")  # of the source; a terminal is as wide as it is
_VALUES = {"<int>": "N", "<int range>": "N", "<float>": "N", "<float range>": "N", "<path>": "PATH"}
_display = TyperOption.display_type_rich
# Typer has no setting for either; where another version of it shows types its own way, help is only less tidy.
setattr(TyperOption, "display_type_rich", _value)  # noqa: B010
setattr(TyperArgument, "display_type_rich", lambda argument, ctx: None)  # noqa: B010


def is_lab(module: str) -> bool:
    """Whether a module comes with the lab's distribution."""
    return module.startswith(("trackwalker.lab", "trackwalker.cli.lab"))


def load(name: str) -> TyperCommand | TyperGroup:
    """The command itself."""
    return load_entry(name, COMMANDS[name])


def load_entry(name: str, entry: Entry) -> TyperCommand | TyperGroup:
    """A command from where its entry says it is; a group with many commands has entries of its own."""
    module, _, attribute = entry.place.partition(":")
    try:
        found = getattr(import_module(f"trackwalker.cli.{module}"), attribute)
    except ModuleNotFoundError as e:
        if not is_lab(e.name or ""):
            raise
        raise UsageError(f"`trackwalker {name}` {LAB_APART}") from e
    holder = typer.Typer(rich_markup_mode="rich", add_completion=False)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        kind = WordsCommand if entry.takes_words else TyperCommand
        holder.command(name, cls=kind, epilog=f"Example: trackwalker {entry.example}")(found)
    command = get_group(holder).commands[name]
    for each in (command, *getattr(command, "commands", {}).values()):
        each.help = _OWN_BREAK.sub(" ", each.help or "") or None
    assert isinstance(command, TyperCommand | TyperGroup)  # noqa: S101
    return command


class Commands(TyperGroup):
    """Lists every command from the table, and imports the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        groups = {name: group for group, names in GROUPS.items() for name in names.split()}
        for name in [*groups, *(name for name in COMMANDS if name not in groups)]:
            if name in COMMANDS:  # what the list needs of it
                panel = groups.get(name, "More")
                self.add_command(TyperCommand(name, help=COMMANDS[name].help, rich_help_panel=panel))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that is called."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else listed, rest
