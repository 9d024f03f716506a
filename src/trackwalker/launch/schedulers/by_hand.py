"""A run, or a shell, as on a cluster and without a scheduler: here in a container, or one node of several.

The node agent is the same as under Slurm and in a pod; what a scheduler would tell it, this tells it. Nodes that are
started by hand meet in the job directory, so they need one job id and a workspace that all of them see.
"""

from __future__ import annotations

import getpass
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trackwalker.errors import UsageError
from trackwalker.job.layout import ID_FORM
from trackwalker.job.redact import HIDDEN
from trackwalker.job.resolve import resolve
from trackwalker.job.run import load_run
from trackwalker.launch.plan import new_local_id, short_hostname
from trackwalker.launch.request.models import load_model
from trackwalker.launch.request.resolved import Target
from trackwalker.launch.request.resolved import resolve as resolve_model
from trackwalker.launch.request.validate import MOST_NODES
from trackwalker.launch.slurm.client import submit_environment
from trackwalker.launch.slurm.script import STALE
from trackwalker.launch.submission import Submission
from trackwalker.node.runtimes import (
    caller_groups,
    detect,
    fabric_devices,
    gpu_vendor,
    gpu_warning,
    runtime_named,
    training_limits,
)
from trackwalker.node.runtimes.container import SHELL_LABEL, ContainerOrder, Mount, OrderError
from trackwalker.node.runtimes.image import HUB, credentials_from, ensure_image, is_archive, normalise
from trackwalker.node.runtimes.native import Native

COORDINATOR = ("JAX_COORDINATOR_IP", "JAX_COORDINATOR_PORT")


@dataclass(frozen=True)
class Place:
    """Which node of which job this is, as the environment was set by hand."""

    job_id: str
    nodes: int = 1
    rank: int = 0
    coordinator: tuple[str, ...] = ()  # as words behind `--`


def place_by_hand(env: Mapping[str, str]) -> Place:
    """JOB_ID, NNODES, NODE_RANK and the coordinator's address; on one node none of them is needed."""
    nodes = _number(env, "NNODES", 1, 1, MOST_NODES)
    rank = _number(env, "NODE_RANK", 0, 0, nodes - 1)
    job_id = env.get("JOB_ID", "")
    if not job_id and nodes > 1:
        raise UsageError(
            f"NNODES={nodes}: the nodes meet by their JOB_ID; set the same, as {_new_id()}, on all of them"
        )
    if job_id and not ID_FORM.match(job_id):
        raise UsageError(f"JOB_ID={job_id} is no job id; one that is: {_new_id()}")
    given = tuple(f"_env_{name}={env[name]}" for name in COORDINATOR if env.get(name)) if nodes > 1 else ()
    return Place(job_id or _new_id(), nodes, rank, given)


class RunByHand:
    """A started node: look after it, end it."""

    def __init__(self, submission: Submission, place: Place) -> None:
        self.record = submission.record.model_copy(update={"id": place.job_id})
        self.job_dir = submission.order.workspace / f"{place.job_id}-{submission.order.name}"
        self.log = self.job_dir.parent / f"{self.job_dir.name}.log"
        if place.rank:
            self.log = self.job_dir / f"rank-{place.rank}.log"
        elif (self.job_dir / "events.jsonl").exists():
            raise UsageError(f"job {place.job_id} has run already: set another JOB_ID on all nodes")
        submission.write()
        if place.rank == 0:
            submission.open_job(place.job_id)
        folder = submission.folder
        self.said = folder / "agent.log"
        gone = {*STALE.split(), "NODE_NAME"}
        env = {k: v for k, v in submit_environment(os.environ).items() if k not in gone}
        seat = {"JOB_ID": place.job_id, "JOB_COMPLETION_INDEX": str(place.rank), "NODE_NAME": short_hostname()}
        with self.said.open("ab") as out:
            self._agent = subprocess.Popen(
                [sys.executable, str(folder / "agent.pyz"), "node", str(folder / "order.json")],
                env={**env, **seat},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def supervise(self) -> int | None:
        """The exit code once the agent has ended: the job's on the first node."""
        return self._agent.poll()

    def cancel(self) -> None:
        """Ask the agent to end the run; it tells the ranks and writes the summary."""
        if self._agent.poll() is None:
            self._agent.send_signal(signal.SIGTERM)

    def wait_closed(self) -> None:
        """Nothing outlives the agent."""


def _number(env: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = env.get(name) or str(default)
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
        raise UsageError(f"{name}={text}: a whole number from {least} to {most} is needed")
    return int(text)


def _new_id() -> str:
    return new_local_id(time.time())


@dataclass(frozen=True)
class Shell:
    """A shell that is ready to be started."""

    argv: list[str]
    env: dict[str, str]


def open_shell(
    what: str | None,
    image: str | None,
    runtime_name: str,
    privileged: bool,
    workspace: Path,
    folder: Path,
    dry_run: bool,
    say: Callable[[str], None],
) -> Shell:
    """The command of a shell for a model or a job; without an image it is one on this machine."""
    env = _environment(what, workspace, say)
    name = f"trackwalker-shell-{_user()}-{secrets.token_hex(3)}"  # several may be open at the same time
    labels = {SHELL_LABEL: what or "none"}
    if not image or runtime_name == "native":
        if runtime_name not in ("", "native"):
            raise UsageError(f"--runtime {runtime_name} needs an image: --image or DOCKER_IMAGE")
        order = ContainerOrder("", name, [os.environ.get("SHELL") or "/bin/sh"], labels, env)
        native = Native()
        return Shell(native.run_argv(order), native.run_env(order, os.environ))
    try:
        cache = str(workspace.absolute() / ".images")
        # What is only printed may be for another machine.
        found = runtime_named(runtime_name, cache) if dry_run and runtime_name else detect(cache, runtime_name).runtime
        registry = os.environ.get("DOCKER_REGISTRY") or HUB
        if dry_run:
            ref = image if is_archive(image) else str(normalise(image, registry))
        else:
            ref = ensure_image(found, image, registry, credentials=credentials_from(os.environ), say=say).ref
        vendor = gpu_vendor()
        if warning := gpu_warning(vendor):
            say(warning)
        places = dict.fromkeys([str(workspace.absolute()), str(folder)])
        order = ContainerOrder(
            ref,
            name,
            ["/bin/sh", "-c", "command -v bash >/dev/null && exec bash; exec sh"],
            labels,
            env,
            mounts=[Mount(place, place) for place in places if Path(place).is_dir()],
            workdir=str(folder),
            devices=fabric_devices(),
            gpu=vendor,
            ulimits=training_limits(),
            groups=caller_groups(),
            privileged=privileged,
            interactive=True,
        )
        return Shell(found.run_argv(order), found.run_env(order, os.environ))
    except OrderError as e:
        raise UsageError(str(e)) from e


def _environment(what: str | None, workspace: Path, say: Callable[[str], None]) -> dict[str, str]:
    """The variables that the run was given, or would be on this machine."""
    if what is None:
        return {}
    if not (ID_FORM.match(what) or "/" in what or Path(what).exists()):
        model = load_model(what)
        target = Target(gpus_per_node=model.about.gpus_per_node, vendor=gpu_vendor() or None)
        return {k: str(s.value) for k, s in resolve_model(model, target).env.items()}
    job = resolve(what, workspace)
    record = load_run(job.dir / "run.json" if job.dir else None)
    if record is None:
        raise UsageError(f"{job.label} has no run.json: its environment is not known")
    # A secret was never written down: it has to be set by hand.
    hidden = sorted(k for k, s in record.env.items() if HIDDEN in str(s.value))
    if hidden:
        say(f"not set, as secrets are not recorded: {', '.join(hidden)}")
    env = {k: str(s.value) for k, s in record.env.items() if HIDDEN not in str(s.value)}
    return {**env, "JOB_ID": record.id, "JOB_NAME": record.name, "JOB_WORKSPACE": record.workspace}


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return "".join(c if c.isalnum() else "_" for c in name)
