"""Options that several commands share."""

from __future__ import annotations

import dataclasses
import inspect
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

Workspace = Annotated[
    Path,
    typer.Option("--workspace", "-w", envvar="JOB_WORKSPACE", help="Folder that holds the jobs.", show_default=True),
]
DEFAULT_WORKSPACE = Path("outputs")
AsMd = Annotated[bool, typer.Option("--md", help="Print Markdown for a ticket.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout instead of text.")]
Image = Annotated[str | None, typer.Option("--image", envvar="DOCKER_IMAGE", help="Container image, or a .tar of one.")]
Registry = Annotated[str, typer.Option("--registry", envvar="DOCKER_REGISTRY", help="Where images come from.")]
Runtime = Annotated[str | None, typer.Option("--runtime", help="podman, docker, apptainer, …, native, or auto.")]
Privileged = Annotated[bool, typer.Option("--privileged", help="Give containers every privilege.")]
StoreAuthFile = Annotated[
    Path | None,
    typer.Option(
        "--metrics-auth-file",
        envvar="TRACKWALKER_METRICS_AUTH_FILE",
        help="File with one line: 'bearer TOKEN' or 'basic USER:PASSWORD'.",
    ),
]
StoreTenant = Annotated[
    str, typer.Option("--metrics-tenant", envvar="TRACKWALKER_METRICS_TENANT", help="X-Scope-OrgID of the store.")
]
StoreCaFile = Annotated[
    Path | None,
    typer.Option("--metrics-ca-file", envvar="TRACKWALKER_METRICS_CA_FILE", help="Certificates that the store has."),
]
MetricMap = Annotated[
    Path | None,
    typer.Option(
        "--metric-map", envvar="TRACKWALKER_METRIC_MAP", help="A map of further metrics (as telemetry/foreign.yml)."
    ),
]

JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Job id or its unique beginning, log file or directory; 'latest'; "
        "'-': the job before the latest, '-2': the one before that.",
    ),
]


def for_nodes(default: Any) -> Any:
    """A flag that the launcher only carries: what runs on the nodes reads it as `order.flags[name]`."""
    return dataclasses.field(default=default, metadata={"for_nodes": True})


@dataclasses.dataclass(frozen=True)
class JobFlags:
    """How a job is run: flags that `submit`, `plan` and every sweep have, each declared here and nowhere else."""

    workspace: Annotated[
        Path, typer.Option("--workspace", envvar="JOB_WORKSPACE", help="Folder that holds jobs and sweeps.")
    ] = DEFAULT_WORKSPACE
    observe: Annotated[bool, typer.Option("--observe", help="Record metrics into the job directory.")] = False
    procs: Annotated[
        int, typer.Option("--procs-per-node", min=1, help="Rank processes on each node; 1: one that sees all GPUs.")
    ] = 1
    image: Image = None
    registry: Registry = "docker.io"
    runtime: Runtime = None
    privileged: Privileged = False
    stage_timeouts: Annotated[
        str | None,
        typer.Option(
            "--stage-timeouts", envvar="STAGE_TIMEOUTS", help="As preflight:600,pull:900,health:300,train:none."
        ),
    ] = None
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu", envvar="TRACKWALKER_GPU", help="GPU of the nodes, as MI300X or H200: for memory and layers."
        ),
    ] = None
    fabric: Annotated[
        str | None,
        typer.Option(
            "--fabric", envvar="TRACKWALKER_FABRIC", help="Network of the nodes: ionic, mlx5, bnxt, efa, tcp."
        ),
    ] = None
    code: Annotated[
        Path | None, typer.Option("--code", help="Folder whose code is frozen for the run; ranks start in that copy.")
    ] = None
    python: Annotated[
        str | None,
        typer.Option(
            "--python", help="Python on the nodes, for the agent and for native runs; this one, in pods python3."
        ),
    ] = None

    def carried(self) -> dict[str, Any]:
        """The flags that are for the nodes, by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.metadata.get("for_nodes")}


def as_named(job: str, workspace: Path) -> str:
    """A job as a command to copy names it: with the workspace where a command would look elsewhere without it."""
    usual = os.environ.get("JOB_WORKSPACE") or str(DEFAULT_WORKSPACE)
    return shlex.join([job, *([] if str(workspace) == usual else ["-w", str(workspace)])])


def takes(kind: type[Any]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """A command that gets the fields of a dataclass as its options, and itself one object: its last parameter.

    Typer reads options from a flat signature; commands that share twenty of them shall not repeat them.
    """

    def wrap(command: Callable[..., int]) -> Callable[..., int]:
        *own, last = inspect.signature(command, eval_str=True).parameters.values()
        hints = get_type_hints(kind, include_extras=True)
        keyword = inspect.Parameter.KEYWORD_ONLY
        shared = [
            inspect.Parameter(f.name, keyword, default=f.default, annotation=hints[f.name])
            for f in dataclasses.fields(kind)
        ]

        def flat(**given: Any) -> int:
            options = kind(**{f.name: given.pop(f.name) for f in dataclasses.fields(kind)})
            return command(**given, **{last.name: options})

        parameters = [*(p.replace(kind=keyword) for p in own), *shared]
        flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        flat.__annotations__ = {p.name: p.annotation for p in parameters}
        flat.__doc__, flat.__name__ = command.__doc__, command.__name__
        return flat

    return wrap
