"""A plan as it is printed: what the scheduler is given, what every rank runs, which values came from where."""

from __future__ import annotations

import json
import shlex
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.job.scrub import shown
from trackwalker.launch.submission import Submission
from trackwalker.node.containers import Containers
from trackwalker.node.order import Seat
from trackwalker.node.runtimes.container import OrderError

SCHEMA = "trackwalker.plan/1"


def show(submission: Submission, scheduled: dict[str, Any], as_json: bool) -> int:
    """Print a submission; `scheduled` is what its scheduler is given: sbatch and script, or manifest and container."""
    record, order = submission.record, submission.order
    scheduled = {"container": _container(submission), **scheduled}
    changed = {k: s for k, s in record.config.items() if not s.source.startswith("model ")}
    if as_json:
        answer: dict[str, Any] = {
            "schema": SCHEMA,
            "name": record.name,
            "nodes": order.nodes,
            "ranks": order.world,
            **scheduled,
            "command": record.command,
            "env": {name: {"value": s.value, "source": s.source} for name, s in record.env.items()},
            "env_on_nodes": order.layers,
            "config": {k: {"value": s.value, "source": s.source} for k, s in record.config.items()},
            "stage_timeouts": order.timeouts,
            "problems": [problem.to_dict() for problem in submission.checked.problems],
        }
        print(json.dumps(answer, default=str))
        return 0
    print(f"# {record.name}: {order.nodes} nodes, {order.world} ranks")
    if "sbatch" in scheduled:
        print(f"{shlex.join(scheduled['sbatch'])}\n\n# {submission.folder.name}/job.sh\n{scheduled['script']}")
    for manifest in scheduled.get("manifest", []):
        print(f"\n# {manifest['kind']}\n{json.dumps(manifest, indent=1)}")
    if scheduled["container"]:
        print(f"\n# container of each {'pod' if 'manifest' in scheduled else 'rank, with the devices of the node'}")
        print(shlex.join(scheduled["container"]))
    print(f"\n# every rank\n{shlex.join(record.command)}\n\n# environment, and which layer says so")
    for name, setting in record.env.items():
        print(f"{name}={shlex.quote(shown(name, str(setting.value)))}  # {setting.source}")
    if order.layers:
        print(f"# and on each node the layer of its GPUs and network, one of: {', '.join(order.layers)}")
    print("\n# config beyond the model file")
    for name, setting in changed.items():
        print(f"{name}: {setting.value}  # {setting.source}")
    for problem in submission.checked.problems:
        print(f"\nwarning: {problem.text}")
    word = scheduled.get("slurm") or {}
    if word.get("starts"):
        print(f"\n# Slurm would take it: {word['starts']}")
    if word.get("warning"):
        print(f"\nnote: {word['warning']}")
    return 0


def _container(submission: Submission) -> list[str] | None:
    """The container command of a rank, where a runtime on the nodes starts one."""
    record, order = submission.record, submission.order
    if order.container is None:
        return None
    env = {name: str(setting.value) for name, setting in record.env.items()}  # secrets starred
    seat = Seat("JOB", 0, "node")
    job_dir = order.workspace / f"JOB-{order.name}"
    try:
        return Containers(order, seat, job_dir, job_dir / "agent").preview(record.command, env)
    except OrderError as e:
        raise UsageError(str(e)) from e
