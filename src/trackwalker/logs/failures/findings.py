"""What triage finds: one failure class with its role and its line; a stall, which no line tells of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trackwalker.logs.scanning.index import LogIndex

Role = Literal["primary", "consequence", "mechanism", "contributing", "note"]


@dataclass(frozen=True)
class Finding:
    """One failure class in this log, with its role."""

    id: str
    cause: str
    role: Role
    tier: int
    rank: int | None
    host: str | None
    line: int
    file: str
    text: str
    count: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...] = ()
    why: str = ""
    fc: str | None = None
    proves_not: str = ""
    next: tuple[str, ...] = ()
    local: bool = False  # it concerns a disk of the host that says so, not one that all share
    kind: str = ""  # the generic class: memory, storage, network, device, program, data, ...; "" when unclear
    subject: str = ""  # what failed, in the line's own words, and where in the job's own code it was raised
    unnamed: bool = False  # its words are no known cause's


@dataclass(frozen=True)
class Stopped:
    """The run stopped completing steps long before it ended, or never began to."""

    says: str
    before_first: str = ""  # no step at all: how far it came (init, params, barrier)


def hang(index: LogIndex, stall: Stopped) -> Finding:
    """The finding of a stall: after a step, in an evaluation, or before the first step."""
    if stall.before_first:
        return _never_started(index, stall)
    last = index.steps.last
    in_eval = bool(len(index.steps) and index.eval_line > int(index.steps.line[-1]))
    where = "in the evaluation after" if in_eval else "after"
    return _silent(
        index,
        cause="dataloader-hang" if in_eval else "collective-hang",
        line=int(index.steps.line[-1]) if len(index.steps) else index.lines,
        why=f"{stall.says}, {where} step {last}",
        proves_not="which rank or link stopped first; the log of a hang is silent",
        next_steps=(
            "take stacks of every rank while it still hangs",
            "retry on the same nodes first; exclude nodes only when it recurs there",
        ),
    )


_REACHED = {
    "init": "the parameters were never initialised",
    "params": "the parameters were initialised, the barrier before the loop was not reached",
    "barrier": "the barrier before the loop was reached",
}
_DECIDE = (
    "look at the GPUs while it stands: some at 100 % with low power mean a collective that never met, "
    "all idle with busy CPUs mean a compiler out of memory"
)


def _never_started(index: LogIndex, stall: Stopped) -> Finding:
    """No first step: upstream's two rules contradict each other here, and the log alone cannot decide (D-37)."""
    compiler = stall.before_first == "params"
    retry = "do not retry unchanged: lower the batch size" if compiler else "retry once on the same nodes"
    return _silent(
        index,
        cause="silent-compile-oom" if compiler else "collective-hang",
        line=index.lines,
        why=f"{stall.says}: {_REACHED[stall.before_first]}",
        proves_not="whether the first collective never met or the compiler ran out of memory without a word",
        next_steps=(retry,) if stall.before_first == "init" else (_DECIDE, retry),
    )


def _silent(index: LogIndex, cause: str, line: int, why: str, proves_not: str, next_steps: tuple[str, ...]) -> Finding:
    """A hang: no line of the log says it, so no rank is named."""
    return Finding(
        id="hang",
        cause=cause,
        role="primary",
        tier=6,
        rank=None,
        host=None,
        line=line,
        file=index.path.name,
        text="",
        count=1,
        ranks=(),
        why=why,
        fc="FC-14",
        proves_not=proves_not,
        next=next_steps,
    )
