"""Healthy jobs replayed through the watcher's own detectors, hours in seconds: every call is a false alarm.

Silence is called here without a second signal's consent, so the figure is what the detectors do alone: a watcher that
asks the agents as well calls less, never more.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trackwalker.lab.scenario import Scenario, all_scenarios
from trackwalker.lab.simulate import simulate
from trackwalker.watch.detect.phases import Course
from trackwalker.watch.detect.rules import Signs, detect
from trackwalker.watch.incident import Condition, Incident

LOOK_S = 5.0
_QUIET = ("healthy", "expected")  # outcomes in which nobody should be woken
_LONGER = 8  # times a healthy job's own length: a run of an hour says little about a day
_AFTER_S = 30.0


@dataclass
class Family:
    """One kind of healthy job, all seeds together."""

    name: str
    jobs: int = 0
    days: float = 0.0
    alarms: list[str] = field(default_factory=list)


@dataclass
class FalseAlarms:
    """The whole suite."""

    families: list[Family]

    @property
    def days(self) -> float:
        """Job-days that were replayed."""
        return sum(family.days for family in self.families)

    @property
    def count(self) -> int:
        """Calls, all of them false."""
        return sum(len(family.alarms) for family in self.families)

    @property
    def rate(self) -> float:
        """False alarms for each job-day."""
        return self.count / self.days if self.days else 0.0

    @property
    def at_most(self) -> float:
        """What the rate may be, with 95 % confidence: nothing seen in N days still allows three in N."""
        return (self.count + 3.0 + 2.0 * self.count**0.5) / self.days if self.days else float("inf")

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        shown = [
            {"family": f.name, "jobs": f.jobs, "job_days": round(f.days, 3), "alarms": f.alarms} for f in self.families
        ]
        total = {"job_days": round(self.days, 3), "alarms": self.count, "per_job_day": round(self.rate, 4)}
        return {**total, "at_most_per_job_day": round(self.at_most, 4), "families": shown}


def false_alarms(seeds: int, say: Callable[[str], None] = lambda text: None, first: int = 1) -> FalseAlarms:
    """Simulate every healthy and every expected family with so many seeds from `first` on, and replay each job."""
    found = []
    for scenario in all_scenarios():
        if scenario.truth.get("outcome") not in _QUIET:
            continue
        family = Family(scenario.family)
        for seed in range(first, first + seeds):
            _one(scenario, seed, family)
        found.append(family)
        say(f"{family.name}: {family.days:.2f} job-days, {len(family.alarms)} alarms")
    return FalseAlarms(found)


def _one(scenario: Scenario, seed: int, family: Family) -> None:
    world = {**scenario.world, "ray": False}
    if scenario.truth["outcome"] == "healthy" and not scenario.draw:
        world["steps"] = world["total"] = int(world.get("steps", 160)) * _LONGER
    quick = scenario.model_copy(update={"world": world})
    with tempfile.TemporaryDirectory(prefix="false-alarms-") as place:
        done = simulate(quick, Path(place) / "made", seed, form="ours")
        evaluates = next((f for f in scenario.faults if f["kind"] == "evaluation"), None)
        alarms, seconds = replay(done.job, evaluates)
    family.jobs += 1
    family.days += seconds / 86_400.0
    family.alarms += [f"seed {seed}: {alarm}" for alarm in alarms]


def replay(job: Path, evaluates: dict[str, Any] | None = None) -> tuple[list[str], float]:
    """What would have been called while this job ran, and how long it ran."""
    records = list(_records(job / "progress.jsonl"))
    if evaluates:
        records += _evaluations(records, int(evaluates["every"]), float(evaluates["seconds"]))
        records.sort(key=lambda record: float(record["t"]))
    if not records:
        return [], 0.0
    course = Course()
    signs, opened, called = Signs(course), dict[str, Incident](), list[str]()
    begin, end = float(records[0]["t"]), float(records[-1]["t"])
    at, now = 0, begin
    while now < end + _AFTER_S:
        while at < len(records) and float(records[at]["t"]) <= now:
            course.take(records[at], now)
            at += 1
        seen = {c.kind: c for c in detect(signs, now, opened)}
        for kind, condition in seen.items():
            if kind not in opened:
                opened[kind] = _incident(condition, now)
                called.append(f"{now - begin:.0f} s: {kind}: {condition.title}")
        for kind in set(opened) - set(seen):
            del opened[kind]
        now += LOOK_S
    return called, end - begin


def _records(path: Path) -> Iterator[dict[str, Any]]:
    if path.is_file():
        with path.open("rb") as lines:
            for line in lines:
                yield json.loads(line)


def _evaluations(records: list[dict[str, Any]], every: int, seconds: float) -> Iterator[dict[str, Any]]:
    """What a trainer says of its evaluations; the simulator's journals leave them out."""
    for record in records:
        if record.get("phase") == "train" and (record["step"] + 1) % every == 0:
            begin, end = float(record["t"]) + 0.001, float(record["t"]) + seconds
            told = {"rank": record["rank"], "host": record["host"], "phase": "eval"}
            yield {**told, "t": begin, "state": "begin"}
            yield {**told, "t": end, "state": "end", "seconds": seconds}


def _incident(condition: Condition, now: float) -> Incident:
    facts, ranks = dict(condition.facts), list(condition.ranks)
    return Incident(condition.kind, "", condition.kind, condition.title, condition.since, now, facts=facts, ranks=ranks)
