"""`trackwalker sweep network`: the bad link."""

from __future__ import annotations

from typing import Annotated

import typer

from trackwalker.cli.common.options import takes
from trackwalker.cli.sweeps.nodes import ANY_SIZE, Model, Nodes, request_of
from trackwalker.cli.sweeps.start import Common, start

EXAMPLE = "sweep network n[1-16]"


@takes(Common)
def network(
    ctx: typer.Context,
    nodes_given: Nodes,
    model: Model = ANY_SIZE,
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
    request = request_of(nodes_given, model, options)
    return start("network", request if expect is None else {**request, "expect": expect}, options, ctx)
