"""No container: the command as it is, on the machine's own software."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trackwalker.node.runtimes.container import MARK, ContainerOrder, Runtime, check

_CHDIR = 'cd -- "$1" && shift && exec "$@"'


@dataclass(frozen=True)
class Native(Runtime):
    """The command itself; mounts, devices and limits are the machine's."""

    name: str = "native"
    keeps_images: bool = False

    def run_argv(self, order: ContainerOrder) -> list[str]:
        """The command; a shell takes it to its folder first, and is gone by then."""
        check(order)
        return ["/bin/sh", "-c", _CHDIR, "sh", order.workdir, *order.argv] if order.workdir else list(order.argv)

    def run_env(self, order: ContainerOrder, base: Mapping[str, str]) -> dict[str, str]:
        """The machine's environment and the order's."""
        return {**base, **order.env, MARK: order.name}
