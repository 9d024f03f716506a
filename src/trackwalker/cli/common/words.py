"""Commands that take upstream's grammar: `model [scheduler args] -- key=value _env_K=V`."""

from __future__ import annotations

import difflib
import re
from typing import Any

import typer
from typer.core import TyperCommand

from trackwalker.errors import UsageError

_EARLIER = re.compile(r"-([1-9]\d{0,3})")
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
        rest = super().parse_args(ctx, spread(args[:cut]))
        self._refuse_misspelt(ctx)
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """With what is not an option of ours: the scheduler's words, and the trainer's."""
        return [*super().collect_usage_pieces(ctx), "[-N NODES] [-p PARTITION] [--time T] …", "[-- KEY=VALUE …]"]

    def _refuse_misspelt(self, ctx: Any) -> None:
        """A misspelt option of ours must not travel to the scheduler, whose options are not ours to know."""
        ours = [name for p in self.params for name in getattr(p, "opts", []) if name.startswith("--")]
        for word in ctx.args:
            name = word.partition("=")[0]
            if not name.startswith("--") or len(name) < 4:
                continue
            from trackwalker.launch.slurm.options import KNOWN  # the list of commands needs nothing of it

            if name[2:] in KNOWN:
                continue
            near = [o for o in ours if o.startswith(name)] or difflib.get_close_matches(name, ours, 1, 0.8)
            if near:
                raise UsageError(f"no option {name}; did you mean {near[0]}?")


def earlier_jobs(args: list[str]) -> list[str]:
    """`diagnose -2` means the job two before the latest: said so that no parser takes it for an option."""
    found, rest = [], args.index("--") if "--" in args else len(args)
    for at, word in enumerate(args[:rest]):
        counted = _EARLIER.fullmatch(word)
        value = at > 0 and args[at - 1].startswith("-") and len(args[at - 1]) > 1  # of the option before it: -n -1
        found.append(f"latest~{counted[1]}" if counted and not value and at > 0 else word)
    return found + args[rest:]


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
