"""A triage in sentences: what happened, and what to do next."""

from __future__ import annotations

from dataclasses import replace

from trackwalker.diagnose.causes.states import states
from trackwalker.diagnose.episodes.pattern import Pattern
from trackwalker.job.cause_names import cause_label
from trackwalker.job.dialects import by_name
from trackwalker.logs.failures.findings import Finding
from trackwalker.logs.failures.roles import UNCLASSIFIED, Roles
from trackwalker.logs.scanning.index import LogIndex
from trackwalker.record.accounting import Accounting
from trackwalker.record.projection import Progress
from trackwalker.record.status import DIED

_QUOTED = 120
LONGER = "steps-longer"
_SLOW = ("constant-drop", "phased", "gradual", "slow-from-start")


def degradation(roles: Roles, shape: Pattern, index: LogIndex) -> Roles:
    """A run that slowed down says so even when it ended well (FC-25); behind a failure it is an aside."""
    steps = index.steps
    dialect = by_name(steps.dialect)
    if shape.name not in _SLOW or (dialect is not None and dialect.smoothed):  # its slides are those of its averages
        return roles
    at = int(steps.line[steps.step == shape.from_step][0]) if shape.from_step in steps.step else index.lines
    found = Finding(
        id=states().cause(LONGER), cause=states().cause(LONGER), role="contributing" if roles.primary else "primary",
        tier=7, rank=None, host=None, line=at, file=index.path.name, text="", count=1, ranks=(), why=shape.says,
        fc="FC-25", proves_not="which host or link; the shape of the curve alone does not name a cause",
        next=("trackwalker diagnose JOB: the log shows that it slowed down, telemetry shows which host",),
    )  # fmt: skip
    return replace(roles, findings=[*roles.findings, found])


def next_steps(status: str, roles: Roles, said: Accounting, index: LogIndex, recorded: bool) -> list[str]:
    """What to do, the failure's own advice first, without what is already known."""
    primary = roles.primary
    if primary is not None and primary.next:
        steps = [s for s in primary.next if said.state == "unknown" or not s.startswith("ask the scheduler")]
        fraction = index.facts.mem_fraction
        asks = [s for s in steps if "memory fraction in force" in s]
        if asks and fraction is not None:
            room = "raise it to .93 first" if fraction < 0.93 else "it cannot be raised further"
            after = "" if fraction < 0.93 else "then "  # there is no first step to come after
            steps = [s.removeprefix(after) for s in steps if s not in asks]
            steps.insert(0, f"XLA_PYTHON_CLIENT_MEM_FRACTION is {fraction:g} in this run: {room}")
        return steps
    if status == "soft-success":
        return ["do not resubmit: every step was completed; check that the last checkpoint was committed"]
    if status == "indeterminate" and recorded:
        return ["trackwalker diagnose JOB: its recording tells whether the run went on; the log alone cannot"]
    if status == "indeterminate":
        return ["ask the scheduler whether the job still runs: the log alone cannot tell a hang from a death"]
    if status == DIED:
        return ["ask the scheduler (sacct) and the kernel log of the nodes; the log stops without a reason"]
    if status == "completed-short":
        return ["find out why fewer steps were run than configured: data ended, or a limit was set"]
    return []


def summary_of(status: str, roles: Roles, progress: Progress, shape: Pattern) -> str:
    """One or two sentences."""
    parts = []
    primary = roles.primary
    at = f" at step {progress.last_step}" if progress.last_step is not None else ""
    of = f" of {progress.total_steps}" if progress.total_steps and at else ""
    if primary is None:
        parts.append(f"{status}{at}{of}: no failure is visible in the log")
    else:
        placed = primary.tier != 5  # a cancel or a time limit comes from nowhere in particular
        where = f" on rank {primary.rank}" if primary.rank is not None and placed else ""
        host = f" ({primary.host})" if primary.host and placed else ""
        name = cause_label(primary.cause)
        if primary.cause == UNCLASSIFIED:
            name = f"unclassified ({primary.kind}?)" if primary.kind else "unclassified"
            where = f", first on rank {primary.rank}" if primary.rank is not None else ""
            host = (f" / {primary.host}" if where else f", first on {primary.host}") if primary.host else ""
            where, host = where + host, f': "{primary.text[:_QUOTED]}"'
        parts.append(f"{status}{at}{of}: {name}{where}{host}" + (f"; {primary.why}" if primary.why else ""))
    mechanism = next((f for f in roles.findings if f.role == "mechanism"), None)
    if mechanism is not None:
        parts.append(f"ended by {cause_label(mechanism.cause)}")
    if shape.name not in ("constant", "too-short") and (primary is None or primary.id != states().cause(LONGER)):
        parts.append(f"Throughput: {shape.says}")
    if progress.attempts > 1:
        parts.append(f"attempt {progress.attempts}")
    if progress.disagreement:
        parts.append(progress.disagreement)
    return ". ".join(parts)
