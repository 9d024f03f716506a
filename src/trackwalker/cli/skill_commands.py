"""Does a page name only commands and flags that exist? Asks the commands themselves, without running one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

from typer.exceptions import TyperException

from trackwalker.cli.commands import COMMANDS, load
from trackwalker.cli.words import WordsCommand, spread
from trackwalker.errors import UsageError
from trackwalker.launch.keys import known_keys
from trackwalker.launch.slurm.options import parse_scheduler_words

PROGRAM = "trackwalker"
_FENCED = re.compile(r"^( *)```[^\n]*\n(.*?)^ *```", re.S | re.M)
_INLINE = re.compile(r"`([^`\n]+)`")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_ENV = "_env_"
_ANY_COMMAND = "record"  # behind its `--` stands a command of the user's, not of ours


def problems(page: str) -> list[str]:
    """One line for every command of a Markdown page that would not be accepted."""
    return [f"`{' '.join(words)}`: {wrong}" for words in commands_in(page) for wrong in refused(words[1:])]


def commands_in(page: str) -> Iterator[list[str]]:
    """Every `trackwalker …` of its blocks and of its inline code, as words."""
    blocks = [line for match in _FENCED.finditer(page) for line in match[2].replace("\\\n", " ").splitlines()]
    inline = [code for code in _INLINE.findall(_FENCED.sub("", page)) if code.split()[:1] == [PROGRAM]]
    for line in blocks + inline:
        if PROGRAM in line:
            for words in _simple(line):
                while words and (words[0] in ("do", "then", "$") or _ASSIGNED.match(words[0])):
                    words.pop(0)
                if words[:1] == [PROGRAM]:
                    yield words


def _simple(line: str) -> Iterator[list[str]]:
    """The commands of a line that a shell would run one after the other."""
    words: list[str] = []
    for word in [*_words(line), ";"]:
        if word in (";", "&&", "||", "|"):
            yield words
            words = []
        else:
            words.append(_shown(word))


def _shown(word: str) -> str:
    """Without the brackets that say that something may be left out, as in `[--rank 3]`."""
    word = word.removeprefix("[")
    return word[:-1] if word.endswith("]") and "[" not in word else word


def refused(words: list[str]) -> Iterator[str]:
    """Why the words behind the program's name would not be accepted; nothing when they would."""
    if not words or words[0] in ("--help", "--version"):
        return
    if words[0] not in COMMANDS:
        yield f"there is no command '{words[0]}'"
        return
    command: Any = _command(words[0])
    rest = words[1:]
    try:
        while hasattr(command, "commands"):
            if "--help" in rest or not rest:
                return
            context = command.context_class(command, info_name=words[0])
            command.parse_args(context, list(rest))
            rest = [*context._protected_args, *context.args]
            if not rest:  # a group that does something by itself
                return
            if rest[0] not in command.commands:
                yield f"'{words[0]}' has no command '{rest[0]}'"
                return
            _, command, rest = command.resolve_command(context, rest)  # a group may import it only now
        yield from _leaf(command, rest)
    except TyperException as e:
        yield e.format_message() if hasattr(e, "format_message") else str(e)
    except UsageError as e:
        yield str(e)


def _leaf(command: Any, words: list[str]) -> Iterator[str]:
    """Options and the number of arguments; values are placeholders in most pages and are not looked at."""
    context = command.context_class(command, info_name=command.name)
    behind: list[str] = []
    if isinstance(command, WordsCommand):
        cut = words.index("--") if "--" in words else len(words)
        words, behind = words[:cut], words[cut + 1 :]
        # An option that may stand without its number, and options that take several words.
        words = spread([f"{w}=3" if w == "--auto-resume" else w for w in words])
        context.ignore_unknown_options = context.allow_extra_args = True
    _, left, _ = command.make_parser(context).parse_args(list(words))
    if isinstance(command, WordsCommand):
        if extra := parse_scheduler_words(left).extra:
            yield f"neither we nor this check know {', '.join(extra)}"
        if command.name != _ANY_COMMAND:
            yield from _settings(behind)
    elif left:
        yield f"'{left[0]}' is one argument too many"


def _settings(words: list[str]) -> Iterator[str]:
    known = known_keys("maxtext") | known_keys("tiny")
    for word in words:
        key, equals, _ = word.partition("=")
        if word != "…" and not (equals and (key.startswith(_ENV) or key in known)):
            yield f"'{word}' behind '--' is no key=value of a trainer"


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        return list(lexer)
    except ValueError:  # an open quotation mark: prose, or a line that no shell would take either
        return line.split()


@cache
def _command(name: str) -> Any:
    return load(name)
