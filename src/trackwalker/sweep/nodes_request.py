"""What node and network sweeps are asked: a model, the nodes, and settings that every job carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.sweep.model import Trial

_FEWEST_STEPS = 10  # the first steps compile and warm up: fewer leave no steady stretch (upstream ran one step)


@dataclass(frozen=True)
class NodesRequest:
    """Checked: every node once, and enough steps for a steady stretch."""

    model: str
    nodes: tuple[str, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    minutes: float = 10.0

    @classmethod
    def read(cls, request: Mapping[str, Any]) -> NodesRequest:
        """The request of a plan; what is wrong with it is said before anything is submitted."""
        nodes = tuple(str(node).strip() for node in request.get("nodes") or ())
        if not nodes or not all(nodes):
            raise UsageError("which nodes? give the list, as n[1-8] or n1,n2")
        twice = sorted({node for node in nodes if nodes.count(node) > 1})
        if twice:
            raise UsageError(f"{', '.join(twice)} is in the node list twice: every node must be there once")
        if bad := [node for node in nodes if any(c in node for c in "[]+# \t")]:
            raise UsageError(f"'{bad[0]}' is no node name; lists look like n[1-8] or n1,n2")
        config = {str(k): str(v) for k, v in (request.get("config") or {}).items()}
        config.setdefault("steps", str(request.get("steps", 30)))
        if not config["steps"].isdecimal() or int(config["steps"]) < _FEWEST_STEPS:
            raise UsageError(f"steps={config['steps']}: at least {_FEWEST_STEPS}; the first ones measure the compiler")
        model = str(request.get("model") or "")
        if not model:
            raise UsageError("which model? as --model 70b")
        env = {str(k): str(v) for k, v in (request.get("env") or {}).items()}
        return cls(model, nodes, config, env, float(request.get("minutes", 10.0)))

    def trial(self, key: str, nodes: Sequence[str], why: str) -> Trial:
        """One job of the sweep on these nodes."""
        return Trial(key, self.model, tuple(nodes), self.config, self.env, why=why, minutes=self.minutes)
