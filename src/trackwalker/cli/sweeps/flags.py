"""`trackwalker sweep flags`: XLA and NCCL flags for one model, mesh and node list."""

from __future__ import annotations

from typing import Annotated

import typer

from trackwalker.cli.common.options import takes
from trackwalker.cli.common.words import behind
from trackwalker.cli.sweeps.start import Common, start
from trackwalker.launch.request.validate import Asked
from trackwalker.logs.formats.nodelist import expand
from trackwalker.sweep.flags.request import MOST, Wanted, request_of

EXAMPLE = "sweep flags 70b --nodelist n[1-8]"


@takes(Common)
def flags(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="Model, as model[[:alias]:tag].")],
    tries: Annotated[
        list[str] | None,
        typer.Option("--try", help="A variant of your own, as '--xla_flag=value _env_NAME=VALUE'; repeatable."),
    ] = None,
    evidence: Annotated[
        str | None, typer.Option("--evidence", help="Profiled job of this cell: what its trace calls for comes first.")
    ] = None,
    most: Annotated[int, typer.Option("--most", min=1, max=60, help="Variants taken from the catalogue.")] = MOST,
    profile: Annotated[
        bool, typer.Option("--profile", help="Trace baseline and winner at the end, and say what changed in the step.")
    ] = False,
    options: Common = Common(),  # noqa: B008
) -> int:
    """Tune XLA and NCCL flags of one model and mesh: screen, confirm, recommend.

    Baselines run in between all the time. Only runs made after the choice give the effect: the best of many looks good
    by luck. No flag is recommended unless it is confirmed.
    """
    nodes = len(expand(options.nodelist)) if options.nodelist else 1
    asked = Asked(model, behind(ctx), nodes, gpu=options.gpu, fabric=options.fabric)
    request = request_of(asked, Wanted(tries or (), evidence, most, profile), options.workspace)
    return start("flags", request, options, ctx)
