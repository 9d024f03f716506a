"""`trackwalker submit` and `trackwalker plan`: a run on a cluster, checked before it is queued."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from trackwalker.cli.options import DEFAULT_WORKSPACE, AsJson
from trackwalker.cli.words import before, behind
from trackwalker.errors import UsageError
from trackwalker.job.redact import redact
from trackwalker.launch.request import parse_watching
from trackwalker.launch.schedulers.slurm import Batch, died_silently, first_look, plan_batch
from trackwalker.launch.schedulers.slurm import submit as queue
from trackwalker.launch.slurm.client import Slurm
from trackwalker.launch.slurm.options import parse_scheduler_words
from trackwalker.launch.snapshot import discard, take_snapshot
from trackwalker.launch.submission import How, plan_submission
from trackwalker.launch.validate import Asked
from trackwalker.node.checks.runner import BadPolicy, policy
from trackwalker.observe.prometheus import ensure_prometheus
from trackwalker.observe.ray_home import missing_ray

SCHEMA = "trackwalker.plan/1"

Model = Annotated[str, typer.Argument(help="Model, as model[[:alias]:tag].")]
Place = Annotated[Path, typer.Option("--workspace", envvar="JOB_WORKSPACE", help="Folder that holds the jobs.")]
Observe = Annotated[bool, typer.Option("--observe", help="Record metrics into the job directory (also: RAY=1).")]
Ray = Annotated[bool, typer.Option("--ray", help="Record, and keep a Ray cluster beside the run.")]
PerGpu = Annotated[
    int, typer.Option("--procs-per-node", min=1, help="Rank processes on each node; 1: one that sees all GPUs.")
]
Image = Annotated[str | None, typer.Option("--image", envvar="DOCKER_IMAGE", help="Container image, or a .tar of one.")]
Registry = Annotated[str, typer.Option("--registry", envvar="DOCKER_REGISTRY", help="Where images come from.")]
Runtime = Annotated[str | None, typer.Option("--runtime", help="docker, podman, apptainer, native, or auto.")]
Privileged = Annotated[bool, typer.Option("--privileged", help="Give containers every privilege.")]
Timeouts = Annotated[
    str | None,
    typer.Option("--stage-timeouts", envvar="STAGE_TIMEOUTS", help="As preflight:600,pull:900,health:300,train:none."),
]
Gpu = Annotated[str | None, typer.Option("--gpu", help="GPU of the nodes, as MI300X or H200: for memory and layers.")]
Fabric = Annotated[str | None, typer.Option("--fabric", help="Network of the nodes: ionic, mlx5, bnxt, efa, tcp.")]
Checks = Annotated[
    list[str] | None, typer.Option("--check", help="Preflight policy, as ecc=warn or gpus_free=off; repeatable.")
]
Code = Annotated[
    Path | None, typer.Option("--code", help="Folder whose code is frozen for the run; ranks start in that copy.")
]
Python = Annotated[str, typer.Option("--python", help="Python on the nodes, for the agent and for native runs.")]


def submit(
    ctx: typer.Context,
    model: Model,
    workspace: Place = DEFAULT_WORKSPACE,
    observe: Observe = False,
    ray: Ray = False,
    procs: PerGpu = 1,
    image: Image = None,
    registry: Registry = "docker.io",
    runtime: Runtime = None,
    privileged: Privileged = False,
    stage_timeouts: Timeouts = None,
    gpu: Gpu = None,
    fabric: Fabric = None,
    checks: Checks = None,
    code: Code = None,
    python: Python = sys.executable,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run, and queue nothing.")] = False,
    as_json: AsJson = False,
) -> int:
    """Queue a run on Slurm; words before '--' are sbatch's, words behind it the trainer's."""
    slurm = Slurm()
    options = parse_scheduler_words(before(ctx))
    asked = Asked(
        model,
        behind(ctx),
        options.nodes or 1,
        options.gpus_per_node,
        gpu,
        fabric,
        image,
        registry,
        stage_timeouts,
        workspace,
    )
    watching = parse_watching(observe, ray, os.environ, missing_ray())
    if watching.note:
        print(watching.note, file=sys.stderr)
    frozen = take_snapshot(code, workspace) if code is not None and not dry_run else None
    how = How(
        scheduler="slurm",
        argv=sys.argv[1:],
        procs=procs,
        observe=watching.observe,
        ray=watching.ray,
        runtime=runtime or ("auto" if image else "native"),
        privileged=privileged,
        python=python,
        policy=_policy(checks or []),
        listen=os.environ.get("TRACKWALKER_LISTEN", ""),
        snapshot=frozen.hash if frozen else "",
        workdir=str(frozen.path) if frozen else "",
    )
    try:
        batch = plan_batch(plan_submission(asked, how), options, None if dry_run else slurm, python)
        if dry_run:
            return _show(batch, as_json)
        if watching.observe:
            ensure_prometheus(lambda text: print(text, file=sys.stderr))
        queued = queue(batch, slurm)
    except UsageError:
        if frozen is not None:
            discard(frozen)
        raise
    for problem in batch.submission.checked.problems:
        print(f"warning: {problem.text}", file=sys.stderr)
    state = first_look(queued, slurm)
    if as_json:
        print(
            json.dumps(
                {
                    "schema": "trackwalker.submitted/1",
                    "id": queued.id,
                    "dir": str(queued.job_dir),
                    "log": str(queued.log),
                    "state": state.state,
                    "reason": state.reason,
                }
            )
        )
    else:
        print(f"job {queued.id}  log {queued.log}", flush=True)
    if died_silently(queued, state):
        print(f"job {queued.id} died before it wrote a line: {state.state} ({state.reason or 'no reason given'}); "
              "see slurmd's log on the node (a prolog that fails looks like this)", file=sys.stderr)  # fmt: skip
        return 1
    return 0


def plan(
    ctx: typer.Context,
    model: Model,
    workspace: Place = DEFAULT_WORKSPACE,
    observe: Observe = False,
    ray: Ray = False,
    procs: PerGpu = 1,
    image: Image = None,
    registry: Registry = "docker.io",
    runtime: Runtime = None,
    privileged: Privileged = False,
    stage_timeouts: Timeouts = None,
    gpu: Gpu = None,
    fabric: Fabric = None,
    checks: Checks = None,
    code: Code = None,
    python: Python = sys.executable,
    as_json: AsJson = False,
) -> int:
    """Print exactly what `submit` would run, and everything that is wrong with it; nothing is queued."""
    return submit(
        ctx, model, workspace, observe, ray, procs, image, registry, runtime, privileged, stage_timeouts, gpu, fabric,
        checks, code, python, dry_run=True, as_json=as_json,
    )  # fmt: skip


def _policy(words: list[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, eq, decision = word.partition("=")
        if not eq or decision not in ("fail", "warn", "off"):
            raise UsageError(f"--check {word}: the form is name=fail, name=warn or name=off")
        found[name] = decision
    try:
        policy(found)
    except BadPolicy as e:
        raise UsageError(f"--check: {e}") from e
    return found


def _show(batch: Batch, as_json: bool) -> int:
    submission = batch.submission
    record, order = submission.record, submission.order
    env = {name: {"value": s.value, "source": s.source} for name, s in record.env.items()}
    if as_json:
        answer: dict[str, Any] = {
            "schema": SCHEMA,
            "name": record.name,
            "nodes": order.nodes,
            "ranks": order.world,
            "sbatch": batch.argv(),
            "script": batch.script,
            "command": record.command,
            "container": order.container,
            "env": env,
            "env_on_nodes": order.layers,
            "config": {k: {"value": s.value, "source": s.source} for k, s in record.config.items()},
            "stage_timeouts": order.timeouts,
            "problems": [problem.to_dict() for problem in submission.checked.problems],
        }
        print(json.dumps(answer, default=str))
        return 0
    print(f"# {record.name}: {order.nodes} nodes, {order.world} ranks\n{shlex.join(batch.argv())}\n")
    print(f"# {submission.folder.name}/job.sh\n{batch.script}\n# every rank\n{shlex.join(record.command)}\n")
    print("# environment, and which layer says so")
    for name, setting in record.env.items():
        print(f"{name}={shlex.quote(redact(name, str(setting.value)))}  # {setting.source}")
    if order.layers:
        print(f"# and on each node the layer of its GPUs and network, one of: {', '.join(order.layers)}")
    changed = {k: s for k, s in record.config.items() if not s.source.startswith("model ")}
    print("\n# config beyond the model file")
    for name, setting in changed.items():
        print(f"{name}: {setting.value}  # {setting.source}")
    for problem in submission.checked.problems:
        print(f"\nwarning: {problem.text}")
    return 0
