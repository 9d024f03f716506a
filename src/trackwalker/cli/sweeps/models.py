"""`trackwalker sweep models`: every model at its node counts, for each commit; what got slower and what broke."""

from __future__ import annotations

from typing import Annotated

import typer

from trackwalker.cli.common.options import takes
from trackwalker.cli.common.words import behind
from trackwalker.cli.sweeps.start import Common, start
from trackwalker.errors import UsageError
from trackwalker.launch.request.words import parse_passthrough
from trackwalker.sweep.models.request import ALIKE, Asked, request_of

EXAMPLE = "sweep models --nodelist n[1-8] --commits main feature"


@takes(Common)
def models(
    ctx: typer.Context,
    nodes: Annotated[
        str | None, typer.Argument(metavar="NODELIST", help="As n[1-16], or disjoint sets: n1/n[2-3]/n[4-7].")
    ] = None,
    commits: Annotated[
        list[str] | None, typer.Option("--commits", help="Commits in order, as A B C; their code is what jobs run.")
    ] = None,
    names: Annotated[
        list[str] | None, typer.Option("--models", help="NAME or NAME:N (nodes), several; else every listed model.")
    ] = None,
    reassign: Annotated[
        bool, typer.Option("--reassign", help="Give models new nodes: they are compared with nothing before.")
    ] = False,
    options: Common = Common(),  # noqa: B008
) -> int:
    """Run every model at its node counts, for each commit; tell what got slower and what broke.

    A model keeps its nodes in every sweep of a workspace, and earlier sweeps are columns of the table. With --commits,
    --code names their repository (here, if not given).
    """
    if nodes and options.nodelist:
        raise UsageError("the nodes are given twice, as NODELIST and as --nodelist: once is enough")
    words = parse_passthrough(behind(ctx))
    given = nodes or options.nodelist or ""
    if not given and options.on == "slurm":
        raise UsageError("which nodes? A model sweep pins every job: sweep models n[1-8], as sinfo names them")
    asked = Asked(
        workspace=options.workspace,
        nodes=given if options.on == "slurm" else "",
        models=names or (),
        commits=commits or (),
        code=options.code,
        reassign=reassign,
        steps=options.steps,
        config=words.config,
        env=words.env,
        setup={key: getattr(options, key) for key in ALIKE},
    )
    return start("models", request_of(asked, dry_run=options.dry_run), options, ctx)
