"""`trackwalker sweep nodes`: the slow node."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trackwalker.cli.common.options import takes
from trackwalker.cli.sweeps.start import Common, start
from trackwalker.errors import UsageError
from trackwalker.logs.formats.nodelist import expand

ANY_SIZE = "llama2-70b"  # runs on any number of nodes

Nodes = Annotated[str, typer.Argument(metavar="NODELIST", help="The nodes, as n[1-16] or n1,n2.")]
Model = Annotated[str, typer.Option("--model", help="Model that every job trains, as model[[:alias]:tag].")]

EXAMPLE = "sweep nodes n[1-16] --observe"


@takes(Common)
def nodes(
    ctx: typer.Context,
    nodes_given: Nodes,
    model: Model = ANY_SIZE,
    options: Common = Common(),  # noqa: B008
) -> int:
    """Run one job on each node and tell who is slower than the others, and why.

    Within 2 % of the median is healthy, 2 to 5 % below marginal, 5 % and more degraded. Who looks slow runs again.
    """
    return start("nodes", request_of(nodes_given, model, options), options, ctx)


def request_of(nodelist: str, model: str, options: Common) -> dict[str, Any]:
    """What a sweep over nodes is asked for; they are given once, and are several."""
    if options.nodelist:
        raise UsageError("the nodes are given twice: as NODELIST and as --nodelist; keep the first")
    if options.on == "local":
        raise UsageError("this sweep compares nodes, and --on local has one only: it needs --on slurm")
    return {"model": model, "nodes": expand(nodelist)}
