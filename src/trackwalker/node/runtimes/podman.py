"""Podman: docker's words, but nobody above the user: limits that the user may not raise must not be asked for."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trackwalker.node.runtimes.docker import Docker

_INITS = ("/usr/libexec/podman/catatonit", "/usr/bin/catatonit", "/usr/local/libexec/podman/catatonit")
_SYS_RESOURCE = 24  # the capability to go above a hard limit
_LIMITS = {
    "core": resource.RLIMIT_CORE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "stack": resource.RLIMIT_STACK,
}


@dataclass(frozen=True)
class Podman(Docker):
    """The podman command line, with what it can do on this machine."""

    program: str = "podman"
    name: str = "podman"
    init: bool = True
    hard: dict[str, int] = field(default_factory=dict)  # limits it may not exceed; empty: it may raise any

    def auth_env(self, auth_file: str) -> dict[str, str]:
        """Podman reads the file itself."""
        return {"REGISTRY_AUTH_FILE": auth_file}

    def remove_argv(self, name: str) -> list[str]:
        """`podman rm` would wait for its TERM to be obeyed; docker's does not."""
        return [self.program, "rm", "--force", "--time", "0", name]

    def _own_options(self) -> list[str]:
        # The proxy of the machine is no part of the run; and relabelling for SELinux would change the user's files.
        options = ["--http-proxy=false", "--security-opt", "label=disable"]
        return [*options, "--init"] if self.init else options

    def _limits(self, wanted: Mapping[str, int]) -> dict[str, int]:
        # Podman sets these two by itself, above what a bounded user may have.
        own = {name: self.hard[name] for name in ("nofile", "nproc") if name in self.hard}
        return {n: self._reachable(v, self.hard.get(n)) for n, v in (own | dict(wanted)).items()}

    def _reachable(self, value: int, hard: int | None) -> int:
        return value if hard is None or 0 <= value <= hard else hard

    def _nvidia(self) -> list[str]:
        return ["--device", "nvidia.com/gpu=all"]


def podman_here(program: str = "podman") -> Podman:
    """Podman as it is on this machine."""
    init = any(os.access(path, os.X_OK) for path in _INITS) or shutil.which("catatonit") is not None
    return Podman(program, init=init, hard=_hard_limits())


def _hard_limits() -> dict[str, int]:
    if _may_raise():
        return {}
    found = {name: resource.getrlimit(number)[1] for name, number in _LIMITS.items()}
    bounded = {name: hard for name, hard in found.items() if hard != resource.RLIM_INFINITY}
    if "nproc" in bounded:  # podman lowers its own to what the kernel has numbers for, and cannot go back up
        bounded["nproc"] = min(bounded["nproc"], _pid_max())
    return bounded


def _pid_max() -> int:
    try:
        return int(Path("/proc/sys/kernel/pid_max").read_text())
    except (OSError, ValueError):
        return 32768


def _may_raise() -> bool:
    try:
        status = Path("/proc/self/status").read_text()
        effective = next(row for row in status.splitlines() if row.startswith("CapEff:"))
        return bool(int(effective.split()[1], 16) >> _SYS_RESOURCE & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return False
