"""The failure policy of sweeps: policy.yml says it, this applies it, as pure functions of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict

from trackwalker.job.causes import about
from trackwalker.job.yaml_files import shipped
from trackwalker.logs.failures.signatures import load as load_signatures
from trackwalker.sweep.model import Done, Result, Status


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HangPhase(_Part):
    """What a hang in one phase of a run means."""

    again: int = 0
    status: Status = "hang"


class Again(_Part):
    """How often a trial is repeated, by what a strategy is told, and where it may have been chance."""

    status: dict[Status, int] = {}
    chance: int = 0


class Stop(_Part):
    """When failures of jobs end the whole sweep."""

    alike: int
    config_error: int
    not_for: tuple[str, ...] = ()
    no_sign: tuple[Status, ...] = ()


class Signal(_Part):
    """One metric that may explain a figure."""

    metric: str
    of: Literal["mean", "max", "rate", "share"]


class Explains(_Part):
    """A kind of signal by which a slow node may differ from the others."""

    part: str
    words: str
    unit: str = ""
    slows: Literal[1, -1]
    share: float
    least: float = 0.0


class Policy(_Part):
    """policy.yml."""

    hang_phases: dict[str, HangPhase]
    again: Again
    most_again: int
    replaces_nodes: tuple[str, ...]
    most_replaced: int
    stop: Stop
    least_steps: int
    signals: dict[str, Signal]
    explains: tuple[Explains, ...]
    model_sizes: dict[str, tuple[int, ...]]

    def of_hang(self, result: Result) -> Result:
        """A hang as its phase has it: some are a memory failure that nobody printed."""
        phase = self.hang_phases.get(result.phase)
        if result.status != "hang" or phase is None or phase.status == "hang":
            return result
        return replace(
            result, status=phase.status, why=f"{result.why}; a hang in {result.phase} counts as out of memory"
        )


@dataclass(frozen=True)
class Decision:
    """What follows from one result."""

    again: str = ""  # why its trial is repeated
    replace: tuple[str, ...] = ()  # faulty nodes that make room for spares
    stop: str = ""  # why the sweep ends


def status_of(failure: str, cause: str) -> Status:
    """What a strategy is told of a job that ended by this failure class: the signature's word, or its cause's."""
    signature = load_signatures().by_id.get(failure)
    told = about(cause)
    return signature.sweep if signature and signature.sweep else told.sweep if told else "failed"


def may_be_chance(failure: str) -> bool:
    """Whether a job that ended by this failure class may run well the next time, unchanged."""
    signature = load_signatures().by_id.get(failure)
    told = about(signature.cause if signature else failure)
    return bool(signature and signature.may_be_chance) or bool(told and told.may_be_chance)


@cache
def load_policy() -> Policy:
    """The policy that is shipped."""
    return Policy.model_validate(shipped("sweep", "policy.yml"))


def decide(
    policy: Policy,
    kind: str,
    result: Result,
    before: Sequence[Result],
    nodes: Sequence[str],
    spares: int,
    replaced: int,
) -> Decision:
    """What follows from a result, given the earlier results of its trial; `spares` are free, `replaced` in use."""
    if result.status == "ok":
        return Decision()
    if result.status == "node-fault":
        return _node_fault(policy, kind, result, before, nodes, spares, replaced)
    times = policy.again.chance if may_be_chance(result.cause) else policy.again.status.get(result.status, 0)
    if result.status == "hang" and result.phase in policy.hang_phases:
        times = policy.hang_phases[result.phase].again
    elif result.status == "hang":
        times = max(times, 1)
    alike = sum(earlier.status == result.status for earlier in before)
    if alike < times and len(before) < policy.most_again:
        return Decision(again=f"{_end(result)}: repeated once on the same nodes")
    return Decision()


def _node_fault(
    policy: Policy,
    kind: str,
    result: Result,
    before: Sequence[Result],
    nodes: Sequence[str],
    spares: int,
    replaced: int,
) -> Decision:
    """The node makes room for a spare one, where the nodes are not themselves the question."""
    faulty = tuple(host for host in result.hosts if host in nodes)
    if kind not in policy.replaces_nodes or not faulty:
        return Decision()
    if replaced + len(faulty) > policy.most_replaced:
        return Decision(stop=f"{', '.join(faulty)}: {replaced + len(faulty)} nodes are faulty, the cluster is unwell")
    if len(faulty) > spares:
        return Decision(stop=f"{', '.join(faulty)} failed ({result.why}) and there is no spare node: give --spares")
    earlier = sum(each.status == "node-fault" for each in before)
    if earlier < policy.again.status.get("node-fault", 0) and len(before) < policy.most_again:
        return Decision(again=f"{', '.join(faulty)} failed: repeated once on another node", replace=faulty)
    return Decision(replace=faulty)


def all_alike(policy: Policy, kind: str, done: Done) -> str:
    """Why the sweep should end: its jobs fail alike and none has run; empty while that is not so."""
    rule = policy.stop
    if kind in rule.not_for or any(result.ok for result in done.values()):
        return ""
    telling = [result for result in done.values() if result.status not in rule.no_sign]
    wrong = [result for result in telling if result.status == "config-error"]
    if len(wrong) >= rule.config_error:
        return f"the configuration is refused: {wrong[0].why or wrong[0].cause}"
    causes = [result.cause or result.status for result in telling]
    common = max(set(causes), key=lambda cause: (causes.count(cause), cause), default="")
    if causes.count(common) >= rule.alike:
        return f"{causes.count(common)} jobs failed alike ({common}) and none has run: it is not one trial's doing"
    return ""


def _end(result: Result) -> str:
    return f"{result.status} in {result.phase}" if result.phase else result.cause or result.status
