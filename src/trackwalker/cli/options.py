"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Workspace = Annotated[
    Path,
    typer.Option("--workspace", "-w", envvar="JOB_WORKSPACE", help="Folder that holds the jobs.", show_default=True),
]
DEFAULT_WORKSPACE = Path("outputs")
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout instead of text.")]
