"""A small kind of sweep for tests: values along a line in two waves, the best wins; and a simulated world for it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trackwalker.sweep.engine import Engine, Outcome
from trackwalker.sweep.executors.protocol import Executor
from trackwalker.sweep.model import Conclusion, Done, Plot, Result, Table, Trial
from trackwalker.sweep.plan import Plan, Setup
from trackwalker.sweep.progress import Teller
from trackwalker.sweep.state import Book, State


@dataclass
class Line:
    """Runs `first` at once and then `then`, each on nodes of its own; stops where a value `stops_at` came out ok."""

    first: tuple[int, ...] = (1, 2, 3)
    then: tuple[int, ...] = (4, 5)
    nodes: tuple[str, ...] = ("n1", "n2", "n3")
    kind: str = "batch"
    stops_at: int | None = None

    def trial(self, value: int) -> Trial:
        """One value on one node."""
        node = self.nodes[value % len(self.nodes)]
        return Trial(f"x={value}", "tiny", (node,), {"x": str(value)}, why="a point of the line", minutes=6.0)

    def next_trials(self, done: Done) -> list[Trial]:
        """The second wave when the first is over."""
        first = [self.trial(value) for value in self.first]
        return first + [self.trial(v) for v in self.then] if all(t.key in done for t in first) else first

    def stop(self, done: Done) -> str:
        """When the value is there."""
        found = done.get(f"x={self.stops_at}")
        return f"x={self.stops_at} is good enough" if found is not None and found.ok else ""

    def at_most(self) -> int:
        """All values."""
        return len(self.first) + len(self.then)

    def conclude(self, done: Done) -> Conclusion:
        """The best value so far."""
        good = sorted((r.score or 0.0, r.key) for r in done.values() if r.ok)
        best = good[-1][1] if good else "nothing"
        rows = tuple((r.key, r.status) for r in sorted(done.values(), key=lambda r: r.key))
        xs = tuple(float(r.key[2:]) for r in sorted(done.values(), key=lambda r: r.key))
        ys = tuple(r.score for r in sorted(done.values(), key=lambda r: r.key))
        plots = (Plot("the line", "x", "tokens/s", xs, ys),) if xs else ()
        table = Table("Values", ("value", "end"), rows)
        return Conclusion(f"{best} is best", len(done) == self.at_most(), {"x": best}, tables=(table,), plots=plots)


def build(request: Mapping[str, Any]) -> Line:
    """As a plan asks for it."""
    return Line(tuple(request.get("first", (1, 2, 3))), tuple(request.get("then", (4, 5))))


@dataclass
class World:
    """What comes of each value: a score, unless `ends` says otherwise for its first, second … attempt."""

    ends: Mapping[str, list[Result]] = field(default_factory=dict)

    def __call__(self, trial: Trial, before: int) -> Result:
        given = self.ends.get(trial.key, [])
        if before < len(given):
            return given[before]
        value = float(trial.config["x"])
        score = 100.0 - (value - 3.0) ** 2
        return Result(trial.key, "ok", score=score, low=score - 1, high=score + 1, step_s=1.0, steps=20, minutes=6.0)


def plan_of(workspace: Path, kind: str = "batch", budget: float | None = None, spares: tuple[str, ...] = ()) -> Plan:
    """A plan in a workspace, written down."""
    setup = Setup("slurm", str(workspace), spares=list(spares))
    plan = Plan(f"{kind}-20260101-000000-abcd", kind, {}, setup, 1e9, budget)
    plan.save()
    return plan


def run(plan: Plan, strategy: Line, executor: Executor, out: io.StringIO | None = None) -> tuple[Outcome, State]:
    """Run the engine from where the sweep is."""
    strategy = replace(strategy, kind=plan.kind)
    with Book(plan.folder) as book:
        if book.state.ended is not None:
            book.write("resumed", executor.now())
        told = Teller(strategy.at_most(), out or io.StringIO())
        return Engine(plan, strategy, executor, book, told).run(), book.state


@dataclass
class RealLine(Line):
    """Real runs on one node, or on this machine: batch sizes one after the other, with a stand-in for the trainer."""

    trainer: str = ""  # the folder of the stand-in's package

    def trial(self, value: int) -> Trial:
        """One batch size."""
        config = {"steps": "16", "per_device_batch_size": str(value), "enable_checkpointing": "false"}
        env = {"PYTHONPATH": self.trainer}
        return Trial(f"x={value}", "tiny", self.nodes, config, env=env, why="a point of the line", minutes=1.0)


def build_real(request: Mapping[str, Any]) -> RealLine:
    """As a plan asks for it."""
    return RealLine(tuple(request["values"]), (), tuple(request["nodes"]), trainer=str(request["trainer"]))
