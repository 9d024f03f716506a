"""`trackwalker sweep nodes` and `sweep network`: the slow node, the bad link."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trackwalker.cli.common.options import takes
from trackwalker.cli.sweeps.start import Common, start
from trackwalker.errors import UsageError
from trackwalker.logs.formats.nodelist import expand

_MODEL = "llama2-70b"  # runs on any number of nodes

Nodes = Annotated[str, typer.Argument(metavar="NODELIST", help="The nodes, as n[1-16] or n1,n2.")]
Model = Annotated[str, typer.Option("--model", help="Model that every job trains, as model[[:alias]:tag].")]


@takes(Common)
def nodes(
    ctx: typer.Context,
    nodes_given: Nodes,
    model: Model = _MODEL,
    options: Common = Common(),  # noqa: B008
) -> int:
    """Run one job on each node and tell who is slower than the others, and why.

    Within 2 % of the median is healthy, 2 to 5 % below marginal, 5 % and more degraded. Who looks slow runs again.
    """
    return start("nodes", _request(nodes_given, model, options), options, ctx)


@takes(Common)
def network(
    ctx: typer.Context,
    nodes_given: Nodes,
    model: Model = _MODEL,
    expect: Annotated[
        float | None,
        typer.Option(
            "--expect", min=0.0, help="Tokens/s/device of half of the nodes on a good day: tells if all are slow."
        ),
    ] = None,
    options: Common = Common(),  # noqa: B008
) -> int:
    """Find the node or the link that slows collectives down, by groups of nodes.

    Six groups cover every link; a walk from a good group to a slow one finds the culprit; pairs confirm it.
    """
    request = _request(nodes_given, model, options)
    return start("network", request if expect is None else {**request, "expect": expect}, options, ctx)


def _request(nodelist: str, model: str, options: Common) -> dict[str, Any]:
    if options.nodelist:
        raise UsageError("the nodes are given twice: as NODELIST and as --nodelist; keep the first")
    if options.on == "local":
        raise UsageError("this sweep compares nodes, and --on local has one only: it needs --on slurm")
    return {"model": model, "nodes": expand(nodelist)}
