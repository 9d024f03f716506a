"""A plan as it is printed: what the scheduler is given, what every rank runs, which values came from where."""

from __future__ import annotations

import json
import shlex
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.job.scrub import shown
from trackwalker.launch.submission import Submission
from trackwalker.node.runtimes.container import OrderError
from trackwalker.node.runtimes.containers import Containers
from trackwalker.node.stages.order import Seat

SCHEMA = "trackwalker.plan/1"


UNLIKELY = 1  # the job would probably run out of GPU memory


def show(submission: Submission, scheduled: dict[str, Any], as_json: bool, script: bool = False) -> int:
    """Print a submission; `scheduled` is what its scheduler is given: sbatch and script, or manifest and container.

    The verdict comes first; `script` adds everything that would run. Returns the exit code.
    """
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
            **({"flags": order.flags} if order.flags else {}),
            "problems": [problem.to_dict() for problem in submission.checked.problems],
        }
        print(json.dumps(answer, default=str))
        return _code(submission)
    print("\n".join(_verdict(submission, scheduled)))
    if not script:
        if "sbatch" in scheduled:
            print(f"\n{shlex.join(scheduled['sbatch'])}")
        print("\nAdd --script to see the job script and each rank's command, environment and config.")
        return _code(submission)
    print(f"\n# {record.name}: {order.nodes} nodes, {order.world} ranks")
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
    return _code(submission)


def _verdict(submission: Submission, scheduled: dict[str, Any]) -> list[str]:
    """The first lines: whether it would run, and what stands against it."""
    record, order, estimate = submission.record, submission.order, submission.checked.estimate
    what = f"{record.name} on {count(order.nodes, 'node')}, {count(order.world, 'rank')}"
    problems = [problem.text for problem in submission.checked.problems]
    word = scheduled.get("slurm") or {}
    more = [f"Slurm would take it: {word['starts']}"] if word.get("starts") else []
    more += [f"note: {word['warning']}"] if word.get("warning") else []
    if problems:
        return [f"{count(len(problems), 'problem')}: {what}", *(f"- {text}" for text in problems), *more]
    fits = "" if estimate is None else f"; fits, about {estimate.brief()} per GPU"
    return [f"OK: settings are valid{fits}: {what}", *more]


def _code(submission: Submission) -> int:
    estimate = submission.checked.estimate
    return UNLIKELY if estimate is not None and estimate.verdict == "unlikely" else 0


def count(number: int, word: str) -> str:
    """`1 node`, `8 nodes`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


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
