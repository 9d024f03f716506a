"""Who is who: the machine, its ranks, and which rank uses which GPU. Every value is 1; the labels are the answer."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from trackwalker.job.processes import read_bytes
from trackwalker.node.exporter.exposition import Family
from trackwalker.node.sensors.sysfs import declared, families, line, names

METRICS = declared("identity")
_PROPERTY = re.compile(r"^(simd_count|location_id|domain) (\d+)$", re.MULTILINE)

_CONTAINER = "NVIDIA_VISIBLE_DEVICES"  # what NVIDIA's container runtime lets in; the first of them is 0 inside
_VISIBLE = (_CONTAINER, "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_NO_CHOICE = ("", "all", "none", "void")

Labels = Mapping[str, str]


class Place(NamedTuple):
    """One rank of this node; its environment says which GPUs it may see."""

    rank: int
    host: str
    pid: int
    env: Mapping[str, str]


class IdentityCollector:
    """Joins what the GPU collectors know with what the launcher said."""

    name = "identity"

    def __init__(self, node: str, places: list[Place], gpus: Callable[[], list[Labels]], sysfs: str = "/sys") -> None:
        self._node, self._places, self._gpus, self._sysfs = node, places, gpus, sysfs

    def collect(self) -> list[Family]:
        """All families of now."""
        out = families({name: about for name, about in METRICS.items() if name != "hw_agent_info"})
        gpus = in_runtime_order(self._gpus(), self._sysfs)
        out["hw_node_info"].add(1, None, host=self._node, **self._machine(gpus))
        for local, place in enumerate(self._places):
            labels = {"host": place.host, "rank": str(place.rank), "local_rank": str(local)}
            out["hw_rank_info"].add(1, None, **labels, node=self._node, pid=str(place.pid))
        for place, gpu, known_by in gpus_of_ranks(self._places, gpus):
            labels = {"host": self._node, "gpu": gpu["gpu"], "rank": str(place.rank), "lane": place.host}
            out["hw_gpu_rank_info"].add(1, None, **labels, known_by=known_by)
            for number in _own_slices(gpu, place.env):
                labels["gpu"] = slice_name(gpu["gpu"], number)
                out["hw_gpu_rank_info"].add(1, None, **labels, known_by=known_by)
        return list(out.values())

    def _machine(self, gpus: list[Labels]) -> dict[str, str]:
        def every(label: str) -> str:
            return ",".join(sorted({g.get(label, "") for g in gpus} - {""}))

        driver = every("driver") or line(f"{self._sysfs}/module/amdgpu/version")
        about = {"gpu_model": every("name"), "driver": driver if gpus else "", "firmware": every("vbios")}
        return {"kernel": os.uname().release, "gpus": str(len(gpus)), **about}


def slice_name(gpu: str, number: int) -> str:
    """A MIG slice as NVIDIA's container tools write it: 0:1."""
    return f"{gpu}:{number}"


def _own_slices(gpu: Labels, env: Mapping[str, str]) -> list[int]:
    """Which slices of a GPU an environment names."""
    named = {word.strip() for variable in _VISIBLE for word in env.get(variable, "").split(",")}
    return [number for number, uuid in enumerate(gpu.get("mig", "").split(",")) if uuid in named - {""}]


def gpus_of_ranks(places: list[Place], gpus: list[Labels]) -> list[tuple[Place, Labels, str]]:
    """Rank, GPU and how we know; nothing where it would be a guess."""
    seen = [visible(gpus, place.env) for place in places]
    if len(places) == 1 and seen[0] is None:
        return [(places[0], gpu, "only rank") for gpu in gpus]
    told = {tuple(place.env.get(variable) for variable in _VISIBLE) for place in places}
    if len(places) > 1 and len(told) == 1:  # two slices of one card are two answers
        # All see the same GPUs: where there are as many as ranks, launchers give each the one of its place.
        same = gpus if seen[0] is None else seen[0]
        return [(p, g, "local order") for p, g in zip(places, same)] if len(same) == len(places) else []  # noqa: B905
    return [(p, gpu, "visible devices") for p, found in zip(places, seen) for gpu in found or ()]  # noqa: B905 - 3.9


def visible(gpus: list[Labels], env: Mapping[str, str]) -> list[Labels] | None:
    """The GPUs that the runtime would show under this environment; None when it says nothing about them."""
    found = None
    runtime = next((v for v in _VISIBLE[2:] if v in env), "")
    for variable in (*_VISIBLE[:2], runtime):  # each counts among what the one before left
        if variable in env and (variable != _CONTAINER or env[variable] not in _NO_CHOICE):
            found = _chosen(gpus if found is None else found, env[variable])
    return found


def _chosen(gpus: list[Labels], text: str) -> list[Labels]:
    out = []
    for word in text.split(","):
        word = word.strip()
        if word.isdecimal():
            match = gpus[int(word) : int(word) + 1]
        elif word.startswith("MIG-"):  # a slice is shown; the card is the one that it is a slice of
            match = [g for g in gpus if word in g.get("mig", "").split(",") or _slice_of(word, g)]
        else:
            bare = word[4:] if word.startswith("GPU-") else word
            match = [g for g in gpus if bare and g.get("uuid", "").replace("GPU-", "", 1).startswith(bare)]
        if len(match) != 1:
            break  # as the runtimes do: what follows a wrong entry is hidden
        out += match
    return out


def _slice_of(word: str, gpu: Labels) -> bool:
    """Whether a slice's name before driver 470 (MIG-GPU-<card>/1/0) holds that of the card."""
    return bool(gpu.get("uuid")) and word.startswith(f"MIG-{gpu['uuid']}/")


def in_runtime_order(gpus: list[Labels], sysfs: str) -> list[Labels]:
    """The GPUs as CUDA or ROCm number them: AMD's runtime goes by the kernel's topology, not by PCI address."""
    root = f"{sysfs}/class/kfd/kfd/topology/nodes"
    order: dict[str, int] = {}
    for number in sorted(int(n) for n in names(root) if n.isdigit()):
        text = (read_bytes(f"{root}/{number}/properties") or b"").decode("ascii", "replace")
        about = {name: int(value) for name, value in _PROPERTY.findall(text)}
        if about.get("simd_count") and "location_id" in about:
            place = about["location_id"]
            address = f"{about.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
            order[address] = number
    return sorted(gpus, key=lambda g: (order.get(g.get("pci", ""), 1 << 30), int(g["gpu"])))
