"""What is asked of a container, and what every runtime answers; a runtime only builds words, it starts nothing."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

JOB_LABEL = "trackwalker.job"  # only what carries it with our own id is ever stopped
SHELL_LABEL = "trackwalker.shell"  # a person's container: no job's end touches it
MARK = "TRACKWALKER_CONTAINER"  # in the environment inside, so that its processes are found without the runtime

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTAINER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
# In the client's own environment these would steer the client instead of the training inside. None holds a secret.
_STEERING = re.compile(
    r"PATH|HOME|TMPDIR|USER|GODEBUG|GOTRACEBACK|(LD|XDG|CONTAINERS)_\w+|CONTAINER_(HOST|CONNECTION|SSHKEY)"
    r"|DOCKER_(HOST|CONTEXT|CONFIG|CERT_PATH|TLS|TLS_VERIFY|API_VERSION|CONTENT_TRUST|DEFAULT_PLATFORM)"
    r"|STORAGE_(DRIVER|OPTS)|REGISTRY_AUTH_FILE"
)


class OrderError(ValueError):
    """An order that no runtime, or not this one, can carry out; one line that says why."""


@dataclass(frozen=True)
class Mount:
    """A folder or file of the machine, visible inside."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class ContainerOrder:
    """One container: image, command, environment, and the few privileges training needs."""

    image: str
    name: str
    argv: list[str]
    labels: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    mounts: list[Mount] = field(default_factory=list)
    workdir: str = ""
    devices: list[str] = field(default_factory=list)
    gpu: str = ""  # amd, nvidia or none
    ulimits: dict[str, int] = field(default_factory=dict)  # -1: unlimited
    shm_size: str = ""  # empty: the machine's own /dev/shm, which ranks in other containers share
    groups: list[str] = field(default_factory=list)
    cap_add: list[str] = field(default_factory=lambda: ["SYS_PTRACE"])  # py-spy and gdb
    privileged: bool = False
    host_network: bool = True  # RDMA and the coordinator's address are the machine's
    interactive: bool = False


@dataclass(frozen=True)
class Identity:
    """What a local image is: its content, and the names `repo@sha256:…` under which a registry has it."""

    content: str
    names: tuple[str, ...] = ()


class Runtime:
    """One way to run a container: the words of each command, and how to read the answers.

    An empty list says that the runtime has no such command: there are no images to fetch, or no service that owns the
    processes, so that signals are enough.
    """

    @property
    def name(self) -> str:
        """docker, podman, apptainer or native."""
        raise NotImplementedError

    @property
    def keeps_images(self) -> bool:
        """Whether it has a store of its own, in which an image is known by its content; else images are files."""
        return False

    def run_argv(self, order: ContainerOrder) -> list[str]:
        """The command that runs the container in the foreground."""
        raise NotImplementedError

    def run_env(self, order: ContainerOrder, base: Mapping[str, str]) -> dict[str, str]:
        """The environment in which that command is started: it carries the values, which `ps` must not show."""
        raise NotImplementedError

    def auth_env(self, auth_file: str) -> dict[str, str]:
        """How the runtime is told of credentials for one pull, without a login that stays."""
        return {}

    def pull_argv(self, ref: str) -> list[str]:
        """Fetch an image."""
        return []

    def load_argv(self, archive: str) -> list[str]:
        """Take an image from a tar archive."""
        return []

    def digest_argv(self, ref: str) -> list[str]:
        """Ask what a local image is; fails where there is none."""
        return []

    def identity(self, output: str) -> Identity:
        """What that answer says."""
        return Identity("")

    def list_own_argv(self, job_id: str) -> list[str]:
        """The names of this job's containers, one on each line."""
        return []

    def stop_argv(self, name: str, grace_s: int) -> list[str]:
        """TERM, and KILL after the grace."""
        return []

    def kill_argv(self, name: str) -> list[str]:
        """KILL now."""
        return []

    def remove_argv(self, name: str) -> list[str]:
        """Remove it, running or not."""
        return []


def check(order: ContainerOrder) -> None:
    """What no runtime could carry byte for byte is refused before anything starts."""
    if not _CONTAINER_NAME.fullmatch(order.name):
        raise OrderError(f"container name {order.name!r}: use letters, digits, '.', '_' and '-'")
    if not order.argv:
        raise OrderError(f"container {order.name} has no command")
    for key in order.env:
        if not _NAME.fullmatch(key):
            raise OrderError(f"{key!r} is no name of an environment variable")
    words = [*order.argv, *order.env.values(), order.workdir, *(w for m in order.mounts for w in (m.source, m.target))]
    for word in words:
        if "\0" in word:
            raise OrderError(f"{word!r} holds a NUL byte, which neither words nor environment can carry")
    for mount in order.mounts:
        if not (os.path.isabs(mount.source) and os.path.isabs(mount.target)):
            raise OrderError(f"mount {mount.source} -> {mount.target}: both paths must be absolute")


def check_text(order: ContainerOrder, runtime: str) -> None:
    """Refuse bytes that are no UTF-8: the runtime keeps its settings as JSON and would change them silently."""
    for where, word in [*(("the command", w) for w in order.argv), *order.env.items()]:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise OrderError(
                f"{where} holds bytes that are no UTF-8, which {runtime} cannot carry; --runtime native can"
            ) from None


def steers_client(name: str) -> bool:
    """Whether a variable would change the runtime's own client if it stood in its environment."""
    return bool(_STEERING.fullmatch(name))


def bind(mount: Mount, target_key: str, read_only_word: str) -> str:
    """A mount as the comma-separated words that `--mount` reads; a path may hold ':' and ','."""
    words = ["type=bind", f"source={mount.source}", f"{target_key}={mount.target}"]
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([*words, read_only_word] if mount.read_only else words)
    return text.getvalue()


def own_name(job_id: str, rank: int) -> str:
    """The name of the container in which a rank of a job runs."""
    return f"trackwalker-{job_id}-r{rank}"
