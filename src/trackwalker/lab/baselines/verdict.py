"""Verdicts as the baselines give them: the form of the contract, with the little they know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Claim:
    """One root with what it rests on."""

    cause: str
    source: str
    says: str
    hosts: list[str] = field(default_factory=list)
    kind: str = "log"
    action: str | None = None


def verdict(status: str, outcome: str, claims: list[Claim] | None = None) -> dict[str, Any]:
    """A verdict with these roots, each with one item of evidence."""
    claims = claims or []
    return {
        "schema": "trackwalker.verdict/1",
        "status": status,
        "outcome": outcome,
        "causes": [
            {"cause": c.cause, "role": "root", "hosts": c.hosts, "evidence": [f"e{i}"]} for i, c in enumerate(claims)
        ],
        "evidence": [{"id": f"e{i}", "kind": c.kind, "source": c.source, "says": c.says} for i, c in enumerate(claims)],
        "actions": [{"do": c.action, "hosts": c.hosts, "needs_approval": True} for c in claims if c.action and c.hosts],
    }
