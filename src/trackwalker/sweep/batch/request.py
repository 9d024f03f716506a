"""A batch sweep as it was typed, as the request of its plan: what is varied, where the search begins, and why there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.job.resolve import resolve
from trackwalker.launch.request.memory import ERROR, GIB, Estimate
from trackwalker.launch.request.validate import Asked, Checked, check
from trackwalker.logs.facts import LogFacts
from trackwalker.record.read import read_record

BATCH = "per_device_batch_size"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_RANGE = re.compile(r"(\d+):(\d+)?(?::(\d+))?")
_FIRST = 0.75  # of the room: the estimate errs by a quarter
_CAREFUL, _MOST_CAREFUL = 1.5, 8  # growth and number of sizes where the room is known
_BLIND, _MOST_BLIND = 2.0, 10  # and where it is not


# How large a batch can be, before the first job: from the model's config, better from what an earlier run printed.
LINEAR = ("per_device_batch_size", "max_target_length")  # activations grow with these in proportion


@dataclass(frozen=True)
class Room:
    """What a device has, what stays on it for the whole run, and what each unit of the size adds, in GiB."""

    usable: float
    fixed: float
    unit: float
    source: str

    @property
    def largest(self) -> float:
        """The size that would fill the device."""
        return (self.usable - self.fixed) / self.unit

    def words(self, name: str) -> str:
        """One sentence for people."""
        return (
            f"{self.source}: {self.usable:.0f} GiB usable, {self.fixed:.0f} stay, {self.unit:.2g} for each unit of "
            f"{name}: room for about {self.largest:.0f}"
        )


def room_in_config(checked: Checked, name: str) -> Room | None:
    """By the memory model; None where it has nothing to say (another setting, a trainer without GPUs)."""
    resolved, estimate = checked.resolved, checked.estimate
    if resolved is None or estimate is None or name not in LINEAR:
        return None
    return _by_model(estimate, estimate.activations / resolved.effective.number(name) / GIB)


def _by_model(estimate: Estimate, unit: float) -> Room:
    fixed = (estimate.state + estimate.gradients) / GIB
    source = f"memory model, ± {ERROR:.0%}"
    return Room(estimate.usable / GIB, fixed, unit, source)


def room_in_run(job: Job, name: str, modelled: Room | None) -> Room | None:
    """By the memory lines of an earlier run of the same model and mesh: what was in use, and what a step was given."""
    if job.log is None:
        raise UsageError(f"--prior {job.label}: it has no log to read memory from")
    facts = read_record(job, "not asked").facts
    banner, compiled, size = facts.memory_before_steps(), facts.compiled_gb, _size(facts, name)
    if banner is None:
        raise UsageError(f"--prior {job.label}: its log has no memory line ('Using (GB) … / … on …')")
    if banner.device == "cpu":
        return None  # the machine's memory, shared by everybody: no bound of ours
    unit = compiled / size if compiled and size else modelled.unit if modelled else None
    if unit is None or name not in LINEAR:
        return None
    gradients = 0.0 if compiled or not modelled else modelled.fixed / 4  # the compiler's figure has them in it
    return Room(banner.limit, banner.used + gradients, unit, f"memory lines of {job.label}")


def _size(facts: LogFacts, name: str) -> float | None:
    try:
        return float(facts.setting(name) or "")
    except ValueError:
        return None


@dataclass(frozen=True)
class Wanted:
    """The words of the command line that say what is varied."""

    params: Sequence[str] = ()
    start: int | None = None
    prior: str | None = None  # a job whose memory lines are better than the model


def request_of(asked: Asked, wanted: Wanted, workspace: Path) -> dict[str, Any]:
    """The request of a batch sweep; what cannot work is refused here."""
    checked = check(asked)
    told = [p.text for p in checked.errors if p.about != "memory"]
    if told:
        raise UsageError("; ".join(told))
    first, *others = wanted.params or [BATCH]
    varied = _read(first)
    room = None
    if "values" not in varied:
        room = _room(checked, varied["name"], wanted, workspace)
        varied |= _search(varied, wanted.start or _now(checked, varied["name"]), room, bool(wanted.start))
    elif wanted.start or wanted.prior:
        raise UsageError(f"--start and --prior are for a search; {varied['name']} has a list of values")
    return {
        "model": asked.spec,
        "params": [varied, *(_read(other) for other in others)],
        "memory": room.words(varied["name"]) if room else "",
    }


def _read(text: str) -> dict[str, Any]:
    """`NAME` or `NAME=low:high[:step]` is searched, `NAME=a,b,c` is tried value by value."""
    name, eq, rest = text.partition("=")
    if not _NAME.fullmatch(name) or (eq and not rest):
        raise UsageError(f"--param {text}: the forms are NAME, NAME=low:high, NAME=low:high:step and NAME=a,b,c")
    if found := _RANGE.fullmatch(rest):
        low, high, step = (int(part) if part else None for part in found.groups())
        return {"name": name, "low": max(low or 1, 1), "high": high, "step": step or 1}
    return {"name": name, "values": rest.split(",")} if rest else {"name": name, "low": 1}


def _room(checked: Checked, name: str, wanted: Wanted, workspace: Path) -> Room | None:
    modelled = room_in_config(checked, name)
    measured = room_in_run(resolve(wanted.prior, workspace), name, modelled) if wanted.prior else None
    room = measured or modelled
    if room is not None and room.largest < 1:
        raise UsageError(f"not even {name}=1 fits: {room.words(name)}; shard the weights over more GPUs")
    return room


def _search(varied: dict[str, Any], start: int, room: Room | None, asked: bool) -> dict[str, Any]:
    if room is None:
        return {"start": start, "growth": _BLIND, "most": _MOST_BLIND}
    first = start if asked else max(round(_FIRST * room.largest), 1)
    return {"start": first, "growth": _CAREFUL, "most": _MOST_CAREFUL}


def _now(checked: Checked, name: str) -> int:
    """What the setting is today: where to begin when nothing is known about memory."""
    resolved = checked.resolved
    if resolved is None or name not in resolved.effective:
        return 1
    try:
        return max(int(resolved.effective.number(name)), 1)
    except UsageError as e:
        raise UsageError(f"{name} is no number and cannot be searched; name its values: --param {name}=a,b,c") from e
