"""Docker: a service that runs as root owns the container, so ending the client is not enough to end it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from trackwalker.node.runtimes.container import (
    JOB_LABEL,
    MARK,
    ContainerOrder,
    Identity,
    OrderError,
    Runtime,
    bind,
    check,
    check_text,
    steers_client,
)

_AMD = ("/dev/kfd", "/dev/dri")


@dataclass(frozen=True)
class Docker(Runtime):
    """The docker command line."""

    program: str = "docker"
    name: str = "docker"
    keeps_images: bool = True

    def run_argv(self, order: ContainerOrder) -> list[str]:
        """`docker run` in the foreground; the values of variables are not in it, see `run_env`."""
        check(order)
        check_text(order, self.name)
        argv = [self.program, "run", "--rm", "--name", order.name, "--pull", "never", *self._own_options()]
        for key, value in order.labels.items():
            argv += ["--label", f"{key}={value}"]
        argv += ["--privileged"] if order.privileged else []
        for capability in order.cap_add:
            argv += ["--cap-add", capability]
        argv += ["--shm-size", order.shm_size] if order.shm_size else ["--ipc", "host"]
        argv += ["--network", "host"] if order.host_network else []
        for limit, most in self._limits(order.ulimits).items():
            argv += ["--ulimit", f"{limit}={most}:{most}"]
        argv += self._gpu(order.gpu)
        for device in order.devices:
            argv += ["--device", device]
        for group in order.groups:
            argv += ["--group-add", group]
        for mount in order.mounts:
            argv += ["--mount", bind(mount, "target", "readonly")]
        argv += ["--workdir", order.workdir] if order.workdir else []
        for key, value in {**order.env, MARK: order.name}.items():
            argv += ["--env", f"{key}={value}" if key == MARK or steers_client(key) else key]
        argv += ["--interactive", "--tty"] if order.interactive else []
        # The image's own entry point would take our words as its arguments.
        return [*argv, "--entrypoint", order.argv[0], order.image, *order.argv[1:]]

    def run_env(self, order: ContainerOrder, base: Mapping[str, str]) -> dict[str, str]:
        """The client's environment, with the values that `--env NAME` refers to."""
        return {**base, **{k: v for k, v in order.env.items() if not steers_client(k)}}

    def auth_env(self, auth_file: str) -> dict[str, str]:
        """Docker reads `config.json` of the folder that it is told."""
        return {"DOCKER_CONFIG": auth_file.rpartition("/")[0]}

    def pull_argv(self, ref: str) -> list[str]:
        """`docker pull`."""
        return [self.program, "pull", "--quiet", ref]

    def load_argv(self, archive: str) -> list[str]:
        """`docker load`; not quiet: its answer names the image."""
        return [self.program, "load", "--input", archive]

    def digest_argv(self, ref: str) -> list[str]:
        """`docker image inspect`, as JSON."""
        return [self.program, "image", "inspect", ref]

    def identity(self, output: str) -> Identity:
        """The image's own id is all that a local build or a loaded archive has."""
        try:
            image = json.loads(output)[0]
            names = tuple(str(d) for d in image.get("RepoDigests") or [])
            return Identity("sha256:" + str(image["Id"]).rpartition(":")[2], names)
        except (ValueError, LookupError, TypeError, AttributeError) as e:
            raise OrderError(f"{self.name} image inspect answered something that is no image description") from e

    def list_own_argv(self, job_id: str) -> list[str]:
        """Running or not: a dead one still holds its name."""
        return [self.program, "ps", "--all", "--filter", f"label={JOB_LABEL}={job_id}", "--format", "{{.Names}}"]

    def stop_argv(self, name: str, grace_s: int) -> list[str]:
        """`-t` is the one spelling that all versions of docker and podman share."""
        return [self.program, "stop", "-t", str(grace_s), name]

    def kill_argv(self, name: str) -> list[str]:
        """`docker kill`."""
        return [self.program, "kill", name]

    def remove_argv(self, name: str) -> list[str]:
        """`docker rm`."""
        return [self.program, "rm", "--force", name]

    def _own_options(self) -> list[str]:
        # Without an init the trainer is process 1, for which the kernel drops every signal it has no handler for.
        return ["--init"]

    def _limits(self, wanted: Mapping[str, int]) -> dict[str, int]:
        return dict(wanted)  # its service runs as root and may grant anything

    def _gpu(self, vendor: str) -> list[str]:
        if vendor == "amd":
            return [word for device in _AMD for word in ("--device", device)]
        if vendor == "nvidia":
            return self._nvidia()
        if vendor:
            raise OrderError(f"no such GPU vendor: {vendor!r}")
        return []

    def _nvidia(self) -> list[str]:
        return ["--gpus", "all"]
