"""A shell as a run would have it: in its container or on this machine, with the run's environment."""

from __future__ import annotations

import getpass
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trackwalker.errors import UsageError
from trackwalker.job.layout import ID_FORM
from trackwalker.job.redact import HIDDEN
from trackwalker.job.resolve import resolve
from trackwalker.job.run import load_run
from trackwalker.launch.request.models import load_model
from trackwalker.launch.request.resolved import Target
from trackwalker.launch.request.resolved import resolve as resolve_model
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
        native = runtime_named("native", "")
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
