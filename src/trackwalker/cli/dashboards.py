"""`trackwalker dashboards`: Grafana boards of our metrics, with the files that provision them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trackwalker.observe.grafana import write_dashboards


def dashboards(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write; made where it is missing.")],
    url: Annotated[str, typer.Option("--prometheus", help="The Prometheus that Grafana shall ask.")] = (
        "http://127.0.0.1:9090"
    ),
) -> None:
    """Write Grafana dashboards (job, node, GPU, network) and their provisioning files into a folder."""
    for path in write_dashboards(folder, url):
        print(path)
