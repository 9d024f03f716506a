"""`trackwalker ask`: a question in plain words, answered from the evidence; a model may look further."""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from trackwalker.agent.ask.ask import (
    Answered,
    Budget,
    Reply,
    ask,
    document,
    place,
    transcript,
    unaccused,
    with_model,
)
from trackwalker.agent.workspace import Workspace
from trackwalker.cli.common import options
from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson
from trackwalker.cli.common.say import Screen, damaged, print_json
from trackwalker.errors import UsageError
from trackwalker.report import words

_STRUCK = re.compile(r"~~(.*?)~~", re.DOTALL)


def ask_command(
    question: Annotated[
        list[str], typer.Argument(metavar="QUESTION…", help="In plain words, a job's id anywhere in it.")
    ],
    workspace: options.Workspace = DEFAULT_WORKSPACE,
    no_model: Annotated[
        bool, typer.Option("--no-model", help="Answer without a model, even where one is set.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", envvar="TRACKWALKER_MODEL", help="provider:name; the key in the provider's variable."),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint", envvar="TRACKWALKER_ENDPOINT", help="OpenAI-compatible URL; --model names its model."
        ),
    ] = None,
    turns: Annotated[int, typer.Option("--turns", min=1, help="Most requests to the model.")] = Budget.turns,
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, help="Limit on the tokens that the model may use.")
    ] = Budget.tokens,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Most seconds of the model.")] = Budget.seconds,
    keep: Annotated[
        bool, typer.Option("--transcript", help="Write what was asked and said into the job's folder.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Answer a question about a job from its evidence; a model, if one is given, looks further. No job is changed.

    Exit codes: 0 an answer, 2 not understood or no such job, 3 an answer from damaged evidence.
    """
    asked, home = place(" ".join(question), workspace)
    wanted = not no_model and (model is not None or endpoint is not None)
    if wanted and endpoint is None and model is not None and ":" not in model:
        raise UsageError(f"--model {model}: give provider:name, as in anthropic:claude-sonnet-4-5, or an --endpoint")
    with closing(Workspace(home)) as ws:
        reply = ask(asked, ws)
        answered = Answered(reply)
        if not as_json:
            _show(reply, "" if home == DEFAULT_WORKSPACE else f" --workspace {shlex.quote(str(home))}")
        if wanted:
            answered = with_model(reply, ws, model, endpoint, Budget(turns, tokens, seconds), _say)
            if not as_json:
                _show_model(answered)
        if as_json:
            print_json(document(answered, ws))
        if keep:
            print(f"transcript: {transcript(answered, ws)}", file=sys.stderr)
    return damaged(reply.damage)


def _show(reply: Reply, where: str) -> None:
    console = Screen(highlight=False)
    for guess in reply.asked.guesses:
        _put(console, f"({guess})", "dim")
    for sentence in reply.sentences:
        _put(console, sentence)
    if reply.evidence:
        _put(console, "evidence", "bold")
    for quote in reply.evidence:
        said = f"\u201c{quote.says}\u201d" if quote.quoted else quote.says
        _put(console, f"{quote.id + ': ' if quote.id else ''}{said}", indent=2)
        if quote.source:
            _put(console, quote.source, "dim", indent=6)
    if reply.next:
        _put(console, "next", "bold")
    for step in reply.next:
        _put(console, step, indent=2)
    numbered = [quote.id for quote in reply.evidence if quote.id]
    if numbered and reply.asked.command.startswith("trackwalker diagnose"):
        piece = f"{reply.asked.command}{where} --evidence {numbered[0]}"
        console.print(Text(f"for all values of a piece of evidence: {piece}", "dim"), soft_wrap=True)
    console.print(Text(f"for the full answer: {reply.asked.command}{where}", "dim"), soft_wrap=True)  # to be copied


def _show_model(answered: Answered) -> None:
    console = Screen(highlight=False)
    found = answered.investigation
    if found is None or found.grounded is None:
        note = answered.note or (found.note if found else "")
        _put(console, f"note: {note}; the answer above is the engine's and stands without it", "yellow")
        return
    _put(console, f"{answered.model} adds (checked against the evidence; the verdict above is not its)", "bold")
    text = Text()
    at = 0
    for match in _STRUCK.finditer(found.says):
        text.append(found.says[at : match.start()])
        text.append(match[0], "strike dim")
        at = match.end()
    console.print(text.append(found.says[at:]), soft_wrap=not console.is_terminal)
    if found.grounded.struck:
        missing = list(dict.fromkeys(name for _, names in found.grounded.struck for name in names))
        count = f"{len(found.grounded.struck)} sentence{'s' if len(found.grounded.struck) > 1 else ''}"
        _put(console, f"struck out: {count} with what is in no evidence: {words.names(missing)}", "yellow")
    others = unaccused(answered.reply, found.says)
    if others:
        _put(console, f"named by the model, but not by the verdict: {words.names(others)}", "yellow")


def _put(console: Console, text: str, style: str = "", indent: int = 0) -> None:
    """Wrapped on a terminal; elsewhere one line each, for those who search in it."""
    if console.is_terminal:
        console.print(Padding(Text(text, style), (0, 0, 0, indent)))
    else:
        console.print(Text(" " * indent + text), soft_wrap=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
