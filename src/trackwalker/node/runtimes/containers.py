"""The job's containers on one node: the image is fetched before training, each rank runs in one, none is left."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from trackwalker.node.runtimes import (
    ORDER,
    caller_groups,
    detect,
    fabric_devices,
    gpu_vendor,
    gpu_warning,
    runtime_named,
    training_limits,
)
from trackwalker.node.runtimes.container import JOB_LABEL, ContainerOrder, Mount, OrderError, Runtime, own_name
from trackwalker.node.runtimes.image import HUB, credentials_from, ensure_image, is_archive, normalise
from trackwalker.node.runtimes.lifetime import remove_stale, stop_containers
from trackwalker.node.stages.order import Order, Seat
from trackwalker.node.stages.rendezvous import Note

_PULL_S = 3600.0  # where the stage has no limit of its own
_PROGRESS = "TRACKWALKER_PROGRESS"


class Containers:
    """What `order.container` asks for: image, runtime, registry, digest, privileged, mounts."""

    def __init__(self, order: Order, seat: Seat, job_dir: Path, own: Path) -> None:
        self._wanted: dict[str, Any] = order.container or {}
        self._order, self._seat, self._job_dir, self._own = order, seat, job_dir, own
        self._runtime: Runtime | None = None
        self._image = ""
        self._names: list[str] = []

    def fetch(self, deadline: float | None) -> Note:
        """Have the image here; the note carries its digest, which has to be the same everywhere."""
        said: list[str] = []
        cache = str(self._order.workspace / ".images")
        limit = _PULL_S if deadline is None else max(1.0, deadline - time.monotonic())
        try:
            found = detect(cache, self._wanted.get("runtime", ""))
            ready = ensure_image(
                found.runtime,
                self._wanted["image"],
                self._wanted.get("registry") or HUB,
                self._wanted.get("digest") or "",
                credentials_from(os.environ),
                said.append,
                limit,
            )
        except OrderError as e:
            return {"ok": False, "lines": [*said, f"[ERROR] {self._seat.host}: {e}"], "digest": ""}
        self._runtime, self._image = found.runtime, ready.ref
        warning = gpu_warning(gpu_vendor()) if self._order.expected_gpus != 0 else ""
        said += [f"{self._seat.host}: {warning}"] if warning else []
        return {"ok": True, "lines": said, "digest": ready.digest}

    def wrap(self, rank: int, argv: list[str], env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        """The command that runs a rank in its container, and the environment of that command."""
        if self._runtime is None:
            raise OrderError("the image was not fetched")
        container = self._container(self._image, rank, argv, env)
        remove_stale(self._runtime, self._seat.job_id, container.name)
        self._names.append(container.name)
        return self._runtime.run_argv(container), self._runtime.run_env(container, {})

    def preview(self, argv: list[str], env: dict[str, str]) -> list[str]:
        """The first rank's command as a machine with the devices of this one would run it; nothing is fetched."""
        runtime = runtime_named(self._wanted.get("runtime") or ORDER[0], str(self._order.workspace / ".images"))
        image: str = self._wanted["image"]
        ref = image if is_archive(image) else str(normalise(image, self._wanted.get("registry") or HUB))
        return runtime.run_argv(self._container(ref, 0, argv, env))

    def _container(self, image: str, rank: int, argv: list[str], env: dict[str, str]) -> ContainerOrder:
        mounts = [Mount(str(self._order.workspace), str(self._order.workspace))]
        mounts += [Mount("/boot", "/boot", read_only=True)] if Path("/boot").is_dir() else []  # RCCL's DMABUF probe
        mounts += [Mount(**mount) for mount in self._wanted.get("mounts", [])]
        return ContainerOrder(
            image=image,
            name=own_name(self._seat.job_id, rank),
            argv=argv,
            labels={JOB_LABEL: self._seat.job_id},
            env={**env, _PROGRESS: str(self._own / "ranks" / f"{rank}.progress.jsonl")},
            mounts=mounts,
            workdir=self._order.workdir,
            devices=fabric_devices(),
            gpu=gpu_vendor(),
            ulimits=training_limits(),
            groups=caller_groups(),
            privileged=bool(self._wanted.get("privileged")),
            host_network=bool(self._wanted.get("host_network", True)),
        )

    def end_left_behind(self) -> None:
        """End the containers of this node's ranks after the agent that started them has died."""
        first = self._seat.node_rank * self._order.procs
        self._names = [own_name(self._seat.job_id, rank) for rank in range(first, first + self._order.procs)]
        with contextlib.suppress(OrderError):
            self._runtime = detect(str(self._order.workspace / ".images"), self._wanted.get("runtime", "")).runtime
            self.close()

    def close(self) -> None:
        """End what is left of them: killing a client does not kill a container that a service owns."""
        if self._runtime is not None:
            stop_containers(self._runtime, self._seat.job_id, self._names)
