"""Commands that take upstream's grammar: `model [scheduler args] -- key=value _env_K=V`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

from trackwalker.launch.resume import DEFAULT_BUDGET

_BEHIND = "trackwalker.behind"
_NUMBERED = {"--auto-resume": DEFAULT_BUDGET}  # options that may stand without their number


class WordsCommand(TyperCommand):
    """Splits at the first `--` before options are read: what stands behind it is never an option of ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep what stands behind the first `--`, and read the rest; later ones are swallowed, as upstream does."""
        cut = args.index("--") if "--" in args else len(args)
        for at, word in enumerate(args[:cut]):
            bare = word in _NUMBERED and not (at + 1 < cut and args[at + 1].isdigit())
            args[at] = f"{word}={_NUMBERED[word]}" if bare else word
        ctx.meta[_BEHIND] = [word for word in args[cut + 1 :] if word != "--"]
        ctx.allow_extra_args = ctx.ignore_unknown_options = True
        return super().parse_args(ctx, args[:cut])


def behind(ctx: typer.Context) -> list[str]:
    """The words behind `--`."""
    return list(ctx.meta.get(_BEHIND, []))


def before(ctx: typer.Context) -> list[str]:
    """Words before `--` that are no options of ours: the scheduler's."""
    return list(ctx.args)
