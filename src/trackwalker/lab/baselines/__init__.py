"""Diagnosers to compare with: what no knowledge, a grep, and upstream's rules taken literally achieve."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trackwalker.lab.baselines.signatures import grep_first
from trackwalker.lab.baselines.upstream import upstream_rules
from trackwalker.lab.baselines.verdict import verdict

Baseline = Callable[[Path], dict[str, Any]]


def always_healthy(job: Path) -> dict[str, Any]:
    """Says that nothing is wrong, whatever it is asked."""
    return verdict("completed", "healthy")


BASELINES: dict[str, Baseline] = {
    "always-healthy": always_healthy,
    "grep": grep_first,
    "upstream-rules": upstream_rules,
}
