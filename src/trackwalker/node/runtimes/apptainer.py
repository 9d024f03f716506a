"""Apptainer: no service and no root; the container is a child of ours, so signals reach it as they reach any rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trackwalker.node.runtimes.container import (
    MARK,
    ContainerOrder,
    Identity,
    Mount,
    OrderError,
    Runtime,
    bind,
    check,
    check_text,
)

_GPU = {"": [], "amd": ["--rocm"], "nvidia": ["--nv"]}


@dataclass(frozen=True)
class Apptainer(Runtime):
    """The apptainer command line; images are SIF files, which `cache` holds."""

    cache: str
    program: str = "apptainer"
    name: str = "apptainer"
    keeps_images: bool = False

    def run_argv(self, order: ContainerOrder) -> list[str]:
        """`apptainer exec` with nothing of the machine inside but what was ordered."""
        check(order)
        check_text(order, self.name)
        if order.privileged:
            raise OrderError("apptainer has no privileged mode: leave --privileged out, or use docker or podman")
        if order.gpu not in _GPU:
            raise OrderError(f"no such GPU vendor: {order.gpu!r}")
        # Not --containall: with a /dev/shm of its own, RCCL between ranks of one machine would break. --no-eval: else
        # a value with '$' or a backquote is run by a shell.
        argv = [self.program, "exec", "--contain", "--cleanenv", "--pid", "--no-eval", *_GPU[order.gpu]]
        if order.cap_add and order.cap_add != ["SYS_PTRACE"]:  # one's own processes may be traced without it
            argv += ["--add-caps", ",".join(f"CAP_{c}" for c in order.cap_add)]
        for mount in [*order.mounts, *(Mount(d, d) for d in order.devices)]:
            argv += ["--mount", bind(mount, "destination", "ro")]
        argv += ["--pwd", order.workdir] if order.workdir else []
        return [*argv, self.image(order.image), *order.argv]

    def run_env(self, order: ContainerOrder, base: Mapping[str, str]) -> dict[str, str]:
        """Every variable in the form that apptainer hands inside under its plain name."""
        ours = {f"APPTAINERENV_{k}": v for k, v in {**order.env, MARK: order.name}.items()}
        return {**{k: v for k, v in base.items() if not k.startswith(("APPTAINERENV_", "SINGULARITYENV_"))}, **ours}

    def auth_env(self, auth_file: str) -> dict[str, str]:
        """The docker-style file that newer versions read."""
        return {"APPTAINER_AUTH_FILE": auth_file}

    def image(self, ref: str) -> str:
        """The file of an image: a SIF as it is, a registry's image where `pull_argv` puts it."""
        if ref.startswith("/"):
            return ref
        name = "".join(c if c.isalnum() or c in "._-" else "_" for c in ref)
        return f"{self.cache}/{name}.sif"

    def pull_argv(self, ref: str) -> list[str]:
        """Fetch and convert into the cache."""
        return [self.program, "pull", "--force", self.image(ref), f"docker://{ref}"]

    def load_argv(self, archive: str) -> list[str]:
        """Convert an archive into the cache."""
        return [self.program, "build", "--force", self.image(archive.lstrip("/")), f"docker-archive://{archive}"]

    def digest_argv(self, ref: str) -> list[str]:
        """A SIF is one file: its content is its identity."""
        return ["sha256sum", self.image(ref)]

    def identity(self, output: str) -> Identity:
        """The first word, without the mark of an escaped file name."""
        first = output.split(maxsplit=1)[0].lstrip("\\") if output.split() else ""
        if len(first) != 64:
            raise OrderError("sha256sum answered something that is no checksum")
        return Identity(f"sha256:{first}")
