"""A model on so many nodes with the user's words: config, mesh, rules, environment, each value with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trackwalker.job.run import Setting
from trackwalker.launch.request.effective import Effective as Effective
from trackwalker.launch.request.layers import COMMAND_LINE, FABRICS, VENDORS, XLA_FLAGS, Environment, stack
from trackwalker.launch.request.mesh import Mesh, build_mesh
from trackwalker.launch.request.models import Model
from trackwalker.launch.request.rules import Rule, matching

_AXES = ("data", "fsdp", "tensor", "context", "sequence", "pipeline", "expert")
FACTS = frozenset({"nodes", "gpus", "vendor", "fabric", "dropless", *_AXES})  # what rules may ask beside config keys


@dataclass(frozen=True)
class Target:
    """Where a run is to go, as far as it is known."""

    nodes: int = 1
    gpus_per_node: int = 8
    vendor: str | None = None
    fabric: str | None = None


@dataclass(frozen=True)
class Resolved:
    """What would run; `mesh` is None where the parallelism keys do not fit, and `mesh_problems` says why."""

    model: Model
    target: Target
    config: dict[str, Setting]
    effective: Effective
    mesh: Mesh | None
    mesh_problems: list[str]
    rules: list[Rule]
    environment: Environment
    overrides: dict[str, str]  # environment, as the user gave it

    @property
    def env(self) -> dict[str, Setting]:
        """The environment of every rank."""
        return self.environment.settings()

    def env_on_nodes(self) -> dict[str, dict[str, str]]:
        """`vendor/fabric` to environment, for all that a node may turn out to have; empty where both are known."""
        known = self.target
        if self.model.about.trainer != "maxtext" or (known.vendor and known.fabric):
            return {}
        words = {k: s.value for k, s in self.config.items() if s.source == COMMAND_LINE}
        found = {}
        for vendor in [known.vendor] if known.vendor else VENDORS:
            for fabric in [known.fabric] if known.fabric else FABRICS:
                it = resolve(self.model, replace(known, vendor=vendor, fabric=fabric), words, self.overrides)
                own = it.overrides.keys() - {XLA_FLAGS}  # travel once, above all of this
                found[f"{vendor}/{fabric}"] = {k: str(s.value) for k, s in it.env.items() if k not in own}
        return found

    def settings_beyond_the_file(self) -> dict[str, Any]:
        """What the trainer must be told beside its config file: by rules and by the command line."""
        return {k: s.value for k, s in self.config.items() if s.source != f"model {self.model.name}"}


def resolve(
    model: Model,
    target: Target,
    config: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Resolved:
    """Put the layers together: model file < rules < command line."""
    words = config or {}
    architecture = model.about.architecture
    before = Effective({**model.config, **words}, architecture)
    mesh, _ = build_mesh(before, target.nodes, target.gpus_per_node) if _has_mesh(model) else (None, [])
    rules = matching(model.about.rules, _facts(before, mesh, target))
    settings = {k: Setting(value=v, source=f"model {model.name}") for k, v in model.config.items()}
    for rule in rules:
        settings |= {k: Setting(value=v, source=f"rule {rule.name}") for k, v in rule.config.items()}
    settings |= {k: Setting(value=v, source=COMMAND_LINE) for k, v in words.items()}
    effective = Effective({k: s.value for k, s in settings.items()}, architecture)
    problems: list[str] = []
    if _has_mesh(model):
        mesh, problems = build_mesh(effective, target.nodes, target.gpus_per_node)
    environment = stack(model.about, rules, env, target.vendor, target.fabric)
    return Resolved(model, target, settings, effective, mesh, problems, rules, environment, dict(env or {}))


def _has_mesh(model: Model) -> bool:
    return model.about.trainer == "maxtext"  # the small trainer is data parallel, whatever the machine


def _facts(config: Effective, mesh: Mesh | None, target: Target) -> dict[str, Any]:
    facts = config.facts()
    facts |= {"nodes": target.nodes, "gpus": target.nodes * target.gpus_per_node}
    facts |= {"vendor": target.vendor, "fabric": target.fabric}
    facts["dropless"] = facts["sparse_matmul"] is True or facts["use_turbo_deepep_dispatch"] is True
    for axis in _AXES:
        facts[axis] = mesh.size(axis) if mesh else None
    return facts
