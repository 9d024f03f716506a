"""What a sweep is made of: trials, their results, a strategy that chooses the next ones, and what it concludes.

A strategy is pure: the trials it wants depend on the finished results only, never on time, order of arrival or memory
of its own. So a sweep that was killed is continued by asking its strategy again, and a simulated cluster can drive the
same strategy a thousand times a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from trackwalker.errors import UsageError

SCHEMA = "trackwalker.sweep/1"

# How a trial ended, as a strategy has to know it. The failure policy (policy.yml) maps log classes to these.
Status = Literal["ok", "oom", "hang", "node-fault", "config-error", "failed", "cancelled"]


# What the jobs of a sweep that compares settings have in common: short runs on synthetic data, nothing saved.
FEWEST_STEPS = 10  # the first five are never steady
USUAL = {"dataset_type": "synthetic", "enable_checkpointing": "false"}


@dataclass(frozen=True)
class Trial:
    """One job of a sweep: what is run, with which settings, on exactly which nodes."""

    key: str  # unique within the sweep and the same whenever the strategy is asked again, as "batch=12#2"
    model: str
    nodes: tuple[str, ...]  # pinned; empty on a single machine without a scheduler
    config: Mapping[str, str] = field(default_factory=dict)  # the trainer's settings
    env: Mapping[str, str] = field(default_factory=dict)  # _env_ settings
    code: str = ""  # folder or commit whose code it runs; empty: as the sweep was started
    why: str = ""  # one sentence: what this trial is to find out
    minutes: float = 10.0  # expected length, for budget and ETA until results tell better


@dataclass(frozen=True)
class Result:
    """What came of a trial; figures are of the steady stretch only, never of compile-dominated first steps."""

    key: str
    status: Status
    job: str = ""  # id, to look at it with triage, perf and diagnose
    score: float | None = None  # tokens/s/device, mean of the steady stretch
    low: float | None = None  # its 95 % interval within the run
    high: float | None = None
    step_s: float | None = None  # median steady step time
    steps: int = 0  # steady steps behind the score
    mfu: float | None = None
    comm_s: float | None = None  # steady collective time of a step where the run measured it
    why: str = ""  # the failure in one line, or what explains the figure
    cause: str = ""  # class of triage or cause of diagnose behind it
    hosts: tuple[str, ...] = ()  # nodes that the failure names
    phase: str = ""  # of a hang or an OOM: init, compile, first-step, train, checkpoint
    memory_gb: float | None = None  # peak device memory where the run printed it
    signals: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # host -> metric -> steady mean
    minutes: float = 0.0  # node-minutes are this times the nodes
    attempt: int = 1

    @property
    def ok(self) -> bool:
        """Whether it has a score to compare."""
        return self.status == "ok" and self.score is not None


Done = Mapping[str, Result]  # by trial key


@dataclass(frozen=True)
class Template:
    """What all jobs of a sweep have in common; a strategy says what each of them has besides."""

    model: str
    nodes: tuple[str, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    minutes: float = 10.0

    @classmethod
    def read(
        cls, request: Mapping[str, Any], usual: Mapping[str, str] = USUAL, few: str = ", or no step is a steady one"
    ) -> Template:
        """Of the request of a plan; too few steps are refused: the first ones compile and warm up."""
        config = {**usual, "steps": request.get("steps", 30), **(request.get("config") or {})}
        config, env = ({str(k): str(v) for k, v in each.items()} for each in (config, request.get("env") or {}))
        if not config["steps"].isdecimal() or int(config["steps"]) < FEWEST_STEPS:
            raise UsageError(f"steps={config['steps']}: at least {FEWEST_STEPS}{few}")
        nodes = tuple(str(node).strip() for node in request.get("nodes") or ())
        return cls(str(request.get("model") or ""), nodes, config, env, float(request.get("minutes", 10.0)))

    def trial(self, key: str, why: str, **own: Any) -> Trial:
        """One job: `own` is what it has instead of what the others have."""
        return Trial(**{**vars(self), "key": key, "why": why, **own})


@dataclass(frozen=True)
class Table:
    """A table of a report; cells are text, ready to print."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Plot:
    """Points of a figure in a report: x (numbers or names), y, and an interval where it is known."""

    title: str
    x_label: str
    y_label: str
    x: tuple[str | float, ...]
    y: tuple[float | None, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    marked: tuple[int, ...] = ()  # indexes to stand out: the optimum, the accused


@dataclass(frozen=True)
class Conclusion:
    """What a sweep found out; also asked for half-way, then `final` is false."""

    headline: str  # one sentence: the answer
    final: bool
    recommend: Mapping[str, str] = field(default_factory=dict)  # setting -> value, ready for behind `--`
    exclude: tuple[str, ...] = ()  # nodes to leave out
    pairs: tuple[tuple[str, str], ...] = ()  # links between two nodes that are bad though the nodes are not
    evidence: tuple[str, ...] = ()  # sentences with numbers
    caveats: tuple[str, ...] = ()  # what this does not prove
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    recipe: str = ""  # lines for a model file, ready to paste; empty: there is nothing to write down
    details: Mapping[str, Any] = field(default_factory=dict)  # of this kind of sweep, for --json


class Strategy(Protocol):
    """One kind of sweep; made from the `request` of a plan file, which must be plain JSON."""

    kind: str

    def next_trials(self, done: Done) -> list[Trial]:
        """What to run now; trials that are running already may be among them; empty: nothing more to learn."""
        ...

    def stop(self, done: Done) -> str:
        """Why the sweep should end at once, in one sentence; empty: go on."""
        ...

    def at_most(self) -> int:
        """The most jobs this sweep can come to, for the budget asked for before it starts."""
        ...

    def conclude(self, done: Done) -> Conclusion:
        """What the results say so far."""
        ...
