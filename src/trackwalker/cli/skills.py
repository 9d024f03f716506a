"""`trackwalker skills`: methods for AI agents; list them, put them where an agent finds them, check them."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from trackwalker.agent.skills.skill_install import FOLDERS, Done
from trackwalker.agent.skills.skill_install import install as install_skills
from trackwalker.agent.skills.skills import check as check_skills
from trackwalker.agent.skills.skills import load_skills, tokens
from trackwalker.cli.commands import COMMANDS, load
from trackwalker.cli.common.options import AsJson
from trackwalker.cli.common.words import WordsCommand, spread
from trackwalker.errors import UsageError
from trackwalker.launch.request.keys import known_keys
from trackwalker.launch.slurm.options import parse_scheduler_words

SCHEMA = "trackwalker.skills/1"
_SAYS = {
    "added": "added",
    "updated": "updated: it was ours and unchanged",
    "replaced": "replaced: --force",
    "removed": "removed: we no longer ship it",
    "kept": "kept: it was changed here, or is a link; --force replaces changed files",
}

app = typer.Typer(
    no_args_is_help=True,
    help="List the skills (methods that AI agents follow), install them, check them.",
    epilog="Example: trackwalker skills install --project .",
)


# Does a page name only commands and flags that exist? Asks the commands themselves, without running one.
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
    try:
        command: Any = _command(words[0])
    except UsageError:
        return  # the lab's, which is not installed: nobody here can say
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


@app.command("list", epilog="Example: trackwalker skills list --json")
def list_skills(as_json: AsJson = False) -> int:
    """Which skills there are, and what each is for."""
    skills = load_skills()
    if as_json:
        rows = [{"name": s.name, "description": s.description, "tokens": tokens(s.body)} for s in skills]
        print(json.dumps({"schema": SCHEMA, "skills": rows}, indent=1))
        return 0
    wide = max(len(s.name) for s in skills)
    for skill in skills:
        print(f"{skill.name:<{wide}}  {skill.description.partition('. ')[0].rstrip('.')}")
    return 0


@app.command(epilog="Example: trackwalker skills install --project . ; trackwalker skills install --home --for agents")
def install(
    project: Annotated[Path | None, typer.Option("--project", help="For everybody who works in this folder.")] = None,
    home: Annotated[bool, typer.Option("--home", help="For you, in every project.")] = False,
    agent: Annotated[
        str,
        typer.Option("--for", help="claude: .claude/skills (Claude Code, Cursor); agents: .agents/skills (others)."),
    ] = "claude",
    force: Annotated[bool, typer.Option("--force", help="Replace files that were changed there.")] = False,
    as_json: AsJson = False,
) -> int:
    """Put the skills where an agent finds them; a file that was changed there is kept and named.

    Exit codes: 0 all are there as shipped, 1 a changed file was kept, 2 it could not be done.
    """
    if (project is None) is not home:
        raise UsageError("say where: --project DIR or --home, one of them")
    if agent not in FOLDERS:
        raise UsageError(f"--for {agent}: it is one of {', '.join(FOLDERS)}")
    base = Path.home() if project is None else project.expanduser()
    if not base.is_dir():
        raise UsageError(f"there is no folder {base}")
    into = base / FOLDERS[agent]
    skills = load_skills()
    done = install_skills(skills, into, force)
    if as_json:
        rows = [{"path": d.path, "what": d.what} for d in done]
        print(json.dumps({"schema": SCHEMA, "folder": str(into), "files": rows}, indent=1))
    else:
        _tell(done, into, len(skills))
    return 1 if any(d.what == "kept" for d in done) else 0


def _tell(done: list[Done], into: Path, skills: int) -> None:
    counts = Counter(d.what for d in done)
    for one in done:
        if one.what not in ("added", "unchanged"):
            print(f"{one.path}  {_SAYS[one.what]}")
    summary = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    print(f"{skills} skills in {into}: {summary} files")


@app.command(epilog="Example: trackwalker skills check .claude/skills")
def check(
    folder: Annotated[Path | None, typer.Argument(help="Folder of skills, or one skill; without it, ours.")] = None,
    as_json: AsJson = False,
) -> int:
    """Check the format, the links, the hand-overs, and that every command a skill names is accepted.

    Exit codes: 0 nothing is wrong, 1 something is, 2 there are no skills.
    """
    skills = load_skills(folder)
    wrong = check_skills(skills)
    for skill in skills:
        named = [f"{page}: {p}" for page, text in skill.pages for p in problems(text)]
        if named:
            wrong[skill.name] = [*wrong.get(skill.name, []), *named]
    if as_json:
        print(json.dumps({"schema": SCHEMA, "checked": len(skills), "problems": wrong}, indent=1))
        return 1 if wrong else 0
    for name, lines in sorted(wrong.items()):
        for line in lines:
            print(f"{name}: {line}")
    print(f"{len(skills)} skills checked, {sum(map(len, wrong.values())) or 'no'} problems")
    return 1 if wrong else 0
