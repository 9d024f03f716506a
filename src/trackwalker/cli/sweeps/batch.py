"""`trackwalker sweep batch`: the setting with the highest steady throughput."""

from __future__ import annotations

from typing import Annotated

import typer

from trackwalker.cli.common.options import takes
from trackwalker.cli.common.words import behind
from trackwalker.cli.sweeps.start import Common, start
from trackwalker.launch.request.validate import Asked
from trackwalker.logs.formats.nodelist import expand
from trackwalker.sweep.batch.request import BATCH, Wanted, request_of

EXAMPLE = "sweep batch 70b --nodelist n[1-8] -- dataset_type=synthetic"


@takes(Common)
def batch(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="Model, as model[[:alias]:tag].")],
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            help=f"What is varied: NAME or NAME=low:high[:step] is searched, NAME=a,b,c tried one by one; {BATCH} if "
            "not given. A second one, NAME=a,b,c, is fixed to each of its values in turn.",
        ),
    ] = None,
    start_at: Annotated[
        int | None, typer.Option("--start", min=1, help="First size; else three quarters of what the memory allows.")
    ] = None,
    prior: Annotated[
        str | None, typer.Option("--prior", help="Earlier job of this model and mesh whose memory lines are read.")
    ] = None,
    options: Common = Common(),  # noqa: B008
) -> int:
    """Find the setting with the highest steady throughput: per-device batch, or any other one or two.

    Out of memory and a hang that comes back are bounds. Sizes too close to call are run again; the smaller wins a tie.
    """
    nodes = len(expand(options.nodelist)) if options.nodelist else 1
    asked = Asked(model, behind(ctx), nodes, gpu=options.gpu, fabric=options.fabric)
    request = request_of(asked, Wanted(param or (), start_at, prior), options.workspace)
    return start("batch", request, options, ctx)
