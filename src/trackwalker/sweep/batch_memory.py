"""How large a batch can be, before the first job: from the model's config, better from what an earlier run printed."""

from __future__ import annotations

from dataclasses import dataclass

from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.launch.memory import ERROR, GIB, Estimate
from trackwalker.launch.validate import Checked
from trackwalker.logs.facts import LogFacts
from trackwalker.record.read import read_record

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
    return _room(estimate, estimate.activations / resolved.effective.number(name) / GIB)


def _room(estimate: Estimate, unit: float) -> Room:
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
