"""A flag sweep as it was typed, as the request of its plan: the cell, what a trace called for, the variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.job.resolve import resolve
from trackwalker.launch.request.resolved import Resolved
from trackwalker.launch.request.validate import Asked, check
from trackwalker.perf.analysis.report import analyse
from trackwalker.sweep.flags.catalogue import AXES, choose, own_variant

MOST = 30  # variants: more cost more luck, and more hours


@dataclass(frozen=True)
class Wanted:
    """The words of the command line that say what is tried."""

    tries: Sequence[str] = ()  # the user's own variants
    evidence: str | None = None  # a profiled job of this cell
    most: int = MOST
    profile: bool = False  # trace baseline and winner at the end


def request_of(asked: Asked, wanted: Wanted, workspace: Path) -> dict[str, Any]:
    """The request of a flag sweep; what cannot work is refused here."""
    checked = check(asked)
    if checked.errors or checked.resolved is None:
        raise UsageError("; ".join(p.text for p in checked.errors) or "the model cannot be resolved")
    findings = _findings(wanted.evidence, workspace) if wanted.evidence else []
    variants = [own_variant(text) for text in wanted.tries] or choose(checked.resolved, findings, wanted.most)
    return {
        "model": asked.spec,
        "variants": [asdict(v) for v in variants],
        "profile": wanted.profile,
        "condition": condition(checked.resolved),
    }


def condition(cell: Resolved) -> str:
    """The mesh of a cell as a rule's `when`: a winner is bound to where it was measured."""
    if cell.mesh is None:
        return ""
    used = [f"{axis} > 1" for axis in AXES if cell.mesh.size(axis) > 1]
    return " and ".join(used + [f"{axis} <= 1" for axis in ("pipeline",) if cell.mesh.size(axis) <= 1])


def _findings(job: str, workspace: Path) -> list[str]:
    """What a profiled run says should be mended, the largest gain first."""
    report = analyse(resolve(job, workspace))
    if report.trace is None:
        raise UsageError(f"--evidence {job}: it has no trace; run it with profiler=xplane, or leave --evidence away")
    return [fix.rule for fix in report.fixes]
