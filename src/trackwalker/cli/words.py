"""Commands that take upstream's grammar: `model [scheduler args] -- key=value _env_K=V`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

_BEHIND = "trackwalker.behind"
_TYPED = "trackwalker.typed"
_RESUME = "--auto-resume"  # may stand without its number
_LISTS = ("--commits", "--models")  # take every word up to the next option


class WordsCommand(TyperCommand):
    """Splits at the first `--` before options are read: what stands behind it is never an option of ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep what stands behind the first `--`, and read the rest; later ones are swallowed, as upstream does."""
        cut = args.index("--") if "--" in args else len(args)
        for at, word in enumerate(args[:cut]):
            if word == _RESUME and not (at + 1 < cut and args[at + 1].isdigit()):
                from trackwalker.launch.resume import DEFAULT_BUDGET  # the list of commands needs nothing of it

                args[at] = f"{word}={DEFAULT_BUDGET}"
        ctx.meta[_TYPED] = args[cut + 1 :]
        ctx.meta[_BEHIND] = [word for word in args[cut + 1 :] if word != "--"]
        ctx.allow_extra_args = ctx.ignore_unknown_options = True
        return super().parse_args(ctx, spread(args[:cut]))


def spread(args: list[str]) -> list[str]:
    """`--commits A B` as `--commits A --commits B`, which is what the parser takes."""
    found, option = [], ""
    for at, word in enumerate(args):
        if word in _LISTS and at + 1 < len(args) and not args[at + 1].startswith("-"):
            option = word
        elif option and not word.startswith("-"):
            found += [option, word]
        else:
            option = ""
            found.append(word)
    return found


def behind(ctx: typer.Context) -> list[str]:
    """The words behind `--`."""
    return list(ctx.meta.get(_BEHIND, []))


def typed(ctx: typer.Context) -> list[str]:
    """The words behind the first `--`, later ones among them."""
    return list(ctx.meta.get(_TYPED, []))


def before(ctx: typer.Context) -> list[str]:
    """Words before `--` that are no options of ours: the scheduler's."""
    return list(ctx.args)
