"""Every `trackwalker …` in a fenced block of README and docs is a command that the real command line takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.exceptions import TyperException

from trackwalker.cli.commands import COMMANDS, load
from trackwalker.cli.common.words import earlier_jobs
from trackwalker.errors import TrackwalkerError

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_ASSIGNED = re.compile(r"\w+=\S*")
_BEFORE = ("$", "srun", "sudo", "exec", "!", "time")  # words that may stand before the command
_ENDS = frozenset({";", "&&", "||", "|", "&", ">", ">>", "<", "2>", "2>&1", ")"})
_OPTIONAL = re.compile(r"\[(-[^\]]*)\]")  # `[--rank 3]`: may be left away, and must be taken
_ON_PURPOSE = [["diagnos"]]  # the tour shows what a misspelt command is told
_NOT_OURS = ("json", "yaml", "toml", "python", "diff")


def commands(text: str) -> Iterator[list[str]]:
    """The words behind `trackwalker` of every command in the fenced blocks of a page."""
    for language, block in _FENCE.findall(text):
        if language in _NOT_OURS:
            continue
        shown = re.search(r"^ *\$ ", block, re.MULTILINE)  # then the other lines are output; what it indents is to copy
        for line in block.replace("\\\n", " ").splitlines():
            if not shown or line.startswith(("$ ", " ")):
                yield from _of_line(line)


def _of_line(line: str) -> Iterator[list[str]]:
    line = _OPTIONAL.sub(r"\1", line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>()")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quote that ends on another line: no command of one line
        return
    command: list[str] | None = None
    begins = True
    for word in [*words, ";"]:
        if word in _ENDS:
            if command is not None:
                yield command
            command, begins = None, word not in (">", ">>", "<", "2>")
        elif command is not None:
            command.append(word)
        elif begins and word == "trackwalker":
            command = []
        elif not (_ASSIGNED.fullmatch(word) or word in _BEFORE):
            begins = False


def refused(words: list[str]) -> str:
    """Why the command line does not take these words; empty when it does. Nothing is carried out."""
    name, *rest = earlier_jobs(words)
    if name not in COMMANDS:
        return "no such command"
    command: Any = load(name)
    try:
        while isinstance(command, TyperGroup):
            context = command.make_context(name, list(rest))
            left = [*context._protected_args, *context.args]
            if not left:  # a group that can be called by itself
                return ""
            name, command, rest = command.resolve_command(context, left)
        command.make_context(name, list(rest))
    except SystemExit:  # --help, --version
        return ""
    except (TyperException, TrackwalkerError) as e:
        return e.format_message() if isinstance(e, TyperException) else str(e)
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_of_a_page_is_one(page: Path) -> None:
    told = [words for words in commands(page.read_text()) if words not in _ON_PURPOSE]
    wrong = [(shlex.join(words), why) for words in told if (why := refused(words))]
    assert wrong == []


def test_the_commands_of_the_pages_are_found_and_a_wrong_one_is_noticed() -> None:
    assert sum(len(list(commands(page.read_text()))) for page in PAGES) > 150
    told = "```\n$ A=1 trackwalker status 8308; trackwalker logs 8308 -f | head   # trackwalker nothing\n```\n"
    assert list(commands(told)) == [["status", "8308"], ["logs", "8308", "-f"]]
    assert refused(["diagnose", "8308", "--jsn"])
    assert refused(["sweep", "bach"])
