"""The same incident under other conditions: what a diagnosis has to survive (a scenario's derived cases)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trackwalker.lab.faults import FAULTS
from trackwalker.lab.scenario import Scenario, Truth
from trackwalker.lab.world import WorldSpec

FAMILIES = (
    ("hw_rdma_*",),
    ("hw_gpu_power_*",),
    ("hw_gpu_temperature_*", "hw_gpu_clock_*"),
    ("hw_procs_*", "hw_context_*"),
    ("hw_tcp_*", "hw_net_*"),
    ("hw_io_*", "hw_mem_*"),
    ("hw_gpu_ras_*", "hw_gpu_pcie_*", "hw_dmesg_*"),
    ("ray_*",),
    ("tb_*",),
)
_ENDINGS = {"user-cancel", "walltime", "preempted"}


@dataclass(frozen=True)
class Variant:
    """One condition; nothing set is the scenario as it is written."""

    name: str = ""
    nodes: int | None = None
    profile: str | None = None
    lost_scrapes: float | None = None
    skew_s: float = 0.0  # one host's clock is ahead
    drop: bool = False  # one family of metrics, another for each seed, is not collected
    cut: float | None = None  # seen while it runs, after this share of its steps

    def fits(self, scenario: Scenario) -> bool:
        """Whether the condition makes another case of this scenario, with a truth that is known."""
        world = WorldSpec.model_validate({k: v for k, v in scenario.world.items() if k in ("nodes", "profile", "ray")})
        if self.nodes is not None and (self.nodes == world.nodes or "hosts" in scenario.world):
            return False
        if self.profile is not None and self.profile == world.profile:
            return False
        if (self.drop or self.skew_s or self.lost_scrapes is not None) and not world.ray:
            return False
        return self.cut is None or not _ends(scenario)

    def world(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The settings of the world that this condition changes, under those asked for."""
        mine = {"nodes": self.nodes, "profile": self.profile, "lost_scrapes": self.lost_scrapes}
        return {k: v for k, v in (mine | {k: v for k, v in asked.items() if v is not None}).items() if v is not None}

    def fault(self, filled: dict[str, Any]) -> dict[str, Any]:
        """A fault as this condition has it."""
        return filled

    def dropped(self, seed: int) -> tuple[str, ...]:
        """The metrics that this seed's cluster does not collect."""
        return FAMILIES[seed % len(FAMILIES)] if self.drop else ()

    def truth(self, truth: Truth) -> Truth:
        """What is right to say under this condition."""
        if self.drop:  # what would decide may be what was dropped: then abstaining is right, accusing is not
            return truth.model_copy(update={"or_abstain": True})
        if self.cut is not None:
            return truth.model_copy(update={"status": ["running"], "mechanism": None})
        return truth


VARIANTS = {
    v.name: v
    for v in (
        Variant("drop-metrics", drop=True),
        Variant("clock-shift", skew_s=60.0),
        Variant("missing-samples", lost_scrapes=0.01),
        Variant("nodes-24", nodes=24),
        Variant("nodes-96", nodes=96),
        Variant("gpu-h200", profile="h200"),
        Variant("live-cut", cut=0.9),
    )
}
AS_WRITTEN = Variant()


def shifted_host(hosts: list[str], seed: int) -> str:
    """The host whose clock is wrong; drawn apart, so that the rest of the case stays as it was."""
    return hosts[int(np.random.default_rng([seed, 60]).integers(len(hosts)))]


def _ends(scenario: Scenario) -> bool:
    """Whether the incident is in the end of the run: a view from before it has another truth."""
    kinds = [FAULTS[f["kind"]].__module__.rsplit(".", 1)[-1] for f in scenario.faults if f.get("kind") in FAULTS]
    final = {"host-oom", "gpu-error"} & {str(f.get("kind")) for f in scenario.faults}
    roots = {str(r.get("cause")) for r in scenario.truth.get("roots", [])}
    return "stops" in kinds or bool(final) or bool(roots & _ENDINGS) or roots == {"teardown-crash"}
